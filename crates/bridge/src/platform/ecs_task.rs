//! Desired status of an ECS task.
//!
//! <https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-metadata-endpoint-v4.html>. If
//! containers are stopped one after another, the stop is visible here some seconds before SIGTERM.

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use tokio::time::sleep;

use super::{Error, Outage, POLL, ask, get};

/// Client of the task's metadata service.
#[derive(Debug)]
pub(super) struct EcsTask {
    url: String,
    poll: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    desired_status: String,
}

impl EcsTask {
    pub(super) fn new(base: &str) -> Self {
        Self { url: format!("{}/task", base.trim_end_matches('/')), poll: POLL }
    }

    /// Waits until ECS wants the task stopped.
    pub(super) async fn stopping(&self) {
        let mut outage = Outage::default();
        loop {
            let what = "the task's metadata cannot be read, so only SIGTERM will tell of a stop";
            if outage.note(self.wanted().await, what).is_some_and(|status| status == "STOPPED") {
                tracing::info!("ECS stops this task: draining");
                return;
            }
            sleep(self.poll).await;
        }
    }

    async fn wanted(&self) -> Result<String, Error> {
        let answer = ask(get(&self.url), String::new()).await?;
        let url = self.url.clone();
        if answer.status() != StatusCode::OK {
            return Err(Error::Status { url, status: answer.status() });
        }
        let state: State =
            serde_json::from_slice(answer.body()).map_err(|_| Error::Answer { url })?;
        Ok(state.desired_status)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use nsbridge_testkit::http::{Answer, Server};
    use tokio::time::timeout;

    use super::EcsTask;

    /// Checks `stopping` against a service that gives these answers in turn and then repeats the
    /// last one.
    async fn check(answers: Vec<Answer>, stops: bool) {
        let (n, count) = (AtomicUsize::new(0), answers.len());
        let server = Server::start(move |seen| {
            assert_eq!(seen.line, "GET /v4/0123-abc/task");
            answers[n.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)].clone()
        })
        .await
        .unwrap();
        let mut task = EcsTask::new(&server.url("/v4/0123-abc"));
        task.poll = Duration::from_millis(5);
        let patience = Duration::from_secs(if stops { 20 } else { 1 });
        assert_eq!(timeout(patience, task.stopping()).await.is_ok(), stops);
        assert!(server.seen().len() >= count);
    }

    #[tokio::test]
    async fn a_task_that_is_to_run_goes_on() {
        let running = r#"{"Cluster":"c","DesiredStatus":"RUNNING","KnownStatus":"STOPPED"}"#;
        check(vec![Answer::new(200, running)], false).await;
    }

    #[tokio::test]
    async fn a_stop_is_seen_whatever_the_service_said_before() {
        let stopped = r#"{"DesiredStatus":"STOPPED","KnownStatus":"RUNNING"}"#;
        let answers = vec![
            Answer::new(200, r#"{"DesiredStatus":"RUNNING"}"#),
            Answer::new(404, ""),
            Answer::new(500, stopped),
            Answer::new(200, "{}"),
            Answer::new(200, "STOPPED"),
            Answer::raw("garbage"),
            Answer::never(),
            Answer::new(200, stopped),
        ];
        check(answers, true).await;
    }
}
