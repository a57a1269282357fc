//! Runs that lose their delivery, and deliveries that come back: rules R5, R6, R8, R9 and R11.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::Handler;
use nsbridge_protocol::topology::model_queue;
use nsbridge_queue::{Broker, MemoryBroker};
use nsbridge_testkit::system::client::{Client, Reply};
use nsbridge_testkit::system::{Running, Setup};

use crate::script::{Ran, Script, Scripted, Two, ask, fresh_seed, runs, said, until};
use crate::trouble::rest;
use crate::watch::{becomes, value};

/// Queue with several workers, distinguished by name.
pub(crate) struct Stage {
    pub(crate) broker: MemoryBroker,
    pub(crate) setup: Setup,
    client: Client,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let broker = MemoryBroker::new();
        let mut setup = Setup::new().unwrap();
        setup.worker = "a".into();
        let client = setup.client(Arc::new(broker.clone())).await.unwrap();
        Self { broker, setup, client }
    }

    pub(crate) async fn worker<H: Handler<Options = ()>>(&self, name: &str) -> Running {
        let setup = Setup { worker: name.into(), ..self.setup.clone() };
        setup.worker::<H>(Arc::new(self.broker.clone()), ()).await.unwrap()
    }

    pub(crate) async fn say(&self, pieces: usize, every_ms: u64) -> (u64, Reply<String>) {
        let seed = fresh_seed();
        let mut ask = ask(&self.setup, Script::Say { pieces, every_ms }, seed);
        ask.timeout = Duration::from_secs(60);
        (seed, self.client.submit(ask).await.unwrap())
    }

    /// Waits until the one orphan of the stage has ended in this way.
    pub(crate) async fn orphan_ended(&self, how: &str) {
        let name = "nsbridge_orphans_ended_total";
        becomes(&self.setup.observability.metrics, name, how, 1.0).await;
        assert_eq!(value(&self.setup.observability.metrics, "nsbridge_orphans_total", ""), 1.0);
    }

    pub(crate) fn cut_consuming(&self, worker: &str) {
        self.broker.cut(&format!("{worker} consume"));
    }
}

fn ended(run: Option<&Ran>) -> bool {
    run.is_some_and(|run| run.until.is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r6_a_run_that_lost_its_delivery_is_adopted_and_never_run_twice() {
    let stage = Stage::new().await;
    let _a = stage.worker::<Scripted>("a").await;
    let (seed, mut reply) = stage.say(150, 10).await;
    for _ in 0..10 {
        reply.next().await.unwrap().unwrap();
    }
    for adoptions in 1..=3 {
        stage.cut_consuming("a");
        let metrics = &stage.setup.observability.metrics;
        becomes(metrics, "nsbridge_adoptions_total", "", f64::from(adoptions)).await;
    }
    assert_eq!(rest(reply).await, said(seed, 150)[10..]);
    assert_eq!(runs(seed).len(), 1, "one run, whatever its delivery went through");
    let (next, reply) = stage.say(3, 0).await;
    assert_eq!(reply.collect().await.unwrap().0, said(next, 3));
    assert_eq!(runs(seed).len(), 1, "and it is acked for good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_an_orphan_whose_copy_went_elsewhere_ends_within_the_adopt_window() {
    let mut stage = Stage::new().await;
    let window = Duration::from_millis(500);
    stage.setup.timing.adopt_window = window;
    let _a = stage.worker::<Scripted>("a").await;
    let (seed, mut reply) = stage.say(400, 10).await;
    for _ in 0..10 {
        reply.next().await.unwrap().unwrap();
    }
    let _b = stage.worker::<Scripted>("b").await;
    let cut = Instant::now();
    stage.cut_consuming("a");
    until("the other worker starts", async || runs(seed).len() == 2).await;
    until("the orphan ends", async || ended(runs(seed).first())).await;
    let orphaned_for = runs(seed)[0].until.unwrap() - cut;
    assert!(orphaned_for >= window, "{orphaned_for:?}");
    stage.orphan_ended("expired").await;
    assert_eq!(rest(reply).await, said(seed, 400)[10..], "and the caller has seen nothing of it");
    assert_eq!(runs(seed).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_an_orphan_goes_at_once_when_another_delivery_needs_its_place() {
    let mut stage = Stage::new().await;
    // Only the other delivery can end the orphan.
    stage.setup.timing.adopt_window = Duration::from_secs(3600);
    stage.setup.timing.max_orphan_time = Duration::from_secs(3600);
    let _a = stage.worker::<Scripted>("a").await;
    let (seed, mut reply) = stage.say(400, 10).await;
    reply.next().await.unwrap().unwrap();
    let _b = stage.worker::<Scripted>("b").await;
    stage.cut_consuming("a");
    until("the other worker starts", async || runs(seed).len() == 2).await;
    let (next, second) = stage.say(3, 0).await;
    assert_eq!(second.collect().await.unwrap().0, said(next, 3));
    assert!(ended(runs(seed).first()), "the orphan made room");
    stage.orphan_ended("evicted").await;
    assert_eq!(rest(reply).await, said(seed, 400)[1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_a_job_that_ended_without_its_delivery_is_acked_when_the_copy_comes_back() {
    let stage = Stage::new().await;
    let _a = stage.worker::<Scripted>("a").await;
    let (seed, mut reply) = stage.say(30, 10).await;
    reply.next().await.unwrap().unwrap();
    stage.broker.refuse();
    stage.cut_consuming("a");
    assert_eq!(rest(reply).await, said(seed, 30)[1..], "it ends all the same");
    stage.broker.accept();
    let (next, second) = stage.say(3, 0).await;
    assert_eq!(second.collect().await.unwrap().0, said(next, 3));
    assert_eq!(runs(seed).len(), 1, "nothing is run for a client that has its reply");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_request_that_came_back_without_having_begun_runs_beside_others() {
    let stage = Stage::new().await;
    let queue = model_queue(&stage.setup.model);
    let rival = stage.broker.connect("rival").await.unwrap();
    rival.declare_model(&stage.setup.model).await.unwrap();
    let (innocent, came_back) = stage.say(30, 10).await;
    // The request is held until its neighbor runs.
    let mut taken = rival.consume(&queue, 1).await.unwrap();
    for _ in 0..3 {
        taken.recv().await.unwrap().requeue().await.unwrap();
    }
    let held = taken.recv().await.unwrap();
    drop(taken);
    let (long, mut neighbor) = stage.say(300, 10).await;
    let _a = stage.worker::<Two>("a").await;
    neighbor.next().await.unwrap().unwrap();
    held.requeue().await.unwrap();
    assert_eq!(came_back.collect().await.unwrap().0, said(innocent, 30));
    assert!(runs(long)[0].until.is_none(), "it waited for its neighbor's end");
    assert_eq!(rest(neighbor).await, said(long, 300)[1..]);
}
