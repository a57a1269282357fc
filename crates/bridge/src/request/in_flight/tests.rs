//! Tests of admission, adoption, eviction and early cancels.

use async_trait::async_trait;
use nsbridge_crypto::{JobKey, Salt};
use nsbridge_protocol::{AttemptNo, Priority, RequestId};
use nsbridge_queue::{Delivery, Message, Result, Settle};
use tokio_util::sync::CancellationToken;

use super::{
    CONTROL_BUFFER, InFlight, JobIdentity, OwnedDelivery, Registration, SealedControl,
    WAITING_CANCELS,
};

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

fn owned(redelivered: bool) -> OwnedDelivery {
    let count = u64::from(redelivered);
    let delivery = Delivery::new(Message::new(vec![]), redelivered, count, Box::new(Nothing));
    let (priority, gone) = (Priority::Interactive, CancellationToken::new());
    OwnedDelivery { delivery, priority, gone, _credit: None }
}

fn control(frame: &[u8]) -> SealedControl {
    SealedControl { frame: frame.to_vec(), before: None }
}

fn job(n: u16) -> JobIdentity {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&n.to_be_bytes());
    let key = JobKey { id: RequestId::from_bytes(id), salt: Salt([0; 32]) };
    JobIdentity { key, commitment: [0; 32], reply_to: "client".to_owned() }
}

fn register(in_flight: &InFlight, n: u16, owned: OwnedDelivery) -> Registration<'_> {
    let attempt = AttemptNo::new(0, owned.delivery.earlier_deliveries);
    in_flight.register(&job(n), owned, attempt)
}

#[test]
fn a_job_runs_once_and_is_remembered_when_done() {
    let in_flight = InFlight::default();
    let Registration::New(running, _mail) = register(&in_flight, 1, owned(false)) else { panic!() };
    assert!(matches!(register(&in_flight, 1, owned(false)), Registration::Duplicate(_)));
    assert_eq!(running.end(true).len(), 1);
    assert!(matches!(register(&in_flight, 1, owned(true)), Registration::Done(_)));
}

#[tokio::test]
async fn r6_an_orphan_is_adopted_by_the_copy_that_comes_back() {
    let in_flight = InFlight::default();
    let first = owned(false);
    let gone = first.gone.clone();
    let Registration::New(running, _mail) = register(&in_flight, 1, first) else { panic!() };
    let mut attempt = running.attempt();
    assert_eq!(*attempt.borrow_and_update(), AttemptNo(1));
    gone.cancel();
    running.orphaned().await;
    assert!(matches!(register(&in_flight, 1, owned(true)), Registration::Adopted));
    running.adopted().await;
    assert!(attempt.has_changed().unwrap() && *attempt.borrow_and_update() == AttemptNo(2));
    assert!(!running.retire(), "it has a delivery");
    assert_eq!(running.end(false).iter().filter(|owned| owned.is_held()).count(), 1);
}

#[test]
fn l2_a_copy_under_another_key_or_for_another_client_is_another_job() {
    let in_flight = InFlight::default();
    let genuine = job(1);
    let forged = JobIdentity { reply_to: "somewhere else".to_owned(), ..job(1) };
    let claimed = JobIdentity { commitment: [1; 32], ..job(1) };
    for other in [forged, claimed] {
        let attempt = AttemptNo::new(0, 0);
        let Registration::New(one, _mail) = in_flight.register(&other, owned(false), attempt)
        else {
            panic!("the genuine job is not known yet")
        };
        let Registration::New(two, _mail) = in_flight.register(&genuine, owned(false), attempt)
        else {
            panic!("{other:?} was taken for the genuine job")
        };
        drop(two);
        one.end(true);
        assert!(in_flight.knows(&other) && !in_flight.knows(&genuine));
    }
}

#[test]
fn a_job_that_runs_here_or_is_done_is_known() {
    let in_flight = InFlight::default();
    assert!(!in_flight.knows(&job(1)));
    let Registration::New(running, _mail) = register(&in_flight, 1, owned(false)) else { panic!() };
    assert!(in_flight.knows(&job(1)));
    running.end(true);
    assert!(in_flight.knows(&job(1)));
}

#[test]
fn a_copy_that_comes_back_before_the_loss_is_noticed_is_bound_and_not_acked() {
    let in_flight = InFlight::default();
    let Registration::New(running, _mail) = register(&in_flight, 1, owned(false)) else { panic!() };
    assert!(matches!(register(&in_flight, 1, owned(true)), Registration::Adopted));
    assert_eq!(running.end(true).len(), 2);
}

#[tokio::test]
async fn an_orphan_that_leaves_takes_no_delivery_and_tells_when_it_has_left() {
    let in_flight = InFlight::default();
    let first = owned(false);
    first.gone.cancel();
    let Registration::New(running, _mail) = register(&in_flight, 1, first) else { panic!() };
    assert!(running.retire());
    let Registration::Retiring(_, left) = register(&in_flight, 1, owned(true)) else { panic!() };
    assert!(!left.is_cancelled());
    drop(running);
    assert!(left.is_cancelled());
    assert!(matches!(register(&in_flight, 1, owned(true)), Registration::New(..)));
}

#[test]
fn only_an_orphan_is_evicted_and_each_once() {
    let in_flight = InFlight::default();
    let Registration::New(live, _mail) = register(&in_flight, 1, owned(false)) else { panic!() };
    let lost = owned(false);
    lost.gone.cancel();
    let Registration::New(orphan, _mail) = register(&in_flight, 2, lost) else { panic!() };
    in_flight.evict();
    in_flight.evict();
    let gone =
        |run: &super::Running<'_>| in_flight.0.lock().running[&run.job].evicted.is_cancelled();
    assert!(gone(&orphan) && !gone(&live));
    assert!(matches!(register(&in_flight, 2, owned(true)), Registration::Adopted));
    assert!(!gone(&orphan), "adopted, it has its whole window again");
}

#[test]
fn r4_a_cancel_that_comes_first_waits_for_its_request() {
    let in_flight = InFlight::default();
    in_flight.deliver(job(1).key.id, &control(b"cancel"), true);
    in_flight.deliver(job(2).key.id, &control(b"resume"), false);
    let Registration::New(_one, mut controls) = register(&in_flight, 1, owned(false)) else {
        panic!()
    };
    assert_eq!(controls.try_recv().unwrap().frame, b"cancel");
    let Registration::New(_two, mut controls) = register(&in_flight, 2, owned(false)) else {
        panic!()
    };
    assert!(controls.try_recv().is_err());
}

#[test]
fn unverified_cancels_are_bounded() {
    let in_flight = InFlight::default();
    for n in 0..=WAITING_CANCELS as u16 {
        for _ in 0..100 {
            in_flight.deliver(job(n).key.id, &control(&[0; 10]), true);
        }
    }
    let state = in_flight.0.lock();
    assert_eq!(state.cancels.len(), WAITING_CANCELS);
    assert!(!state.cancels.contains_key(&job(0).key.id));
    assert!(state.cancels.values().all(|controls| controls.len() <= CONTROL_BUFFER));
}
