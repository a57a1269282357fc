//! Protocol rules that only deliberate violations exercise.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nsbridge::worker::Timing;
use nsbridge_crypto::{Entry, Key, Keyring, Read, ReplyHead, ReplyKind, ReplyOpener, State};
use nsbridge_handler::{Fingerprint, Finish, Handler, Job, Models, Result};
use nsbridge_protocol::topology::{model_queue, reply_queue};
use nsbridge_protocol::{ErrorCode, Pieces};
use nsbridge_queue::{Broker, Limits, MemoryBroker, Message};
use nsbridge_testkit::system::client::{Client, Event, Reply, ResumePoint};
use nsbridge_testkit::system::{Running, Setup};
use tokio::time::timeout;

use crate::script::{
    Script, Scripted, Two, ask, fresh_seed, process, release, runs, said, sealed, submit, system,
    until, with_key,
};
use crate::stories;
use crate::trouble::rest;
use crate::watch::{becomes, value};

stories! {
    l11_work_is_charged_to_whoever_the_key_proves,
    r3_an_unknown_key_waits_for_its_rotation,
    r6_a_request_that_was_published_twice_runs_once,
}

/// A client with a key for many tenants is one account, whatever tenant it claims.
async fn l11_work_is_charged_to_whoever_the_key_proves(broker: Arc<dyn Broker>) {
    for is_master in [false, true] {
        let mut setup = Setup::new().unwrap();
        let mut entry =
            Entry::new("test".parse().unwrap(), Key::generate().unwrap(), State::Primary);
        entry.is_master = is_master;
        setup.keys = Arc::new(Keyring::of(vec![entry]).unwrap());
        let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
        let client = setup.client(broker.clone()).await.unwrap();
        let mut said = Vec::new();
        for script in [Script::Account, Script::Scope] {
            for tenant in ["one", "two"] {
                let mut asked = ask(&setup, script.clone(), 7);
                asked.tenant = tenant.parse().unwrap();
                let reply = client.submit::<String>(asked).await.unwrap();
                said.push(reply.collect().await.unwrap().0.concat());
            }
        }
        assert_eq!(said[0] == said[1], !is_master, "{said:?}");
        assert_ne!(said[2], said[3], "what was computed is shared with no other tenant");
    }
}

async fn r3_an_unknown_key_waits_for_its_rotation(broker: Arc<dyn Broker>) {
    let setup = Setup::new().unwrap();
    let _old = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let new = Entry::new("new".parse().unwrap(), Key::generate().unwrap(), State::Primary);
    let keys = Arc::new(Keyring::of(vec![new]).unwrap());
    let rotated = Setup { keys, worker: "rotated".into(), ..setup.clone() };
    let client = rotated.client(broker.clone()).await.unwrap();
    let asked = ask(&rotated, Script::Say { pieces: 3, every_ms: 0 }, 7);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    // The client learns at once why it waits. The hint is unsealed, so it is not trusted.
    assert_eq!(reply.next().await.unwrap().unwrap(), Event::Hint(ErrorCode::UnknownKey));
    drop(_old);
    let _new = rotated.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(reply.collect().await.unwrap().0, said(7, 3));
}

async fn r6_a_request_that_was_published_twice_runs_once(broker: Arc<dyn Broker>) {
    let setup = Setup::new().unwrap();
    let rival = broker.connect("rival").await.unwrap();
    rival.declare_model(&setup.model).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let asked = ask(&setup, Script::Say { pieces: 50, every_ms: 10 }, seed);
    let reply = client.submit::<String>(asked).await.unwrap();
    // The same bytes are published again, as by a client whose publisher confirm was lost.
    let queue = model_queue(&setup.model);
    let mut taken = rival.consume(&queue, 1).await.unwrap();
    let copy = taken.recv().await.unwrap();
    let publisher = rival.publisher().await.unwrap();
    publisher.publish("", &queue, copy.message.clone()).await.unwrap().await.unwrap();
    copy.requeue().await.unwrap();
    drop(taken);
    let _worker = setup.worker::<Two>(broker, ()).await.unwrap();
    assert_eq!(reply.collect().await.unwrap().0, said(seed, 50));
    let next = ask(&setup, Script::Say { pieces: 1, every_ms: 0 }, 7);
    client.submit::<String>(next).await.unwrap().collect().await.unwrap();
    assert_eq!(runs(seed).len(), 1);
}

/// Handler with another fingerprint, like a new revision of a model. It must never resume.
#[derive(Debug)]
struct Revised;

impl Handler for Revised {
    type Options = ();
    type Input = Script;
    type Output = String;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, _: Script, job: &mut Job<String>) -> Result<Finish> {
        assert!(job.accept_resume().is_empty(), "pieces of another arithmetic were mixed in");
        for _ in 0..3 {
            job.emit("revised ".into())?;
        }
        Ok(Finish::STOP)
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(*b"another revision"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_a_first_delivery_is_called_and_cancelled_while_its_stream_opens() {
    let broker = MemoryBroker::new();
    let (setup, _worker, client) = system(Arc::new(broker.clone())).await;
    let metrics = &setup.observability.metrics;
    let reply = submit(&client, &setup, Script::Say { pieces: 1, every_ms: 0 }).await.unwrap();
    reply.collect().await.unwrap();
    // The client is connected, and the worker can open no stream.
    broker.refuse();
    broker.cut(&format!("{} publish", setup.worker));
    let (endless, seed) = (Script::Say { pieces: 1_000_000, every_ms: 5 }, fresh_seed());
    let mut reply = client.submit::<String>(ask(&setup, endless, seed)).await.unwrap();
    until("the call to begin", async || runs(seed).len() == 1).await;
    reply.cancel();
    until("the call to end", async || runs(seed)[0].until.is_some()).await;
    assert_eq!(value(metrics, "nsbridge_attempts_opened_total", ""), 1.0);
    broker.accept();
    becomes(metrics, "nsbridge_requests_ended_total", "\"cancelled\"", 1.0).await;
    assert_eq!(value(metrics, "nsbridge_attempts_opened_total", ""), 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_pieces_of_another_fingerprint_are_not_gone_on_from_and_the_caller_is_told() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut setup = Setup::new().unwrap();
    setup.grace = Duration::from_millis(50);
    let first = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let asked = ask(&setup, Script::Say { pieces: 1000, every_ms: 5 }, 7);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    reply.next().await.unwrap().unwrap();
    first.stop().await.unwrap();
    let _second = setup.worker::<Revised>(broker, ()).await.unwrap();
    let (mut text, mut restarts) = (Vec::new(), 0);
    loop {
        match reply.next().await.unwrap().unwrap() {
            Event::Piece(piece) if restarts > 0 => text.push(piece),
            Event::Restarted { kept } => {
                assert_eq!(kept, 0);
                restarts += 1;
            }
            Event::Done(_) => break,
            _ => {}
        }
    }
    assert_eq!((restarts, text.concat().as_str()), (1, "revised revised revised "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_a_client_that_is_gone_stops_its_run() {
    let limits = Limits { reply_lease: Duration::from_millis(100), ..Limits::default() };
    let broker = MemoryBroker::with_limits(limits);
    let mut setup = Setup::new().unwrap();
    let gone_after = Duration::from_millis(400);
    setup.timing.client_gone_after = gone_after;
    let _worker = setup.worker::<Scripted>(Arc::new(broker.clone()), ()).await.unwrap();
    let client = setup.client(Arc::new(broker.clone())).await.unwrap();
    let seed = fresh_seed();
    let mut asked = ask(&setup, Script::Say { pieces: 1_000_000, every_ms: 5 }, seed);
    asked.timeout = Duration::from_secs(60);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    reply.next().await.unwrap().unwrap();
    let gone = Instant::now();
    broker.refuse();
    broker.cut("test client replies");
    until("the run for nobody to end", async || runs(seed)[0].until.is_some()).await;
    assert!(gone.elapsed() > gone_after, "a queue may be missing for a moment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_cannot_end_in_the_grace_moves_at_once_and_one_that_can_stays() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    for (pieces, moves) in [(100, false), (1_000_000, true)] {
        let mut setup = Setup::new().unwrap();
        // The endless job needs hours, so it moves at once or not within this test.
        setup.grace = Duration::from_secs(3600);
        let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
        let client = setup.client(broker.clone()).await.unwrap();
        let seed = fresh_seed();
        let mut asked = ask(&setup, Script::Say { pieces, every_ms: 10 }, seed);
        asked.timeout = Duration::from_secs(60);
        let mut reply = client.submit::<String>(asked).await.unwrap();
        for _ in 0..20 {
            reply.next().await.unwrap().unwrap();
        }
        timeout(Duration::from_secs(30), worker.stop()).await.expect("it stayed").unwrap();
        let (moved, metrics) = (f64::from(moves), &setup.observability.metrics);
        assert_eq!(value(metrics, "nsbridge_requests_ended_total", "\"moved\""), moved);
        if !moves {
            assert_eq!(rest(reply).await, said(seed, pieces)[20..]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_an_open_stream_is_heard_every_five_seconds_and_starts_at_the_first_piece() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let (mut setup, key) = with_key();
    setup.timing.heartbeat = Duration::from_millis(50);
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let connection = broker.connect("client").await.unwrap();
    let queue = reply_queue(7);
    connection.declare_reply_queue(&queue).await.unwrap();
    let seed = fresh_seed();
    let sealed = sealed(&setup, &key, seed, &Script::Hold);
    let mut message = Message::new(sealed.frame);
    message.properties.reply_to = Some(queue.clone());
    let publisher = connection.publisher().await.unwrap();
    publisher.publish("", &model_queue(&setup.model), message).await.unwrap().await.unwrap();
    let mut replies = connection.consume(&queue, 16).await.unwrap();
    let (mut kinds, mut opener) = (Vec::new(), None);
    while kinds.last() != Some(&ReplyKind::FinalOk) {
        let frame = timeout(Duration::from_secs(20), replies.recv()).await;
        let frame = frame.expect("nothing was heard for too long").unwrap();
        let body = frame.message.body.clone();
        frame.ack().await.unwrap();
        let head = ReplyHead::parse(&body).unwrap();
        if kinds.is_empty() {
            opener = Some(ReplyOpener::accept(&sealed.reply_root, &body).unwrap().0);
        } else if let Read::Frame(opened) = opener.as_mut().unwrap().read(&body).unwrap()
            && head.kind == ReplyKind::Data
        {
            let first = Pieces::decode(&opened.content).unwrap().first;
            assert_eq!(first as usize, kinds.iter().filter(|k| **k == ReplyKind::Data).count());
        }
        kinds.push(head.kind);
        let heartbeats = kinds.iter().filter(|kind| **kind == ReplyKind::Heartbeat).count();
        if heartbeats == 3 {
            release(seed);
        }
    }
    kinds.dedup();
    let expected = [ReplyKind::Open, ReplyKind::Data, ReplyKind::Heartbeat, ReplyKind::Data];
    assert_eq!(kinds[..4], expected);
    assert_eq!(Timing::default().heartbeat, Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_nothing_is_acked_before_the_last_frame_is_confirmed() {
    // The open frame fills the reply queue.
    let limits = Limits { reply_queue_bytes: 100, ..Limits::default() };
    let broker = MemoryBroker::with_limits(limits);
    let (setup, key) = with_key();
    let (process, _worker) = process::<Two>(&setup, Arc::new(broker.clone())).await;
    let connection = broker.connect("client").await.unwrap();
    let queue = reply_queue(8);
    connection.declare_reply_queue(&queue).await.unwrap();
    let mut message =
        Message::new(sealed(&setup, &key, 7, &Script::Say { pieces: 1, every_ms: 0 }).frame);
    message.properties.reply_to = Some(queue.clone());
    let publisher = connection.publisher().await.unwrap();
    let requests = model_queue(&setup.model);
    publisher.publish("", &requests, message).await.unwrap().await.unwrap();
    // The open, the piece and the end. The broker refuses the last two again and again.
    becomes(&setup.observability.metrics, "nsbridge_frames_sent_total", "", 3.0).await;
    // Meanwhile another request begins, ends and is acked.
    let client = setup.client(Arc::new(broker.clone())).await.unwrap();
    let asked = ask(&setup, Script::Say { pieces: 1, every_ms: 0 }, 7);
    client.submit::<String>(asked).await.unwrap().collect().await.unwrap();
    becomes(&setup.observability.metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    assert_eq!(connection.depth(&queue).await.unwrap().messages, 1, "only the open fits");
    process.shutdown_background();
    until("the request to come back, which was not acked", async || {
        connection.depth(&requests).await.unwrap().messages == 1
    })
    .await;
}

/// Stops a worker early, so that its client has 60 of the 100 pieces of a reply.
async fn sixty_of_a_hundred(
    setup: &mut Setup,
    broker: &Arc<dyn Broker>,
) -> (Running, Client, u64, Reply<String>) {
    setup.grace = Duration::from_millis(10);
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let asked = ask(setup, Script::Say { pieces: 100, every_ms: 10 }, seed);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    for _ in 0..60 {
        reply.next().await.unwrap().unwrap();
    }
    (worker, client, seed, reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_a_worker_that_may_not_resume_makes_it_all_again_and_nobody_sees() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut setup = Setup::new().unwrap();
    setup.reply.resume_from_client = false;
    let (first, _client, seed, reply) = sixty_of_a_hundred(&mut setup, &broker).await;
    first.stop().await.unwrap();
    let _second = setup.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(rest(reply).await, said(seed, 100)[60..]);
    assert_eq!(runs(seed)[1].resumed, 0, "it made all hundred pieces");
}

/// A process that kept the request and its pieces ends, and another one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_another_process_goes_on_after_the_pieces_that_were_kept() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut setup = Setup::new().unwrap();
    for kept in [60, 0] {
        let (worker, first, seed, reply) = sixty_of_a_hundred(&mut setup, &broker).await;
        let now = SystemTime::now();
        let json = |piece: String| serde_json::to_vec(&piece).unwrap();
        let pieces = said(seed, 100)[..kept].iter().cloned().map(json).collect();
        let (id, expires_at) = (reply.id(), now + Duration::from_secs(60));
        let point = ResumePoint::new(id, seed, now, expires_at).pieces(pieces, reply.fingerprint());
        let asked = ask(&setup, Script::Say { pieces: 100, every_ms: 10 }, seed);
        let second = setup.client(broker.clone()).await.unwrap();
        drop((reply, first));
        let continued = second.reattach::<String>(asked, point).await.unwrap();
        assert_eq!(continued.id(), id);
        assert_eq!(rest(continued).await, said(seed, 100)[kept..]);
        assert_eq!(runs(seed)[1].resumed, kept);
        worker.stop().await.unwrap();
    }
}

/// With 150 ms per call to the broker, the resume arrives after the minimum wait of 250 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_a_client_that_is_far_away_is_waited_for() {
    let memory = MemoryBroker::new();
    let broker: Arc<dyn Broker> = Arc::new(memory.clone());
    let mut setup = Setup::new().unwrap();
    let (first, _client, seed, reply) = sixty_of_a_hundred(&mut setup, &broker).await;
    memory.delay(Duration::from_millis(150));
    first.stop().await.unwrap();
    let _second = setup.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(rest(reply).await, said(seed, 100)[60..]);
    assert!(runs(seed)[1].resumed >= 60, "it made all hundred pieces again");
}
