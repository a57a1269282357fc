//! List of all conformance rules.

/// Generates a test for each rule.
///
/// `$bench` is an async function that creates a new [`Bench`](crate::testing::Bench) for
/// [`Limits`](crate::Limits). The limits are small where a rule needs that: see
/// [`limits`](super::limits).
#[macro_export]
macro_rules! conformance {
    ($bench:path, $(#[$attribute:meta])+) => {
        $crate::conformance! { @each $bench, [$(#[$attribute])+]
            a1_a_first_delivery_counts_zero_whatever_its_publisher_wrote
            a_requeued_message_comes_back_counted
            a_dropped_delivery_goes_back
            a_requeued_message_goes_ahead_of_those_that_wait
            a_consumer_holds_no_more_than_its_prefetch
            a_busy_consumer_does_not_hold_up_another
            a_dropped_consumer_gives_back_only_what_it_did_not_hand_out
            an_acked_message_is_gone
            a_batch_is_acked_at_once_and_nothing_after_it
            m3_a_body_beyond_the_limit_of_its_queue_is_not_handed_out
            a_paused_consumer_keeps_what_it_holds_and_is_handed_nothing_new
            a_consumer_resumes_with_another_prefetch
            a_lost_connection_gives_its_messages_back_counted
            an_ack_after_the_connection_is_gone_is_not_success
            a_requeue_after_the_connection_is_gone_does_nothing
            everything_on_a_lost_connection_ends
            a_closed_connection_is_lost_and_gives_its_messages_back
            a_control_queue_goes_with_its_connection
            a_lock_goes_with_its_connection
            a_reply_queue_outlives_its_clients_connection
            a_message_arrives_as_it_was_sent
            a_message_for_nobody_is_returned
            a_return_is_told_to_the_publish_that_it_belongs_to
            a_confirm_may_be_dropped
            messages_arrive_in_the_order_of_publishing
            a_full_queue_refuses_until_there_is_room
            m5_a_full_retry_queue_refuses
            m5_dead_letters_beyond_their_limit_push_out_the_oldest
            a_queue_that_is_not_there_is_told
            declaring_again_changes_nothing
            a_run_record_counts_its_entries_until_they_are_struck
            a_run_record_forgets_its_oldest_entries
            an_expired_message_is_a_dead_letter
            a_message_expires_at_the_head_only
            a_message_that_comes_back_after_its_time_is_a_dead_letter
            a_message_that_comes_back_too_often_is_a_dead_letter
            a_dead_letter_may_be_looked_at_often
            a_retry_queue_leads_back_after_its_delay
            a_reply_queue_goes_when_its_lease_is_over
        }
    };
    (@each $bench:path, $attributes:tt $($rule:ident)+) => {
        $($crate::conformance! { @one $bench, $attributes $rule })+
    };
    (@one $bench:path, [$($attribute:tt)+] $rule:ident) => {
        $($attribute)+
        async fn $rule() {
            let limits = $crate::testing::limits(stringify!($rule));
            $crate::testing::$rule(&$bench(limits).await).await;
        }
    };
}
