//! Tests of admission, adoption, eviction and early cancels.

use async_trait::async_trait;
use nsbridge_crypto::{JobKey, Salt};
use nsbridge_protocol::{AttemptNo, RequestId};
use nsbridge_queue::{Delivery, Message, Result, Settle};
use tokio_util::sync::CancellationToken;

use super::{Admission, Held, Job, MAILBOX, Mail, Registry, WAITING_CANCELS};

struct Nothing;

#[async_trait]
impl Settle for Nothing {
    async fn ack(self: Box<Self>) -> Result<bool> {
        Ok(true)
    }
    async fn requeue(self: Box<Self>) -> Result<bool> {
        Ok(true)
    }
    fn requeue_later(self: Box<Self>) {}
}

fn held(redelivered: bool) -> Held {
    let count = u64::from(redelivered);
    let delivery = Delivery::new(Message::new(vec![]), redelivered, count, Box::new(Nothing));
    Held { delivery, gone: CancellationToken::new() }
}

fn mail(frame: &[u8]) -> Mail {
    Mail { frame: frame.to_vec(), before: None }
}

fn job(n: u16) -> Job {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&n.to_be_bytes());
    let key = JobKey { id: RequestId::from_bytes(id), salt: Salt([0; 32]) };
    Job { key, commitment: [0; 32], reply_to: "client".to_owned() }
}

fn admit(registry: &Registry, n: u16, held: Held) -> Admission<'_> {
    let attempt = AttemptNo::new(0, held.delivery.deliveries);
    registry.admit(&job(n), held, attempt)
}

#[test]
fn a_job_runs_once_and_is_remembered_when_done() {
    let registry = Registry::default();
    let Admission::New(running, _mail) = admit(&registry, 1, held(false)) else { panic!() };
    assert!(matches!(admit(&registry, 1, held(false)), Admission::Duplicate(_)));
    assert_eq!(running.end(true).len(), 1);
    assert!(matches!(admit(&registry, 1, held(true)), Admission::Done(_)));
}

#[tokio::test]
async fn r6_an_orphan_is_adopted_by_the_copy_that_comes_back() {
    let registry = Registry::default();
    let first = held(false);
    let gone = first.gone.clone();
    let Admission::New(running, _mail) = admit(&registry, 1, first) else { panic!() };
    let mut attempt = running.attempt();
    assert_eq!(*attempt.borrow_and_update(), AttemptNo(1));
    gone.cancel();
    running.orphaned().await;
    assert!(matches!(admit(&registry, 1, held(true)), Admission::Adopted));
    running.adopted().await;
    assert!(attempt.has_changed().unwrap() && *attempt.borrow_and_update() == AttemptNo(2));
    assert!(!running.leave(), "it has a delivery");
    assert_eq!(running.end(false).iter().filter(|held| held.is_ours()).count(), 1);
}

#[test]
fn l2_a_copy_under_another_key_or_for_another_client_is_another_job() {
    let registry = Registry::default();
    let genuine = job(1);
    let forged = Job { reply_to: "somewhere else".to_owned(), ..job(1) };
    let claimed = Job { commitment: [1; 32], ..job(1) };
    for other in [forged, claimed] {
        let attempt = AttemptNo::new(0, 0);
        let Admission::New(one, _mail) = registry.admit(&other, held(false), attempt) else {
            panic!("the genuine job is not known yet")
        };
        let Admission::New(two, _mail) = registry.admit(&genuine, held(false), attempt) else {
            panic!("{other:?} was taken for the genuine job")
        };
        drop(two);
        one.end(true);
        assert!(registry.knows(&other) && !registry.knows(&genuine));
    }
}

#[test]
fn a_job_that_runs_here_or_is_done_is_known() {
    let registry = Registry::default();
    assert!(!registry.knows(&job(1)));
    let Admission::New(running, _mail) = admit(&registry, 1, held(false)) else { panic!() };
    assert!(registry.knows(&job(1)));
    running.end(true);
    assert!(registry.knows(&job(1)));
}

#[test]
fn a_copy_that_comes_back_before_the_loss_is_noticed_is_bound_and_not_acked() {
    let registry = Registry::default();
    let Admission::New(running, _mail) = admit(&registry, 1, held(false)) else { panic!() };
    assert!(matches!(admit(&registry, 1, held(true)), Admission::Adopted));
    assert_eq!(running.end(true).len(), 2);
}

#[tokio::test]
async fn an_orphan_that_leaves_takes_no_delivery_and_tells_when_it_has_left() {
    let registry = Registry::default();
    let first = held(false);
    first.gone.cancel();
    let Admission::New(running, _mail) = admit(&registry, 1, first) else { panic!() };
    assert!(running.leave());
    let Admission::Leaving(_, left) = admit(&registry, 1, held(true)) else { panic!() };
    assert!(!left.is_cancelled());
    drop(running);
    assert!(left.is_cancelled());
    assert!(matches!(admit(&registry, 1, held(true)), Admission::New(..)));
}

#[test]
fn only_an_orphan_is_evicted_and_each_once() {
    let registry = Registry::default();
    let Admission::New(live, _mail) = admit(&registry, 1, held(false)) else { panic!() };
    let lost = held(false);
    lost.gone.cancel();
    let Admission::New(orphan, _mail) = admit(&registry, 2, lost) else { panic!() };
    registry.evict();
    registry.evict();
    let gone = |run: &super::Running<'_>| registry.state().running[&run.job].evicted.is_cancelled();
    assert!(gone(&orphan) && !gone(&live));
    assert!(matches!(admit(&registry, 2, held(true)), Admission::Adopted));
    assert!(!gone(&orphan), "adopted, it has its whole window again");
}

#[test]
fn r4_a_cancel_that_comes_first_waits_for_its_request() {
    let registry = Registry::default();
    registry.post(job(1).key.id, &mail(b"cancel"), true);
    registry.post(job(2).key.id, &mail(b"resume"), false);
    let Admission::New(_one, mut mail) = admit(&registry, 1, held(false)) else { panic!() };
    assert_eq!(mail.try_recv().unwrap().frame, b"cancel");
    let Admission::New(_two, mut mail) = admit(&registry, 2, held(false)) else { panic!() };
    assert!(mail.try_recv().is_err());
}

#[test]
fn unverified_cancels_are_bounded() {
    let registry = Registry::default();
    for n in 0..=WAITING_CANCELS as u16 {
        for _ in 0..100 {
            registry.post(job(n).key.id, &mail(&[0; 10]), true);
        }
    }
    let state = registry.state();
    assert_eq!(state.cancels.len(), WAITING_CANCELS);
    assert!(!state.cancels.contains_key(&job(0).key.id));
    assert!(state.cancels.values().all(|mail| mail.len() <= MAILBOX));
}
