//! Calls that ignore a stop, and a thread that is blocked for all calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge::worker::Pages;
use nsbridge_crypto::{Read, ReplyHead, ReplyKind, ReplyOpener, Sealed};
use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models, Result};
use nsbridge_protocol::topology::{model_queue, reply_queue};
use nsbridge_protocol::{ErrorCode, Failure};
use nsbridge_queue::{Broker, Consumer, MemoryBroker, Message};
use nsbridge_testkit::http::get;
use nsbridge_testkit::system::{Setup, client};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::script::{
    Script, Scripted, Two, ask, fresh_seed, release, said, sealed_for, until, with_key,
};
use crate::stories;

stories! {
    h3_a_call_that_takes_no_notice_of_its_deadline_is_given_up_and_told,
    h3_a_call_that_never_returns_is_dropped_when_it_is_cancelled,
}

/// Publishes a sealed request and subscribes to its replies.
async fn send(broker: &Arc<dyn Broker>, setup: &Setup, sealed: &Sealed) -> Consumer {
    let connection = broker.connect("client").await.unwrap();
    let queue = reply_queue(fresh_seed().into());
    connection.declare_reply_queue(&queue).await.unwrap();
    let mut message = Message::new(sealed.frame.clone());
    message.properties.reply_to = Some(queue.clone());
    let publisher = connection.publisher().await.unwrap();
    publisher.publish("", &model_queue(&setup.model), message).await.unwrap().await.unwrap();
    connection.consume(&queue, 16).await.unwrap()
}

/// Reads the reply and returns the error that it ends with.
async fn failure(sealed: &Sealed, replies: &mut Consumer) -> Failure {
    let mut opener = None;
    loop {
        let delivery = timeout(Duration::from_secs(30), replies.recv()).await;
        let delivery = delivery.expect("the client is told nothing").unwrap();
        let body = delivery.message.body.clone();
        delivery.ack().await.unwrap();
        let head = ReplyHead::parse(&body).unwrap();
        let Some(opener) = opener.as_mut() else {
            opener = Some(ReplyOpener::accept(&sealed.reply_root, &body).unwrap().0);
            continue;
        };
        let Read::Frame(frame) = opener.read(&body).unwrap() else { continue };
        match head.kind {
            ReplyKind::FinalError => return serde_json::from_slice(&frame.content).unwrap(),
            ReplyKind::FinalOk | ReplyKind::Moved => panic!("it ended with {:?}", head.kind),
            _ => {}
        }
    }
}

async fn h3_a_call_that_takes_no_notice_of_its_deadline_is_given_up_and_told(
    broker: Arc<dyn Broker>,
) {
    let (mut setup, key) = with_key();
    let give_up_after = Duration::from_millis(300);
    setup.timing.give_up_call_after = give_up_after;
    setup.timing.probe_interval = Duration::from_millis(20);
    let _worker = setup.worker::<Two>(broker.clone(), ()).await.unwrap();
    let began = Instant::now();
    let (time, seed) = (Duration::from_secs(1), fresh_seed());
    let sealed = sealed_for(time, &setup, &key, seed, &Script::Hold);
    let mut replies = send(&broker, &setup, &sealed).await;
    let failure = timeout(Duration::from_secs(30), failure(&sealed, &mut replies)).await;
    let failure = failure.expect("the call was not given up");
    let took = began.elapsed();
    assert_eq!(failure.code, ErrorCode::Deadline);
    assert!(took >= time + give_up_after, "the deadline and the time to stop: {took:?}");
    // The slot stays occupied until the call returns. The other slot is usable.
    let metrics = setup.observability.metrics.clone();
    until("the lost slot to be told", async || {
        metrics.text().contains("nsbridge_calls_left_over{model=\"") && left_over(&setup) == 1.0
    })
    .await;
    let client = setup.client(broker.clone()).await.unwrap();
    let asked = ask(&setup, Script::Say { pieces: 3, every_ms: 1 }, 7);
    let reply = client.submit::<String>(asked).await.unwrap();
    assert_eq!(reply.collect().await.unwrap().0, said(7, 3));
    release(seed);
    until("the slot to come back", async || left_over(&setup) == 0.0).await;
    until("the worker to be alive", async || {
        nsbridge_report(&setup).await.contains("\"alive\":true")
    })
    .await;
}

fn left_over(setup: &Setup) -> f64 {
    let text = setup.observability.metrics.text();
    let line = text.lines().find(|line| line.starts_with("nsbridge_calls_left_over{")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Fetches the `/livez` page of the worker.
async fn nsbridge_report(setup: &Setup) -> String {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let pages = Pages::bind(any).await.unwrap();
    let at = pages.addr().unwrap();
    let (health, metrics) =
        (setup.observability.health.clone(), setup.observability.metrics.clone());
    let serving = tokio::spawn(pages.serve(health, metrics));
    let (_, page) = get(at, "/livez").await.unwrap();
    serving.abort();
    page
}

/// Actions of a call of [`Shared`].
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Deed {
    Say,
    /// Never returns, and ignores everything that arrives.
    Wait,
    /// Blocks the thread of all calls.
    Block {
        ms: u64,
    },
}

/// Handler whose calls share one thread, one call at a time.
#[derive(Debug)]
struct Shared;

impl AsyncHandler for Shared {
    type Options = ();
    type Input = Deed;
    type Output = String;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, deed: Deed, job: &mut AsyncJob<String>) -> Result<Finish> {
        match deed {
            Deed::Say => job.emit("said".to_owned()).await?,
            Deed::Wait => {
                job.emit("waits".to_owned()).await?;
                std::future::pending::<()>().await;
            }
            Deed::Block { ms } => {
                job.emit("blocks".to_owned()).await?;
                std::thread::sleep(Duration::from_millis(ms));
            }
        }
        Ok(Finish::STOP)
    }

    fn tasks(&self) -> usize {
        1
    }
}

async fn h3_a_call_that_never_returns_is_dropped_when_it_is_cancelled(broker: Arc<dyn Broker>) {
    let mut setup = Setup::new().unwrap();
    setup.timing.give_up_call_after = Duration::from_millis(300);
    setup.timing.probe_interval = Duration::from_millis(50);
    setup.timing.pulse_interval = Duration::from_millis(5);
    let _worker = setup.worker_async::<Shared>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let mut asked = client::Request::new(setup.model.clone(), setup.tenant()).input(Deed::Wait);
    asked.timeout = Duration::from_secs(60);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    reply.next().await.unwrap().unwrap();
    reply.cancel();
    let mut asked = client::Request::new(setup.model.clone(), setup.tenant()).input(Deed::Say);
    asked.timeout = Duration::from_secs(30);
    let next = client.submit::<String>(asked).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, ["said"]);
    until("nothing to be left", async || left_over(&setup) == 0.0).await;
}

/// Requests of a blocked thread go to another worker, and both health reports fail before the
/// worker leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h3_a_worker_whose_calls_stand_still_says_so_and_leaves() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut setup = Setup::new().unwrap();
    setup.timing.probe_interval = Duration::from_millis(100);
    setup.timing.pulse_interval = Duration::from_millis(5);
    let worker = setup.worker_async::<Shared>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let began = Instant::now();
    let deed = Deed::Block { ms: 60_000 };
    let mut asked = client::Request::new(setup.model.clone(), setup.tenant()).input(deed);
    asked.timeout = Duration::from_secs(120);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    reply.next().await.unwrap().unwrap();
    until("both pages to say so", async || {
        let report = nsbridge_report(&setup).await;
        report.contains("\"alive\":false") && report.contains("\"calls_ok\":false")
    })
    .await;
    let checks = 4 * setup.timing.probe_interval;
    assert!(began.elapsed() > checks, "{:?}", began.elapsed());
    let said = timeout(Duration::from_secs(60), worker.ended()).await.expect("it must leave");
    let said = said.unwrap_err().to_string();
    assert!(said.contains("stood still"), "{said}");
    // The worker has requeued the request, so another one takes it at once.
    let other = Setup {
        observability: nsbridge::worker::Observability::new(&setup.model),
        ..setup.clone()
    };
    let _other = other.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let connection = broker.connect("look").await.unwrap();
    until("the request to be taken", async || {
        connection.depth(&model_queue(&setup.model)).await.unwrap().messages == 0
    })
    .await;
}
