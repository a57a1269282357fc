//! Names and help texts of all metrics. They stand nowhere else.

nsbridge_telemetry::names! {
    DESIRED = "desired_workers",
        "Workers that the model should have, as decided last";
    RUNNING = "running_workers",
        "Workers that take requests: consumers of the model's queue";
    PENDING = "pending_workers",
        "Workers that were asked for and do not take requests yet";
    LATE = "late_workers",
        "Workers that were asked for and did not come within the time limit of a boot";
    WAITING = "waiting_requests",
        "Requests that wait in the model's queues, bulk ones included";
    IN_FLIGHT = "in_flight_requests",
        "Requests that workers have taken and not settled";
    LEADS = "leads",
        "1 while this process decides for the model, 0 while another one does";
    BACKLOG = "backlog",
        "Time in which the running workers, at least one, would work off the waiting interactive requests";
    REPLY_TOKENS = "tokens_per_request",
        "Moving average of a reply's tokens, as the workers counted them";
    WORKER_TOKENS = "worker_tokens_per_second",
        "Moving average of the tokens per second of a worker whose places are all busy";
    DECIDED_AT = "last_decision_timestamp",
        "Time of the last decision, since 1970";
    DECISIONS = "decisions",
        "Decisions";
    FAILURES = "failures",
        "Failed attempts: to reach the broker, to read it or the workers, to tell CloudWatch or ECS";
}
