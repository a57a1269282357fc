//! Requests without failures, and requests that the client ends early.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::topology::model_queue;
use nsbridge_protocol::{ErrorCode, FinishReason};
use nsbridge_queue::Broker;
use nsbridge_testkit::system::client::{Error, Event};

use crate::script::{Script, ask, fresh_seed, release, runs, said, submit, system, until};
use crate::stories;
use crate::watch::becomes;

stories! {
    a_request_is_answered_piece_by_piece,
    many_requests_at_once_each_get_their_own_reply,
    the_first_piece_does_not_wait_for_the_others,
    r10_a_cancel_stops_the_running_handler_and_the_next_request_is_answered,
    r10_dropping_a_reply_cancels_its_request,
    r4_a_cancel_finds_a_request_that_still_waits,
    r10_a_deadline_ends_the_request_on_both_sides,
    what_the_handler_refuses_is_told_in_its_own_words,
    a_model_that_nobody_serves_is_told_at_once,
    a6_a_reply_larger_than_its_client_reads_is_held_back_not_lost,
    a_slow_caller_loses_nothing_and_holds_up_no_other,
    a_worker_that_stops_finishes_what_it_has,
}

async fn a_request_is_answered_piece_by_piece(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let reply = submit(&client, &setup, Script::Say { pieces: 40, every_ms: 1 }).await.unwrap();
    let (pieces, summary) = reply.collect().await.unwrap();
    assert_eq!(pieces, said(7, 40));
    assert_eq!((summary.pieces, summary.finish_reason), (40, FinishReason::Stop));
    assert!(summary.chunks < 40, "pieces that come fast share frames");
}

async fn many_requests_at_once_each_get_their_own_reply(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let mut replies = Vec::new();
    for seed in 0..20 {
        let say = Script::Say { pieces: 10, every_ms: 0 };
        replies.push(client.submit::<String>(ask(&setup, say, seed)).await.unwrap());
    }
    for (seed, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply.collect().await.unwrap().0, said(seed as u64, 10));
    }
}

async fn the_first_piece_does_not_wait_for_the_others(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let seed = fresh_seed();
    let mut reply = client.submit::<String>(ask(&setup, Script::Hold, seed)).await.unwrap();
    assert_eq!(reply.next().await.unwrap().unwrap(), Event::Piece("holding".into()));
    // The handler cannot have emitted the other piece.
    release(seed);
    assert_eq!(reply.next().await.unwrap().unwrap(), Event::Piece("released".into()));
}

async fn a_slow_caller_loses_nothing_and_holds_up_no_other(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let (seed, say) = (fresh_seed(), Script::Say { pieces: 30_000, every_ms: 0 });
    let late = client.submit::<String>(ask(&setup, say, seed)).await.unwrap();
    // The only slot is free again, although no piece was read.
    let next = submit(&client, &setup, Script::Say { pieces: 3, every_ms: 0 }).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, said(7, 3));
    assert!(runs(seed).iter().any(|run| run.until.is_some()));
    assert_eq!(late.collect().await.unwrap().0, said(seed, 30_000));
}

async fn r10_a_cancel_stops_the_running_handler_and_the_next_request_is_answered(
    broker: Arc<dyn Broker>,
) {
    let (setup, _worker, client) = system(broker.clone()).await;
    let endless = Script::Say { pieces: 1_000_000, every_ms: 5 };
    let mut reply = submit(&client, &setup, endless).await.unwrap();
    reply.next().await.unwrap().unwrap();
    reply.cancel();
    assert!(reply.next().await.is_none());
    // The only slot is free again, and the canceled request is gone from the queue.
    let next = submit(&client, &setup, Script::Say { pieces: 3, every_ms: 0 }).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, said(7, 3));
    empty(&*broker, &model_queue(&setup.model)).await;
}

async fn r10_dropping_a_reply_cancels_its_request(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let endless = Script::Say { pieces: 1_000_000, every_ms: 5 };
    drop(submit(&client, &setup, endless).await.unwrap());
    let next = submit(&client, &setup, Script::Say { pieces: 3, every_ms: 0 }).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, said(7, 3));
}

async fn r4_a_cancel_finds_a_request_that_still_waits(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let mut first =
        submit(&client, &setup, Script::Say { pieces: 60, every_ms: 10 }).await.unwrap();
    first.next().await.unwrap().unwrap();
    let (endless, seed) = (Script::Say { pieces: 1_000_000, every_ms: 5 }, fresh_seed());
    client.submit::<String>(ask(&setup, endless, seed)).await.unwrap().cancel();
    assert_eq!(first.collect().await.unwrap().0, said(7, 60)[1..]);
    let next = submit(&client, &setup, Script::Say { pieces: 3, every_ms: 0 }).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, said(7, 3));
    assert!(runs(seed).is_empty(), "it was cancelled before it came");
}

async fn r10_a_deadline_ends_the_request_on_both_sides(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let mut late = ask(&setup, Script::Say { pieces: 1_000_000, every_ms: 5 }, 7);
    late.timeout = Duration::from_secs(1);
    let ended = client.submit::<String>(late).await.unwrap().collect().await;
    // Whichever clock is ahead reports the deadline.
    match ended {
        Err(Error::Deadline { .. } | Error::Failed { code: ErrorCode::Deadline, .. }) => {}
        other => panic!("{other:?}"),
    }
    let next = submit(&client, &setup, Script::Say { pieces: 3, every_ms: 0 }).await.unwrap();
    assert_eq!(next.collect().await.unwrap().0, said(7, 3));
}

async fn what_the_handler_refuses_is_told_in_its_own_words(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let refuse = Script::Refuse("top_p must lie between 0 and 1".into());
    let ended = submit(&client, &setup, refuse).await.unwrap().collect().await;
    match ended {
        Err(Error::Failed { code: ErrorCode::BadInput, message }) => {
            assert_eq!(message, "top_p must lie between 0 and 1");
        }
        other => panic!("{other:?}"),
    }
    let odd = nsbridge_testkit::system::client::Request::new(setup.model.clone(), setup.tenant())
        .input("no script at all");
    let ended = client.submit::<String>(odd).await.unwrap().collect().await;
    assert!(matches!(ended, Err(Error::Failed { code: ErrorCode::BadInput, .. })), "{ended:?}");
}

async fn a_model_that_nobody_serves_is_told_at_once(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let mut other = ask(&setup, Script::Fail, 7);
    other.model = "nobody-serves-this".parse().unwrap();
    let refused = client.submit::<String>(other).await.unwrap_err();
    assert!(matches!(refused, Error::NoSuchModel { .. }), "{refused}");
}

async fn a6_a_reply_larger_than_its_client_reads_is_held_back_not_lost(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let reply = submit(&client, &setup, Script::Say { pieces: 10_000, every_ms: 0 }).await.unwrap();
    // The worker has sent everything before the client reads the first piece.
    becomes(&setup.observability.metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    assert_eq!(reply.collect().await.unwrap().0, said(7, 10_000));
}

async fn a_worker_that_stops_finishes_what_it_has(broker: Arc<dyn Broker>) {
    let (setup, worker, client) = system(broker).await;
    let mut reply =
        submit(&client, &setup, Script::Say { pieces: 50, every_ms: 10 }).await.unwrap();
    reply.next().await.unwrap().unwrap();
    worker.stop().await.unwrap();
    assert_eq!(reply.collect().await.unwrap().0, said(7, 50)[1..]);
}

/// Waits until a queue is empty.
async fn empty(broker: &dyn Broker, queue: &str) {
    let connection = broker.connect("test").await.unwrap();
    until(queue, async || connection.depth(queue).await.unwrap().messages == 0).await;
}
