//! Requests that only one revision of a model may answer.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::topology::{RETRY_TIERS, dead_queue, header, retry_queue};
use nsbridge_protocol::{ErrorCode, Priority, Revision};
use nsbridge_queue::Broker;
use nsbridge_testkit::system::Setup;
use nsbridge_testkit::system::client::{Error, Event, Request};
use tokio::time::timeout;

use crate::script::{Script, Scripted, ask, fresh_seed, runs, said};
use crate::stories;

stories! {
    r12_a_pinned_request_waits_for_a_worker_of_its_revision,
    r12_a_request_whose_revision_no_worker_serves_is_a_dead_letter,
    r12_a_request_waits_for_a_worker_of_its_revision_that_is_busy,
    r12_a_worker_that_knows_no_revision_answers_no_pinned_request,
    r12_a_request_that_is_not_pinned_is_answered_by_any_revision,
}

fn setup(revision: Option<&str>) -> Setup {
    let revision = revision.map(|text| text.parse().unwrap());
    Setup { revision, ..Setup::new().unwrap() }
}

fn pinned(setup: &Setup, seed: u64, revision: &str) -> Request<Script> {
    let mut asked = ask(setup, Script::Say { pieces: 3, every_ms: 0 }, seed);
    asked.revision = Some(revision.parse().unwrap());
    asked
}

fn revision(text: &str) -> Option<Revision> {
    Some(text.parse().unwrap())
}

async fn r12_a_pinned_request_waits_for_a_worker_of_its_revision(broker: Arc<dyn Broker>) {
    let setup = setup(Some("2026-11-20-old"));
    let old = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let asked = pinned(&setup, seed, "2026-11-21-new");
    let mut reply = client.submit::<String>(asked).await.unwrap();
    // The client learns at once why the request waits, and that it has not failed.
    assert_eq!(reply.next().await.unwrap().unwrap(), Event::Hint(ErrorCode::WrongRevision));
    assert_eq!(reply.revision(), None);
    drop(old);
    let new = Setup { revision: revision("2026-11-21-new"), ..setup.clone() };
    let _new = new.worker::<Scripted>(broker, ()).await.unwrap();
    let mut pieces = Vec::new();
    while let Some(event) = reply.next().await {
        match event.unwrap() {
            Event::Piece(piece) => pieces.push(piece),
            Event::Restarted { kept } => pieces.truncate(kept),
            _ => {}
        }
    }
    assert_eq!(pieces, said(seed, 3));
    assert_eq!(reply.revision(), revision("2026-11-21-new"));
    assert_eq!(runs(seed).len(), 1);
}

async fn r12_a_request_waits_for_a_worker_of_its_revision_that_is_busy(broker: Arc<dyn Broker>) {
    let setup = setup(Some("b"));
    let _busy = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let long = pinned(&setup, fresh_seed(), "b");
    let long = long.input(Script::Say { pieces: 300, every_ms: 10 });
    let mut first = client.submit::<String>(long).await.unwrap();
    first.next().await.unwrap().unwrap();
    let other = Setup { revision: revision("a"), worker: "other".into(), ..setup.clone() };
    let _other = other.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let rival = broker.connect("rival").await.unwrap();
    let seed = fresh_seed();
    let mut second = client.submit::<String>(pinned(&setup, seed, "b")).await.unwrap();
    assert_eq!(second.next().await.unwrap().unwrap(), Event::Hint(ErrorCode::WrongRevision));
    // The wait does not count as one of the few tries.
    let waiting = retry_queue(&setup.model, Priority::Interactive, RETRY_TIERS[0]);
    let mut waits = rival.consume(&waiting, 1).await.unwrap();
    let copy = timeout(Duration::from_secs(1), waits.recv()).await.unwrap().unwrap();
    assert_eq!(copy.message.properties.int(header::TRIES), None);
    assert_eq!(copy.message.properties.int(header::EPOCH), Some(1));
    copy.requeue().await.unwrap();
    drop(waits);
    let mut pieces = Vec::new();
    while let Some(event) = second.next().await {
        if let Event::Piece(piece) = event.unwrap() {
            pieces.push(piece);
        }
    }
    assert_eq!(pieces, said(seed, 3));
}

async fn r12_a_request_whose_revision_no_worker_serves_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let setup = setup(Some("a"));
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let seed = fresh_seed();
    let mut asked = pinned(&setup, seed, "b");
    // There is time for the first retry, after 1 s, but not for the second, after 10 s.
    asked.timeout = Duration::from_secs(5);
    let ended = client.submit::<String>(asked).await.unwrap().collect().await;
    let Err(Error::Failed { code: ErrorCode::WrongRevision, message }) = ended else {
        panic!("{ended:?}");
    };
    assert!(message.contains("revision b") && message.contains("serves a"), "{message}");
    let rival = broker.connect("rival").await.unwrap();
    let mut dead = rival.consume(&dead_queue(&setup.model), 1).await.unwrap();
    let letter = timeout(Duration::from_secs(5), dead.recv()).await.unwrap().unwrap();
    let properties = &letter.message.properties;
    assert_eq!(properties.text(header::REASON), Some("wrong-revision"));
    assert_eq!(properties.int(header::TRIES), Some(1));
    assert!(runs(seed).is_empty());
}

async fn r12_a_worker_that_knows_no_revision_answers_no_pinned_request(broker: Arc<dyn Broker>) {
    let setup = setup(None);
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let asked = pinned(&setup, fresh_seed(), "b");
    let mut reply = client.submit::<String>(asked).await.unwrap();
    assert_eq!(reply.next().await.unwrap().unwrap(), Event::Hint(ErrorCode::WrongRevision));
}

async fn r12_a_request_that_is_not_pinned_is_answered_by_any_revision(broker: Arc<dyn Broker>) {
    let setup = setup(Some("a"));
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    for asked in [pinned(&setup, 7, "a"), ask(&setup, Script::Say { pieces: 3, every_ms: 0 }, 7)] {
        let mut reply = client.submit::<String>(asked).await.unwrap();
        while reply.next().await.is_some_and(|event| event.is_ok()) {}
        assert_eq!(reply.revision(), revision("a"));
    }
}
