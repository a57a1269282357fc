//! Workers that die, panic, fail and lose their connections.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::ErrorCode;
use nsbridge_queue::{AmqpBroker, Broker, Limits, MemoryBroker};
use nsbridge_testkit::Proxy;
use nsbridge_testkit::system::Setup;
use nsbridge_testkit::system::client::{Error, Event};
use tokio::time::timeout;

use crate::script::{Script, Scripted, ask, fresh_seed, runs, said, submit, system, until};
use crate::stories;
use crate::watch::value;

stories! {
    r3_a_failing_model_is_tried_again_and_then_told,
    r3_a_failure_for_good_is_told_at_once_without_its_cause,
    a_panic_gives_the_job_back_and_ends_the_worker,
    r7_a_job_that_does_not_fit_the_grace_moves_to_another_worker,
    a_piece_that_no_frame_holds_ends_the_request,
}

async fn r3_a_failing_model_is_tried_again_and_then_told(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    // Ten seconds allow the first retry (1 s) but not the second (10 s).
    let ended = submit(&client, &setup, Script::Fail).await.unwrap().collect().await;
    assert!(matches!(ended, Err(Error::Failed { code: ErrorCode::ModelFailed, .. })), "{ended:?}");
    let next = submit(&client, &setup, Script::Say { pieces: 3, every_ms: 0 }).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, said(7, 3));
}

async fn r3_a_failure_for_good_is_told_at_once_without_its_cause(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let fail = ask(&setup, Script::FailForGood, fresh_seed());
    let seed = fail.seed.unwrap();
    let ended = client.submit::<String>(fail).await.unwrap().collect().await;
    let Err(Error::Failed { code: ErrorCode::ModelFailed, message, .. }) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(message, "the model failed on this request");
    assert_eq!(runs(seed).len(), 1);
}

async fn a_panic_gives_the_job_back_and_ends_the_worker(broker: Arc<dyn Broker>) {
    let (setup, worker, client) = system(broker.clone()).await;
    let once = ask(&setup, Script::PanicOnce, fresh_seed());
    let reply = client.submit::<String>(once).await.unwrap();
    let said = worker.ended().await.unwrap_err().to_string();
    assert!(said.contains("it panicked"), "{said}");
    let _second = setup.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(reply.collect().await.unwrap().0, ["one", "two"]);
}

/// The settlement waits for the stream, which cannot open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_handler_ends_its_worker_while_no_stream_opens() {
    for script in [Script::PanicOnce, Script::Break] {
        let broker = MemoryBroker::new();
        let mut setup = Setup::new().unwrap();
        setup.grace = Duration::from_millis(100);
        setup.timing.send_margin = Duration::from_millis(100);
        let worker = setup.worker::<Scripted>(Arc::new(broker.clone()), ()).await.unwrap();
        let client = setup.client(Arc::new(broker.clone())).await.unwrap();
        let reply = submit(&client, &setup, Script::Say { pieces: 1, every_ms: 0 }).await.unwrap();
        reply.collect().await.unwrap();
        broker.refuse();
        broker.cut(&format!("{} publish", setup.worker));
        let broken = ask(&setup, script.clone(), fresh_seed());
        let seed = broken.seed.unwrap();
        let _reply = client.submit::<String>(broken).await.unwrap();
        timeout(Duration::from_secs(5), worker.drain().begun()).await.expect("it must leave");
        let ended = worker.ended().await.unwrap_err().to_string();
        assert!(ended.contains("it panicked") || ended.contains("a fatal error"), "{ended}");
        assert!(!ended.contains("SECRET"), "{ended}");
        assert_eq!(runs(seed).len(), 1);
        assert_eq!(value(&setup.observability.metrics, "nsbridge_attempts_opened_total", ""), 1.0);
    }
}

async fn r7_a_job_that_does_not_fit_the_grace_moves_to_another_worker(broker: Arc<dyn Broker>) {
    let mut setup = Setup::new().unwrap();
    setup.grace = Duration::from_millis(100);
    setup.timing.min_resume_wait = Duration::from_secs(3);
    let first = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let asked = ask(&setup, Script::Say { pieces: 1000, every_ms: 2 }, seed);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    // The client has more than one frame of pieces before the worker leaves.
    for _ in 0..500 {
        reply.next().await.unwrap().unwrap();
    }
    first.stop().await.unwrap();
    let _second = setup.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(rest(reply).await, said(seed, 1000)[500..]);
    assert!(runs(seed)[1].resumed >= 500, "the second worker went on after the first's");
}

async fn a_piece_that_no_frame_holds_ends_the_request(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let ended = submit(&client, &setup, Script::Big { bytes: 100_000 }).await.unwrap();
    let ended = ended.collect().await;
    assert!(
        matches!(ended, Err(Error::Failed { code: ErrorCode::ReplyTooLarge, .. })),
        "{ended:?}"
    );
}

/// Returns the remaining pieces and panics on a restart.
pub(crate) async fn rest(
    mut reply: nsbridge_testkit::system::client::Reply<String>,
) -> Vec<String> {
    let mut pieces = Vec::new();
    while let Some(event) = reply.next().await {
        match event.unwrap() {
            Event::Piece(piece) => pieces.push(piece),
            Event::Done(_) => return pieces,
            Event::Waiting => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("the reply ended without an end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_a_reply_goes_on_when_only_the_publishing_connection_is_cut() {
    let broker = MemoryBroker::new();
    let (setup, _worker, client) = system(Arc::new(broker.clone())).await;
    let mut reply =
        submit(&client, &setup, Script::Say { pieces: 100, every_ms: 10 }).await.unwrap();
    for i in 0..100 {
        assert_eq!(reply.next().await.unwrap().unwrap(), Event::Piece(said(7, 100)[i].clone()));
        if [10, 40, 41].contains(&i) {
            broker.cut(&format!("{} publish", setup.worker));
        }
    }
    assert!(matches!(reply.next().await, Some(Ok(Event::Done(_)))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_and_client_come_back_when_every_connection_is_cut() {
    let url = nsbridge_testkit::amqp_url();
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap();
    let proxy = Proxy::to(format!("127.0.0.1:{port}").parse().unwrap()).unwrap();
    let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()));
    let broker: Arc<dyn Broker> = Arc::new(AmqpBroker::new(&through).unwrap());
    let (setup, _worker, client) = system(broker).await;
    let mut long = ask(&setup, Script::Say { pieces: 60, every_ms: 20 }, 7);
    long.timeout = Duration::from_secs(60);
    let mut reply = client.submit::<String>(long).await.unwrap();
    reply.next().await.unwrap().unwrap();
    proxy.cut();
    assert_eq!(rest(reply).await, said(7, 60)[1..]);
}

/// Loses the reply queue of a client in mid-reply, and mends the fault once the worker has stopped the run.
/// Checks that the client asks again and goes on where it was.
async fn goes_on_without_its_reply_queue(
    broker: &MemoryBroker,
    lose: impl FnOnce(&MemoryBroker),
    mend: impl FnOnce(&MemoryBroker),
) {
    let mut setup = Setup::new().unwrap();
    setup.timing.client_gone_after = Duration::from_millis(300);
    let _worker = setup.worker::<Scripted>(Arc::new(broker.clone()), ()).await.unwrap();
    let client = setup.client(Arc::new(broker.clone())).await.unwrap();
    let seed = fresh_seed();
    let mut long = ask(&setup, Script::Say { pieces: 200, every_ms: 20 }, seed);
    long.timeout = Duration::from_secs(60);
    let mut reply = client.submit::<String>(long).await.unwrap();
    for _ in 0..20 {
        reply.next().await.unwrap().unwrap();
    }
    lose(broker);
    // Without the loss the run would end by itself 3.6 s later.
    let stopped = until("the run to be stopped", async || runs(seed)[0].until.is_some());
    timeout(Duration::from_secs(3), stopped).await.expect("the run has kept its slot");
    mend(broker);
    assert_eq!(rest(reply).await, said(seed, 200)[20..]);
}

/// RabbitMQ 4.3 refuses the frames for a queue whose node is down, as it does if the queue is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_a_client_whose_reply_queue_is_on_a_node_that_is_down_is_gone_and_asks_again() {
    let broker = MemoryBroker::new();
    goes_on_without_its_reply_queue(&broker, MemoryBroker::take_reply_queues_down, |_| {}).await;
}

/// The outage lasts until the worker considers the client gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_client_whose_reply_queue_was_lost_asks_again_and_goes_on_where_it_was() {
    let limits = Limits { reply_lease: Duration::from_millis(300), ..Limits::default() };
    let broker = MemoryBroker::with_limits(limits);
    let cut = |broker: &MemoryBroker| {
        broker.refuse();
        broker.cut("test client replies");
    };
    goes_on_without_its_reply_queue(&broker, cut, MemoryBroker::accept).await;
}
