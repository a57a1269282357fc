//! Conformance tests: rules that both backends must satisfy.
//!
//! Each rule is a function whose name states it. The function panics if a backend breaks the rule,
//! so this module is for tests only. [`conformance!`](crate::conformance) generates one test per
//! rule.

mod bench;
#[cfg(feature = "amqp")]
mod frames;
mod list;
mod loss;
mod order;
mod routing;
mod time;

use std::time::Duration;

use crate::limits::Limits;

pub use bench::Bench;
#[cfg(feature = "amqp")]
pub use frames::read_frames;
pub use loss::{
    a_closed_connection_is_lost_and_gives_its_messages_back,
    a_control_queue_goes_with_its_connection, a_lock_goes_with_its_connection,
    a_lost_connection_gives_its_messages_back_counted,
    a_reply_queue_outlives_its_clients_connection,
    a_requeue_after_the_connection_is_gone_does_nothing,
    an_ack_after_the_connection_is_gone_is_not_success, everything_on_a_lost_connection_ends,
};
pub use order::{
    a_batch_is_acked_at_once_and_nothing_after_it, a_busy_consumer_does_not_hold_up_another,
    a_consumer_holds_no_more_than_its_prefetch, a_consumer_resumes_with_another_prefetch,
    a_dropped_consumer_gives_back_only_what_it_did_not_hand_out, a_dropped_delivery_goes_back,
    a_paused_consumer_keeps_what_it_holds_and_is_handed_nothing_new,
    a_requeued_message_comes_back_counted, a_requeued_message_goes_ahead_of_those_that_wait,
    a1_a_first_delivery_counts_zero_whatever_its_publisher_wrote, an_acked_message_is_gone,
    m3_a_body_beyond_the_limit_of_its_queue_is_not_handed_out,
};
pub use routing::{
    a_confirm_may_be_dropped, a_full_queue_refuses_until_there_is_room,
    a_message_arrives_as_it_was_sent, a_message_for_nobody_is_returned,
    a_queue_that_is_not_there_is_told, a_return_is_told_to_the_publish_that_it_belongs_to,
    a_run_record_counts_its_entries_until_they_are_struck, a_run_record_forgets_its_oldest_entries,
    declaring_again_changes_nothing, m5_a_full_retry_queue_refuses,
    m5_dead_letters_beyond_their_limit_push_out_the_oldest,
    messages_arrive_in_the_order_of_publishing,
};
pub use time::{
    a_dead_letter_may_be_looked_at_often, a_message_expires_at_the_head_only,
    a_message_that_comes_back_after_its_time_is_a_dead_letter,
    a_message_that_comes_back_too_often_is_a_dead_letter,
    a_reply_queue_goes_when_its_lease_is_over, a_retry_queue_leads_back_after_its_delay,
    an_expired_message_is_a_dead_letter,
};

/// Returns the limits under which a rule is checked: small where the rule is about reaching them.
pub fn limits(rule: &str) -> Limits {
    let protocol = Limits::default();
    match rule {
        "a_full_queue_refuses_until_there_is_room" => {
            Limits { model_queue_bytes: 20_000, ..protocol }
        }
        "m5_a_full_retry_queue_refuses" => Limits { retry_queue_bytes: 20_000, ..protocol },
        "m5_dead_letters_beyond_their_limit_push_out_the_oldest" => {
            Limits { dead_queue_bytes: 20_000, ..protocol }
        }
        "a_message_that_comes_back_too_often_is_a_dead_letter" => {
            Limits { deliveries: 2, ..protocol }
        }
        "a_reply_queue_goes_when_its_lease_is_over" => {
            Limits { reply_lease: Duration::from_secs(1), ..protocol }
        }
        _ => protocol,
    }
}
