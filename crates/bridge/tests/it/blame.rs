//! Deliveries that count as a failed run of the request, and those that do not: rules R1, R5 and
//! R6.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nsbridge_crypto::Sealed;
use nsbridge_protocol::topology::{
    DELIVERY_LIMIT, POISON_RUNS, RENEW_DELIVERIES, dead_queue, header, model_queue, reply_queue,
    run_record,
};
use nsbridge_protocol::{ModelName, Revision};
use nsbridge_queue::{
    Broker, Connection, Consumer, Delivery, Depth, Error as QueueError, Header, MemoryBroker,
    Message, Publisher,
};
use nsbridge_testkit::system::Setup;
use tokio::time::timeout;

use crate::script::{
    Script, Scripted, Two, ask, fresh_seed, process, runs, said, sealed, until, with_key,
};
use crate::stories;
use crate::trouble::rest;

stories! {
    r1_deliveries_that_never_began_are_not_blamed,
    r1_a_request_whose_runs_end_their_workers_is_a_dead_letter,
    r1_a_drained_job_is_not_blamed,
    r1_runs_of_other_copies_are_no_blame,
    r5_a_suspect_whose_workers_come_back_is_none,
    r1_a_record_that_cannot_be_kept_keeps_no_request_from_running,
    r1_a_run_that_returned_leaves_no_record,
    r6_a_forged_reply_to_takes_no_reply_away,
}

/// Request with a known reply root and reply queue.
struct Known {
    setup: Setup,
    seed: u64,
    sealed: Sealed,
    reply_to: String,
    connection: Arc<dyn Connection>,
}

impl Known {
    async fn new(broker: &Arc<dyn Broker>, script: Script) -> Self {
        let (mut setup, key) = with_key();
        setup.timing.record_wait = Duration::from_millis(200);
        setup.timing.suspect_poll = Duration::from_millis(100);
        let connection = broker.connect("known").await.unwrap();
        connection.declare_model(&setup.model).await.unwrap();
        let seed = fresh_seed();
        let sealed = sealed(&setup, &key, seed, &script);
        let reply_to = reply_queue(sealed.reply_root.run_record(""));
        connection.declare_reply_queue(&reply_to).await.unwrap();
        Self { setup, seed, sealed, reply_to, connection }
    }

    fn record(&self) -> String {
        run_record(&self.setup.model, self.sealed.reply_root.run_record(&self.reply_to))
    }

    /// Adds entries for `runs` runs to the run record, as workers would.
    async fn enter(&self, runs: u32) {
        let record = self.record();
        self.connection.declare_run_record(&record).await.unwrap();
        let publisher = self.connection.publisher().await.unwrap();
        for _ in 0..runs {
            let entry = Message::new(Vec::new());
            publisher.publish("", &record, entry).await.unwrap().await.unwrap();
        }
    }

    /// Publishes the request and takes it repeatedly. After the returned delivery is requeued, the
    /// request has this many redeliveries.
    async fn hold(&self, deliveries: u32) -> Delivery {
        self.publish(0).await;
        let queue = model_queue(&self.setup.model);
        let mut taken = self.connection.consume(&queue, 1).await.unwrap();
        for _ in 1..deliveries {
            taken.recv().await.unwrap().requeue().await.unwrap();
        }
        taken.recv().await.unwrap()
    }

    async fn publish(&self, epoch: i64) {
        let mut message = Message::new(self.sealed.frame.clone());
        message.properties.reply_to = Some(self.reply_to.clone());
        message.properties.headers.insert(header::EPOCH.to_owned(), Header::Int(epoch));
        let publisher = self.connection.publisher().await.unwrap();
        let queue = model_queue(&self.setup.model);
        publisher.publish("", &queue, message).await.unwrap().await.unwrap();
    }

    /// Returns the number of recorded runs; `None` if there is no record.
    async fn recorded(&self) -> Option<u32> {
        match self.connection.depth(&self.record()).await {
            Ok(depth) => Some(depth.messages),
            Err(QueueError::NoQueue { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn r1_deliveries_that_never_began_are_not_blamed(broker: Arc<dyn Broker>) {
    for deliveries in [16, RENEW_DELIVERIES, u64::from(DELIVERY_LIMIT) - 1] {
        let setup = Setup::new().unwrap();
        let rival = broker.connect("rival").await.unwrap();
        rival.declare_model(&setup.model).await.unwrap();
        let client = setup.client(broker.clone()).await.unwrap();
        let seed = fresh_seed();
        let asked = ask(&setup, Script::Say { pieces: 3, every_ms: 0 }, seed);
        let reply = client.submit::<String>(asked).await.unwrap();
        let mut taken = rival.consume(&model_queue(&setup.model), 1).await.unwrap();
        for _ in 0..deliveries {
            taken.recv().await.unwrap().requeue().await.unwrap();
        }
        drop(taken);
        let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
        assert_eq!(
            reply.collect().await.unwrap().0,
            said(seed, 3),
            "after {deliveries} deliveries"
        );
        assert_eq!(runs(seed).len(), 1);
    }
}

async fn r1_a_request_whose_runs_end_their_workers_is_a_dead_letter(broker: Arc<dyn Broker>) {
    for (recorded, poison) in [(POISON_RUNS - 1, false), (POISON_RUNS, true)] {
        let known = Known::new(&broker, Script::Say { pieces: 1, every_ms: 0 }).await;
        known.enter(recorded).await;
        known.hold(POISON_RUNS).await.requeue().await.unwrap();
        let _worker = known.setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
        if !poison {
            until("the lone run", async || runs(known.seed).len() == 1).await;
            continue;
        }
        let dead = dead_queue(&known.setup.model);
        let mut letters = known.connection.consume(&dead, 1).await.unwrap();
        let letter = timeout(Duration::from_secs(10), letters.recv()).await.unwrap().unwrap();
        assert_eq!(letter.message.properties.text(header::REASON), Some("poison"));
        assert!(letter.message.body == known.sealed.frame, "the body is changed");
        assert!(runs(known.seed).is_empty());
    }
}

async fn r1_a_drained_job_is_not_blamed(broker: Arc<dyn Broker>) {
    let mut setup = Setup::new().unwrap();
    setup.grace = Duration::from_millis(10);
    broker.connect("first").await.unwrap().declare_model(&setup.model).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let drains = POISON_RUNS as usize + 3;
    let mut asked = ask(&setup, Script::Say { pieces: 10 * drains, every_ms: 5 }, seed);
    asked.timeout = Duration::from_secs(60);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    for drain in 0..drains {
        let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
        until("a run to begin", async || runs(seed).len() > drain).await;
        reply.next().await.unwrap().unwrap();
        worker.stop().await.unwrap();
        assert!(runs(seed)[drain].until.is_some());
    }
    let _last = setup.worker::<Scripted>(broker, ()).await.unwrap();
    let text = rest(reply).await;
    assert!(said(seed, 10 * drains).ends_with(&text) && text.len() >= 9 * drains, "{text:?}");
}

async fn r1_a_run_that_returned_leaves_no_record(broker: Arc<dyn Broker>) {
    let known = Known::new(&broker, Script::Say { pieces: 200, every_ms: 10 }).await;
    let mut setup = known.setup.clone();
    setup.grace = Duration::from_millis(10);
    known.hold(1).await.requeue().await.unwrap();
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    until("a run to begin", async || !runs(known.seed).is_empty()).await;
    assert_eq!(known.recorded().await, Some(1), "recorded before it begins");
    worker.stop().await.unwrap();
    assert_eq!(known.recorded().await, None, "it was given back in good order");
    let _next = setup.worker::<Scripted>(broker, ()).await.unwrap();
    until("the next run", async || runs(known.seed).len() == 2).await;
    assert_eq!(known.recorded().await, Some(1));
    until("its end", async || runs(known.seed)[1].until.is_some()).await;
    until("the record's end", async || known.recorded().await.is_none()).await;
}

/// The reply queue of the forged copy does not exist, so its client counts as gone.
async fn r6_a_forged_reply_to_takes_no_reply_away(broker: Arc<dyn Broker>) {
    for beside in [false, true] {
        let mut setup = Setup::new().unwrap();
        setup.timing.client_gone_after = Duration::from_millis(300);
        let rival = broker.connect("rival").await.unwrap();
        rival.declare_model(&setup.model).await.unwrap();
        let client = setup.client(broker.clone()).await.unwrap();
        let seed = fresh_seed();
        let pieces = if beside { 30 } else { 300 };
        let asked = ask(&setup, Script::Say { pieces, every_ms: 10 }, seed);
        let reply = client.submit::<String>(asked).await.unwrap();
        let queue = model_queue(&setup.model);
        let mut taken = rival.consume(&queue, 1).await.unwrap();
        let genuine = taken.recv().await.unwrap();
        let mut forged = genuine.message.clone();
        forged.properties.reply_to = Some(reply_queue(u128::from(seed)));
        let publisher = rival.publisher().await.unwrap();
        publisher.publish("", &queue, forged).await.unwrap().await.unwrap();
        drop(taken);
        let _worker = setup.worker::<Two>(broker.clone(), ()).await.unwrap();
        until("the forged copy to run", async || !runs(seed).is_empty()).await;
        if !beside {
            until("its client to be gone", async || runs(seed)[0].until.is_some()).await;
        }
        genuine.requeue().await.unwrap();
        assert_eq!(reply.collect().await.unwrap().0, said(seed, pieces), "beside: {beside}");
        assert_eq!(runs(seed).len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_suspect_that_waits_keeps_no_delivery_from_an_idle_worker() {
    let memory = MemoryBroker::new();
    let broker: Arc<dyn Broker> = Arc::new(memory.clone());
    let mut known = Known::new(&broker, Script::Say { pieces: 1, every_ms: 0 }).await;
    known.setup.timing.record_wait = Duration::ZERO;
    let setup = Setup { worker: "busy".into(), ..known.setup.clone() };
    known.enter(1).await;
    let suspect = known.hold(1).await;
    let records = Arc::new(Records::of(&broker, false));
    let _busy = setup.worker::<Two>(records.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let long = fresh_seed();
    let asked = ask(&setup, Script::Say { pieces: 400, every_ms: 10 }, long);
    let _long = client.submit::<String>(asked).await.unwrap();
    until("a long run", async || !runs(long).is_empty()).await;
    suspect.requeue().await.unwrap();
    records.suspect_waits().await;
    assert!(runs(known.seed).is_empty(), "it runs alone");
    let idle = Setup { worker: "idle".into(), ..setup.clone() };
    let _idle = idle.worker::<Scripted>(broker, ()).await.unwrap();
    for _ in 0..6 {
        let asked = ask(&setup, Script::Say { pieces: 1, every_ms: 0 }, 7);
        let reply = client.submit::<String>(asked).await.unwrap();
        let ended = timeout(Duration::from_millis(500), reply.collect()).await;
        ended.expect("the idle worker has it").unwrap();
    }
    assert!(runs(long)[0].until.is_none(), "the long run was over before the end of the test");
    until("the suspect's turn", async || runs(known.seed).len() == 1).await;
    assert!(runs(long)[0].until.is_some_and(|until| until <= runs(known.seed)[0].from));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_run_whose_worker_is_killed_stays_recorded_and_a_delivery_that_waits_does_not() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut known = Known::new(&broker, Script::Sleep { ms: 20_000 }).await;
    known.publish(0).await;
    for (kill, recorded) in [(1, None), (2, Some(1)), (3, Some(2))] {
        let (process, _worker) = process::<Scripted>(&known.setup, broker.clone()).await;
        until("a run to begin", async || runs(known.seed).len() == kill).await;
        process.shutdown_background();
        until("its delivery to come back", async || {
            let depth = known.connection.depth(&model_queue(&known.setup.model)).await;
            depth.unwrap().messages == 1
        })
        .await;
        assert_eq!(known.recorded().await, recorded, "after kill {kill}");
    }
    // The suspect waits behind a run that does not end, and the worker of both is killed.
    let client = known.setup.client(broker.clone()).await.unwrap();
    let neighbor = fresh_seed();
    let mut taken = known.connection.consume(&model_queue(&known.setup.model), 1).await.unwrap();
    let suspect = taken.recv().await.unwrap();
    known.setup.timing.record_wait = Duration::ZERO;
    let records = Arc::new(Records::of(&broker, false));
    let (process, _worker) = process::<Two>(&known.setup, records.clone()).await;
    let asked = ask(&known.setup, Script::Sleep { ms: 20_000 }, neighbor);
    let _reply = client.submit::<String>(asked).await.unwrap();
    drop(taken);
    until("the neighbor's run", async || !runs(neighbor).is_empty()).await;
    suspect.requeue().await.unwrap();
    records.suspect_waits().await;
    process.shutdown_background();
    until("both deliveries to come back", async || {
        let depth = known.connection.depth(&model_queue(&known.setup.model)).await;
        depth.unwrap().messages == 2
    })
    .await;
    assert_eq!((known.recorded().await, runs(known.seed).len()), (Some(2), 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_worker_that_was_only_cut_off_takes_its_run_off_the_record() {
    let memory = MemoryBroker::new();
    let broker: Arc<dyn Broker> = Arc::new(memory.clone());
    let known = Known::new(&broker, Script::Say { pieces: 300, every_ms: 10 }).await;
    let setup = Setup { worker: "cut".into(), ..known.setup.clone() };
    known.hold(1).await.requeue().await.unwrap();
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    until("a run to begin", async || !runs(known.seed).is_empty()).await;
    assert_eq!(known.recorded().await, Some(1));
    let mut taken = known.connection.consume(&model_queue(&setup.model), 1).await.unwrap();
    memory.cut("cut consume");
    let copy = taken.recv().await.unwrap();
    until("the worker to be back", async || known.recorded().await.is_none()).await;
    assert!(runs(known.seed)[0].until.is_none(), "it still runs");
    drop(taken);
    copy.requeue().await.unwrap();
    until("the run to be adopted and recorded", async || known.recorded().await == Some(1)).await;
    assert_eq!(runs(known.seed).len(), 1);
}

/// A client without pieces answers so, and the worker does not wait for more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_a_client_that_has_nothing_lets_the_worker_begin() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut setup = Setup::new().unwrap();
    // Without the client's answer, the worker would wait beyond the request's deadline.
    setup.timing.min_resume_wait = Duration::from_secs(60);
    setup.reply.resume_wait_ms = 60_000;
    let rival = broker.connect("rival").await.unwrap();
    rival.declare_model(&setup.model).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let asked = ask(&setup, Script::Say { pieces: 1, every_ms: 0 }, seed);
    let reply = client.submit::<String>(asked).await.unwrap();
    let mut taken = rival.consume(&model_queue(&setup.model), 1).await.unwrap();
    taken.recv().await.unwrap().requeue().await.unwrap();
    drop(taken);
    let _worker = setup.worker::<Scripted>(broker, ()).await.unwrap();
    reply.collect().await.unwrap();
}

/// A copy with forged headers from another publisher counts as a first delivery.
async fn r1_runs_of_other_copies_are_no_blame(broker: Arc<dyn Broker>) {
    let known = Known::new(&broker, Script::Say { pieces: 1, every_ms: 0 }).await;
    known.enter(POISON_RUNS + 5).await;
    known.publish(7).await;
    let _worker = known.setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    until("its run", async || runs(known.seed).len() == 1).await;
}

async fn r5_a_suspect_whose_workers_come_back_is_none(broker: Arc<dyn Broker>) {
    let mut known = Known::new(&broker, Script::Say { pieces: 1, every_ms: 0 }).await;
    known.setup.timing.record_wait = Duration::ZERO;
    let records = Arc::new(Records::of(&broker, false));
    known.enter(1).await;
    let suspect = known.hold(1).await;
    let _worker = known.setup.worker::<Two>(records.clone(), ()).await.unwrap();
    let client = known.setup.client(broker.clone()).await.unwrap();
    let long = fresh_seed();
    let asked = ask(&known.setup, Script::Say { pieces: 900, every_ms: 10 }, long);
    let _long = client.submit::<String>(asked).await.unwrap();
    until("a long run", async || !runs(long).is_empty()).await;
    suspect.requeue().await.unwrap();
    records.suspect_waits().await;
    assert!(runs(known.seed).is_empty(), "it waits to run alone");
    known.connection.strike_run_record(&known.record()).await.unwrap();
    until("its run", async || runs(known.seed).len() == 1).await;
    assert!(runs(long)[0].until.is_none(), "it ran beside others");
}

/// Broker that counts how often a run record is read. It cannot keep records if it is `broken`: the
/// user lacks permission, or the node with the record is lost.
#[derive(Debug)]
struct Records<B> {
    inner: B,
    broken: bool,
    read: Arc<AtomicUsize>,
}

impl Records<Arc<dyn Broker>> {
    fn of(inner: &Arc<dyn Broker>, broken: bool) -> Self {
        Self { inner: inner.clone(), broken, read: Arc::default() }
    }

    /// Waits until a worker without a `record_wait` has a suspect that waits. The first read makes
    /// the request a suspect; only one that waits has its record read again.
    async fn suspect_waits(&self) {
        until("a suspect to wait", async || self.read.load(Ordering::SeqCst) >= 2).await;
    }
}

impl<B> Records<B> {
    fn check(&self) -> nsbridge_queue::Result<()> {
        let reason = "home node is down or inaccessible".to_owned();
        if self.broken { Err(QueueError::Lost { reason }) } else { Ok(()) }
    }
}

#[async_trait]
impl Broker for Records<Arc<dyn Broker>> {
    async fn connect(&self, name: &str) -> nsbridge_queue::Result<Arc<dyn Connection>> {
        let (inner, read) = (self.inner.connect(name).await?, self.read.clone());
        Ok(Arc::new(Records { inner, broken: self.broken, read }))
    }

    async fn listens(&self) -> bool {
        self.inner.listens().await
    }
}

#[async_trait]
impl Connection for Records<Arc<dyn Connection>> {
    async fn declare_run_record(&self, queue: &str) -> nsbridge_queue::Result<u32> {
        self.check()?;
        let entries = self.inner.declare_run_record(queue).await;
        self.read.fetch_add(1, Ordering::SeqCst);
        entries
    }

    async fn strike_run_record(&self, queue: &str) -> nsbridge_queue::Result<()> {
        self.check()?;
        self.inner.strike_run_record(queue).await
    }

    async fn delete_run_record(&self, queue: &str) -> nsbridge_queue::Result<()> {
        self.check()?;
        self.inner.delete_run_record(queue).await
    }

    async fn declare_model(&self, model: &ModelName) -> nsbridge_queue::Result<()> {
        self.inner.declare_model(model).await
    }

    async fn declare_reply_queue(&self, queue: &str) -> nsbridge_queue::Result<()> {
        self.inner.declare_reply_queue(queue).await
    }

    async fn declare_control_queue(
        &self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
    ) -> nsbridge_queue::Result<()> {
        self.inner.declare_control_queue(queue, model, revision).await
    }

    async fn lock(&self, name: &str) -> nsbridge_queue::Result<bool> {
        self.inner.lock(name).await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> nsbridge_queue::Result<Consumer> {
        self.inner.consume(queue, prefetch).await
    }

    async fn consume_paused(&self, queue: &str, prefetch: u16) -> nsbridge_queue::Result<Consumer> {
        self.inner.consume_paused(queue, prefetch).await
    }

    async fn publisher(&self) -> nsbridge_queue::Result<Box<dyn Publisher>> {
        self.inner.publisher().await
    }

    async fn depth(&self, queue: &str) -> nsbridge_queue::Result<Depth> {
        self.inner.depth(queue).await
    }

    fn is_blocked(&self) -> bool {
        self.inner.is_blocked()
    }

    async fn lost(&self) -> QueueError {
        self.inner.lost().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

async fn r1_a_record_that_cannot_be_kept_keeps_no_request_from_running(broker: Arc<dyn Broker>) {
    // One request runs beside others. The fallback treats the other one as a suspect.
    for deliveries in [1, 3] {
        let known = Known::new(&broker, Script::Say { pieces: 1, every_ms: 0 }).await;
        known.hold(deliveries).await.requeue().await.unwrap();
        let keepless = Arc::new(Records::of(&broker, true));
        let _worker = known.setup.worker::<Scripted>(keepless, ()).await.unwrap();
        until("its run", async || runs(known.seed).len() == 1).await;
        until("its ack", async || {
            let queue = model_queue(&known.setup.model);
            known.connection.depth(&queue).await.unwrap().messages == 0
        })
        .await;
    }
}
