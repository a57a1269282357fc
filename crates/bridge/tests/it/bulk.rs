//! Bulk requests beside interactive ones: order, preemption, deferral.

use std::sync::Arc;
use std::time::Duration;

use nsbridge::worker::Observability;
use nsbridge_handler::Models;
use nsbridge_protocol::Priority;
use nsbridge_protocol::topology::{
    DELIVERY_LIMIT, RETRY_TIERS, bulk_queue, dead_queue, header, model_queue, retry_queue,
};
use nsbridge_queue::{Broker, Confirmation, Connection, Header};
use nsbridge_testkit::system::client::{Client, Event, Reply, Request};
use nsbridge_testkit::system::{Running, Setup};

use crate::script::{Script, Scripted, Two, ask, fresh_seed, runs, said, until};
use crate::stories;
use crate::watch::{becomes, value};

stories! {
    r13_interactive_requests_run_before_bulk_ones,
    r13_a_preempted_reply_goes_on_with_equal_pieces,
    r13_a_much_preempted_request_is_no_dead_letter,
    r13_bulk_runs_in_a_slot_that_no_interactive_request_needs,
    r13_a_worker_with_bulk_off_takes_none,
    r3_a_bulk_request_that_waits_for_another_try_stays_bulk,
}

const PREEMPTIONS: &str = "nsbridge_preemptions_total";

const CONSUMED: &str = "messaging_client_consumed_messages_total";

/// Returns a setup whose workers take bulk requests soon after a slot is free.
fn setup() -> Setup {
    let mut setup = Setup::new().unwrap();
    setup.timing.bulk_linger = Duration::from_millis(50);
    setup
}

fn bulk(setup: &Setup, script: Script, seed: u64) -> Request<Script> {
    ask(setup, script, seed).priority(Priority::Bulk).timeout(Duration::from_secs(60))
}

fn say(pieces: usize) -> Script {
    Script::Say { pieces, every_ms: 5 }
}

/// Reads a reply to its end. It must never restart.
async fn read(mut reply: Reply<String>) -> Vec<String> {
    let mut pieces = Vec::new();
    loop {
        match reply.next().await.unwrap().unwrap() {
            Event::Piece(piece) => pieces.push(piece),
            Event::Done(_) => return pieces,
            Event::Restarted { kept } => panic!("it restarted after {kept} pieces"),
            _ => {}
        }
    }
}

/// Submits an interactive request and reads its reply.
async fn interrupt(client: &Client, setup: &Setup) {
    let seed = fresh_seed();
    let reply = client.submit::<String>(ask(setup, say(3), seed)).await.unwrap();
    assert_eq!(read(reply).await, said(seed, 3));
}

async fn depth(connection: &Arc<dyn Connection>, queue: &str) -> u32 {
    connection.depth(queue).await.unwrap().messages
}

async fn r13_interactive_requests_run_before_bulk_ones(broker: Arc<dyn Broker>) {
    let setup = setup();
    let connection = broker.connect("test").await.unwrap();
    connection.declare_model(&setup.model).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let (early, late): (Vec<u64>, Vec<u64>) = (0..3).map(|_| (fresh_seed(), fresh_seed())).unzip();
    let mut replies = Vec::new();
    for seed in &late {
        replies.push(client.submit::<String>(bulk(&setup, say(20), *seed)).await.unwrap());
    }
    for seed in &early {
        replies.push(client.submit::<String>(ask(&setup, say(20), *seed)).await.unwrap());
    }
    let _worker = setup.worker::<Scripted>(broker, ()).await.unwrap();
    for (reply, seed) in replies.into_iter().zip(late.iter().chain(&early)) {
        assert_eq!(read(reply).await, said(*seed, 20));
    }
    let last = early.iter().map(|seed| runs(*seed)[0].from).max();
    let first = late.iter().map(|seed| runs(*seed)[0].from).min();
    assert!(last < first, "a bulk request ran before an interactive one");
}

async fn r13_a_preempted_reply_goes_on_with_equal_pieces(broker: Arc<dyn Broker>) {
    let setup = setup();
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let seed = fresh_seed();
    let mut reply = client.submit::<String>(bulk(&setup, say(400), seed)).await.unwrap();
    let mut pieces = Vec::new();
    for run in 1..=3 {
        let enough = pieces.len() + 10;
        while pieces.len() < enough {
            match reply.next().await.unwrap().unwrap() {
                Event::Piece(piece) => pieces.push(piece),
                other => assert!(matches!(other, Event::Waiting), "{other:?}"),
            }
        }
        interrupt(&client, &setup).await;
        until("the bulk run to continue", async || runs(seed).len() > run).await;
    }
    pieces.extend(read(reply).await);
    assert_eq!(pieces, said(seed, 400), "each piece came once and in order");
    let runs = runs(seed);
    assert_eq!(runs.len(), 4);
    let resumed: Vec<usize> = runs.iter().map(|run| run.resumed).collect();
    assert!(resumed.is_sorted() && resumed[1] >= 10, "no run began over: {resumed:?}");
    assert_eq!(value(&setup.observability.metrics, PREEMPTIONS, ""), 3.0);
}

async fn r13_a_much_preempted_request_is_no_dead_letter(broker: Arc<dyn Broker>) {
    let setup = setup();
    let connection = broker.connect("test").await.unwrap();
    connection.declare_model(&setup.model).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let reply = client.submit::<String>(bulk(&setup, say(400), seed)).await.unwrap();
    // After eight copies a worker does not renew a message on its arrival any more. The next requeue
    // after these exceeds the broker's delivery limit.
    let queue = bulk_queue(&setup.model);
    let mut taken = connection.consume(&queue, 1).await.unwrap();
    let first = taken.recv().await.unwrap();
    let mut copy = first.message.clone();
    copy.properties.headers.insert(header::EPOCH.to_owned(), Header::Int(8));
    let publisher = connection.publisher().await.unwrap();
    let published = publisher.publish("", &queue, copy).await.unwrap().await.unwrap();
    assert_eq!(published, Confirmation::Ack);
    first.ack().await.unwrap();
    for _ in 1..DELIVERY_LIMIT {
        taken.recv().await.unwrap().requeue().await.unwrap();
    }
    let last = taken.recv().await.unwrap();
    // The end of a consumer returns what it has, and that counts too.
    taken.pause().await.unwrap();
    last.requeue().await.unwrap();
    drop(taken);
    let worker = setup.worker::<Scripted>(broker, ()).await.unwrap();
    for run in 1..=3 {
        until("a bulk run to begin", async || runs(seed).len() == run).await;
        interrupt(&client, &setup).await;
    }
    assert_eq!(read(reply).await, said(seed, 400));
    assert_eq!(runs(seed).len(), 4);
    worker.stop().await.unwrap();
    assert_eq!(depth(&connection, &dead_queue(&setup.model)).await, 0);
    assert_eq!(depth(&connection, &queue).await, 0);
}

async fn r13_bulk_runs_in_a_slot_that_no_interactive_request_needs(broker: Arc<dyn Broker>) {
    let setup = setup();
    let _worker = setup.worker::<Two>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let (long, seeds) = (fresh_seed(), [fresh_seed(), fresh_seed(), fresh_seed()]);
    let mut interactive = client.submit::<String>(ask(&setup, say(1000), long)).await.unwrap();
    interactive.next().await.unwrap().unwrap();
    let mut replies = Vec::new();
    for seed in seeds {
        replies.push(client.submit::<String>(bulk(&setup, say(20), seed)).await.unwrap());
    }
    for (reply, seed) in replies.into_iter().zip(seeds) {
        assert_eq!(read(reply).await, said(seed, 20));
    }
    let ran = runs(long);
    assert!(ran.len() == 1 && ran[0].until.is_none(), "the interactive request still runs");
    // A single slot was free, so the bulk requests ran one after another.
    let ran: Vec<_> = seeds.map(|seed| runs(seed)[0]).to_vec();
    assert!(ran.windows(2).all(|pair| pair[0].until.unwrap() <= pair[1].from));
    assert_eq!(value(&setup.observability.metrics, PREEMPTIONS, ""), 0.0);
    drop(interactive);
}

async fn r13_a_worker_with_bulk_off_takes_none(broker: Arc<dyn Broker>) {
    let mut setup = setup();
    setup.timing.depth_interval = Duration::from_millis(20);
    let builder = setup.builder(broker.clone()).bulk(false);
    let worker = builder.start::<Scripted>((), Models::default()).await.unwrap();
    let _off = Running::start(worker).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let reply = client.submit::<String>(bulk(&setup, say(3), seed)).await.unwrap();
    let metrics = &setup.observability.metrics;
    becomes(metrics, "nsbridge_queue_messages", "\"bulk\"", 1.0).await;
    interrupt(&client, &setup).await;
    assert!(runs(seed).is_empty());
    // The first worker has been idle for longer than the second one, and would wait for a shorter
    // time before it takes bulk requests.
    let mut second = setup.clone();
    second.observability = Observability::new(&second.model);
    second.timing.bulk_linger = 8 * setup.timing.bulk_linger;
    let _on = second.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(read(reply).await, said(seed, 3));
    assert_eq!(value(metrics, CONSUMED, ""), 1.0, "the interactive request");
    assert_eq!(value(&second.observability.metrics, CONSUMED, ""), 1.0, "the bulk request");
}

async fn r3_a_bulk_request_that_waits_for_another_try_stays_bulk(broker: Arc<dyn Broker>) {
    let setup = setup();
    let connection = broker.connect("test").await.unwrap();
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let _reply = client.submit::<String>(bulk(&setup, Script::Fail, fresh_seed())).await.unwrap();
    let waits = retry_queue(&setup.model, Priority::Bulk, RETRY_TIERS[0]);
    until("its copy to wait", async || depth(&connection, &waits).await == 1).await;
    worker.stop().await.unwrap();
    let queue = bulk_queue(&setup.model);
    until("its copy to come back", async || depth(&connection, &queue).await == 1).await;
    assert_eq!(depth(&connection, &model_queue(&setup.model)).await, 0);
}
