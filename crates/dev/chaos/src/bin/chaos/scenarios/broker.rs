//! Faults of the broker, and of messages that are published to it.

use anyhow::Result;
use nsbridge_testkit::Rabbit;

use crate::plan::Ask;
use crate::stage::Stage;
use crate::watched::Trick;

pub(super) fn restart(stage: &mut Stage) -> Result<()> {
    away(stage, "restart", Rabbit::restart)
}

pub(super) fn crash(stage: &mut Stage) -> Result<()> {
    away(stage, "crash", Rabbit::crash)
}

/// Stops the broker in the middle of replies, while other requests wait in the queue.
///
/// Workers that reconnect as soon as the broker is back may adopt every run, so the rules demand no
/// new attempt.
fn away(stage: &mut Stage, fault: &str, go: fn(&mut Rabbit) -> Result<()>) -> Result<()> {
    stage.plan.rules.stalled_ms = 1000;
    let asks = stage.ask_for(4, &Ask::new(300, 20).within(150_000));
    // These requests wait in the queue when the broker stops.
    stage.ask_for(8, &Ask::new(20, 20).within(150_000));
    stage.settings.slots = 2;
    stage.start_workers(2)?;
    stage.start_client()?;
    let moment = stage.random.between(10, 80);
    stage.until_piece(asks[0], moment)?;
    stage.fault(fault, "the broker")?;
    go(&mut *stage.node()?)
}

/// Strands the requests of a killed worker at another consumer. The silence of its workers is the
/// only sign for the client.
pub(super) fn stranded(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 2;
    stage.plan.rules.resumed = 2;
    stage.plan.rules.stalled_ms = 80_000;
    let asks = stage.ask_for(2, &Ask::new(200, 20).within(150_000));
    stage.start_workers(1)?;
    stage.start_client()?;
    for ask in asks {
        let moment = stage.random.between(10, 40);
        stage.until_piece(ask, moment)?;
    }
    stage.strand("w1", 2)
}

/// Blocks publishers by a memory alarm. A timer in the node raises the alarm, because `rabbitmqctl`
/// takes seconds to start.
pub(super) fn memory_alarm(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.one_run_each = true;
    stage.plan.rules.stalled_ms = 2000;
    stage.ask_for(4, &Ask::new(900, 20).within(120_000));
    for i in 0..8 {
        stage.ask(Ask::new(20, 20).after(3000 + i * 500).within(120_000));
    }
    stage.start_workers(2)?;
    let from = stage.random.between(5000, 9000);
    let until = from + stage.random.between(4000, 6000);
    let at = |ms: usize, watermark: &str| {
        format!(
            "{{ok, _}} = timer:apply_after({ms}, vm_memory_monitor, \
             set_vm_memory_high_watermark, [{watermark}])"
        )
    };
    let alarm = format!("{}, {}.", at(from, "0.000001"), at(until, "0.9"));
    stage.node()?.ctl(&["eval", &alarm])?;
    stage.fault("memory alarm", "the broker")?;
    stage.start_client()
}

/// Takes the right to publish replies from the only worker, and gives it back. The worker must give its
/// requests back meanwhile, and answer all afterwards, although the broker has closed more channels
/// than a connection can have.
pub(super) fn right_lost(stage: &mut Stage) -> Result<()> {
    stage.settings.channel_max = 12;
    let user = stage.add_broker_user()?;
    stage.settings.user = Some(user.clone());
    stage.ask_for(8, &Ask::new(20, 20).within(120_000));
    stage.start_workers(1)?;
    stage.fault("right lost", "w1")?;
    stage.permit(&user, "^nsbridge[.]control.*$")?;
    stage.start_client()?;
    stage.until_said("w1.0", "requests are given back")?;
    stage.permit(&user, ".*")?;
    stage.finish()?;
    // A few for each of four slots, by the back-off.
    stage.said_at_most("w1.0", "opening another stream", 100)
}

/// Refuses one of two workers its second connection, on which it publishes. It must give back what it
/// takes, and the other worker answers all.
pub(super) fn publisher_refused(stage: &mut Stage) -> Result<()> {
    stage.ask_for(100, &Ask::new(4, 5).within(40_000));
    stage.start_worker("w1")?;
    let user = stage.add_broker_user()?;
    stage.settings.user = Some(user.clone());
    stage.start_worker("w2")?;
    // The broker counts connections that are opened at the same time too late to refuse one.
    stage.node()?.ctl(&["set_user_limits", &user, "{\"max-connections\": 1}"])?;
    stage.cut("w2.0 publish")?;
    stage.until_said("w2.0", "no connection, trying again")?;
    stage.start_client()
}

/// Suspends the client until its reply queue is full: first its prefetch fills, then the queue's
/// byte limit is reached.
pub(super) fn full_reply_queue(stage: &mut Stage) -> Result<()> {
    stage.settings.frame_each = true;
    stage.client_settings.reply_queue_bytes = Some(16 << 10);
    stage.plan.rules.sent_again = 10;
    stage.plan.rules.one_run_each = true;
    let asks = stage.ask_for(3, &Ask::new(1500, 2));
    stage.start_workers(2)?;
    stage.start_client()?;
    let moment = stage.random.between(50, 200);
    stage.until_piece(asks[0], moment)?;
    stage.suspend_client(4000)
}

pub(super) fn duplicate_publish(stage: &mut Stage) -> Result<()> {
    stage.client_settings.trick = Trick::Twice;
    stage.plan.rules.published_twice = true;
    // With two slots, both copies of a request are in the worker at once.
    stage.settings.slots = 2;
    let alone = stage.ask(Ask::new(100, 20));
    let both = stage.ask_for(4, &Ask::new(60, 20));
    stage.fault("publish twice", "one worker")?;
    stage.start_worker("w1")?;
    stage.start_client_for(&[alone])?;
    stage.until_over(alone)?;
    stage.fault("publish twice", "two workers")?;
    stage.start_worker("w2")?;
    stage.start_client_for(&both)
}

pub(super) fn forged_count(stage: &mut Stage) -> Result<()> {
    stage.client_settings.trick = Trick::ForgedCount;
    stage.plan.rules.one_run_each = true;
    stage.ask_for(4, &Ask::new(30, 20));
    stage.fault("forged count", "every request")?;
    stage.start_workers(1)?;
    stage.start_client()
}
