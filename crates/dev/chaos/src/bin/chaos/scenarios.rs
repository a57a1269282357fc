//! List of scenarios.

mod blame;
mod broker;
mod bulk;
mod clients;
mod cluster;
mod engine;
mod forged;
mod forms;
mod gateways;
mod network;
mod python;
mod slow_reader;
mod soak;
mod structured;
mod vllm;
mod workers;

use anyhow::Result;

use crate::servers::Kind;
use crate::stage::Stage;

pub(crate) use vllm::place as place_of_vllm;

/// Scenario; each round of it writes one journal.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Description in one line.
    pub(crate) about: &'static str,
    pub(crate) needs: Needs,
    pub(crate) play: fn(&mut Stage) -> Result<()>,
}

/// Requirements of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Any node, shared with other scenarios.
    AnyNode,
    /// A node of its own, because the scenario harms it.
    ItsOwnNode,
    /// A cluster of three nodes over TLS, shared with other scenarios, one at a time.
    Cluster,
    /// Such a cluster and a minute or two; the scenario is played only when it is named.
    ClusterAndTime,
    /// Half an hour of time; the scenario is played only when it is named.
    Time,
    /// vLLM and a node of its own; the scenario is played only when it is named.
    Vllm,
}

impl Needs {
    /// Returns the kind of the broker that the scenario is played on.
    pub(crate) fn broker(self) -> Kind {
        match self {
            Self::AnyNode | Self::Time => Kind::SharedNode,
            Self::ItsOwnNode | Self::Vllm => Kind::OwnNode,
            Self::Cluster | Self::ClusterAndTime => Kind::Cluster,
        }
    }

    /// Returns true if the scenario is played only when it is named.
    pub(crate) fn its_name(self) -> bool {
        matches!(self, Self::Time | Self::Vllm | Self::ClusterAndTime)
    }
}

macro_rules! scenarios {
    ($($name:literal $needs:ident $play:path: $about:literal)*) => {
        /// All scenarios, in the order of the table's rows. The longest ones come first.
        pub(crate) const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: $name,
            about: $about,
            needs: Needs::$needs,
            play: $play,
        }),*];
    };
}

scenarios! {
    "replica-takes-over" AnyNode gateways::replica_takes_over:
        "gateways with a shared store are killed and told to leave; others continue their streams"
    "gateway-killed" AnyNode gateways::gateway_killed:
        "a gateway is killed in mid-stream and started again"
    "gateway-and-worker-killed" AnyNode gateways::gateway_and_worker_killed:
        "a gateway and the worker of a stream are killed at once"
    "client-reconnects-by-sequence" AnyNode gateways::client_reconnects:
        "clients of a gateway leave in mid-stream and read on from the event that they have"
    "slow-reader" AnyNode slow_reader::slow_reader:
        "readers of 100,000 pieces that do not read, beside others, in every client"
    "stranded" AnyNode broker::stranded:
        "a consumer that never acks holds requests of a killed worker"
    "python-crash" AnyNode python::crash:
        "Python processes crash, and are killed, beside innocent requests; at last too often"
    "client-gone" AnyNode clients::gone:
        "the client is killed in mid-stream; nothing runs on"
    "queue-lost" AnyNode network::queue_lost:
        "the client is cut off until the broker has dropped its reply queue"
    "many-drains" AnyNode blame::many_drains:
        "the worker of a long reply is told to leave, eighteen times"
    "rolling" AnyNode blame::rolling:
        "three workers are told to leave, one after the other, under load; what that costs"
    "python-hang" AnyNode python::hang:
        "calls hang in Python when they must stop, beside innocent ones in the same processes"
    "fast-kills" AnyNode blame::fast_kills:
        "a worker is killed every half a second, with requests that wait to run alone"
    "forged-reply-to" AnyNode forged::reply_to:
        "the same sealed bytes are published with another reply queue"
    "client-restart" AnyNode clients::restart:
        "the client is killed, and another asks for what is missing"
    "poison" AnyNode workers::poison:
        "an input kills each process that runs it, beside innocent ones"
    "clock-skew" AnyNode workers::clock_skew:
        "workers whose clocks are 30 s and 10 min off, both ways"
    "half-open" AnyNode network::half_open:
        "a worker's packets vanish while both sides believe in the connection"
    "block" AnyNode workers::block:
        "a handler blocks its thread for longer than the broker's heartbeat"
    "flood" AnyNode workers::flood:
        "a thousand requests over three workers, one killed each second"
    "kill" AnyNode workers::kill:
        "workers are killed in mid-stream"
    "ranks" AnyNode engine::ranks:
        "two ranks and a draft from a bucket: killed, told to leave, and with a rank that hangs"
    "drain" AnyNode workers::drain:
        "a worker is told to leave; one job fits its grace, another does not"
    "bulk-preempted" AnyNode bulk::preempted:
        "bulk requests fill all slots, and interactive ones come in bursts; a worker is killed"
    "panic" AnyNode workers::panic:
        "a handler panics beside others"
    "differ" AnyNode workers::differ:
        "a handler's second attempt says another text, which it must not"
    "cut" AnyNode network::cut:
        "every connection is cut, of workers and client"
    "cut-publish" AnyNode network::cut_publish:
        "only what workers publish on is cut, with the last frame on its way"
    "cut-consume" AnyNode network::cut_consume:
        "only what workers consume on is cut"
    "adopt" AnyNode network::adopt:
        "the same, with one worker: what comes back to it still runs there"
    "many-slots" AnyNode network::many_slots:
        "the same with forty slots: a lost connection is one failure, not one for each channel"
    "client-reconnect" AnyNode network::client_reconnect:
        "only the client's connections are cut"
    "full-reply-queue" AnyNode broker::full_reply_queue:
        "the client stands still, and its small reply queue fills up"
    "right-lost-and-given-back" AnyNode broker::right_lost:
        "a worker loses the right to publish replies, and gets it back"
    "publisher-refused" AnyNode broker::publisher_refused:
        "one of two workers may open one connection only: it cannot publish, so it takes nothing"
    "log-reader-stops" AnyNode gateways::log_reader_stops:
        "worker and gateway log to a pipe that is not read; they answer, and leave when told to"
    "gateway-restart-after-cancel" AnyNode gateways::restart_after_cancel:
        "a response is canceled and another one refused, then their gateway is killed"
    "duplicate-publish" AnyNode broker::duplicate_publish:
        "the same sealed bytes are published twice, to one worker and to two"
    "forged-count" AnyNode broker::forged_count:
        "a publisher writes the broker's delivery count itself"
    "cancel" AnyNode clients::cancel:
        "callers cancel in mid-stream"
    "idle" AnyNode workers::idle:
        "no fault at all"
    "soak" Time soak::soak:
        "one worker under load for --minutes, with a cut each minute; nothing may grow"
    "structured" ItsOwnNode structured::structured:
        "an engine writes JSON, calls and several replies: canceled, killed, told to leave, cut off"
    "vllm" Vllm vllm::vllm:
        "the same by vLLM, whose engine process is killed too; it needs vLLM and a model's folder"
    "memory-alarm" ItsOwnNode broker::memory_alarm:
        "the broker blocks publishers for a while"
    "rolling-upgrade" ClusterAndTime cluster::rolling_upgrade:
        "one node of a cluster after the other is drained, stopped and started; minutes a round"
    "minority" ClusterAndTime cluster::minority:
        "two of a cluster's three nodes are killed; requests come meanwhile"
    "node-killed" Cluster cluster::node_killed:
        "the node of a cluster that has the client's reply queue is killed, and started again"
    "tls-cut" Cluster cluster::tls_cut:
        "TLS connections end in the middle of a record, beside an address with a wrong certificate"
    "leader-killed" ClusterAndTime cluster::leader_killed:
        "the node of a cluster that leads the model's queue is killed"
    "broker-restart" ItsOwnNode broker::restart:
        "the broker is stopped and started again"
    "broker-crash" ItsOwnNode broker::crash:
        "the broker is killed and started again"
}
