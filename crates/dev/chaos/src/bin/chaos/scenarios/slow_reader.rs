//! Readers that do not read.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::gateways::start_workers;
use crate::follow::was_said;
use crate::http_caller::Manner;
use crate::plan::{Ask, Reading};
use crate::python_client::Kind;
use crate::stage::{Stage, Storage};

/// Number of pieces of a reply that is not read at first.
const PIECES: usize = 40_000;

/// Times of the short replies beside each one, in milliseconds after the start of the client: some come
/// while all of the long one waits.
const SHORT_AFTER_MS: [u64; 3] = [0, 1500, 3000];

/// Time for which everything is with its client and nothing is read.
const UNREAD: Duration = Duration::from_secs(1);

/// Maximum growth of a client, in KiB: twice what was measured (4 to 7 MiB). The reply as objects would
/// take 24 MiB and more.
const CLIENT_KIB: u64 = 14 << 10;

/// Maximum growth of the gateway, in KiB. It keeps the pieces of a reply in progress as objects: 33 to
/// 39 MiB were measured.
const GATEWAY_KIB: u64 = 48 << 10;

/// Maximum time from the ends of the long runs until the gateway has all pieces. A debug build on two
/// slow cores took 20 s beside two other rounds. With 100,000 pieces a CI waited for this time in vain.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(240);

/// Time limit of a long request, in milliseconds. It is beyond the wait for the gateway.
const REQUEST_TIMEOUT_MS: u64 = 360_000;

/// Plays five readers that do not read, each in a process of its own: a client in Rust, both in Python,
/// an HTTP caller of a gateway, and `nsbridge ask`. Each has a long reply, and all but the command,
/// which has one reply, have short ones beside it. No long reply is read before it has ended at its
/// worker and the short ones have ended at their callers.
pub(super) fn slow_reader(stage: &mut Stage) -> Result<()> {
    let rules = &mut stage.plan.rules;
    (rules.one_run_each, rules.through_gateways) = (true, true);
    let slow = Ask::new(PIECES, 0).reading(Reading::AfterGate).within(REQUEST_TIMEOUT_MS);
    let slow = stage.ask_for(5, &slow);
    let mut short = Vec::new();
    let mut beside = |stage: &mut Stage, slow: usize| {
        let beside = SHORT_AFTER_MS.map(|ms| stage.ask(Ask::new(100, 20).after(ms)));
        short.extend_from_slice(&beside);
        [&[slow], &beside[..]].concat()
    };
    let clients = [(slow[0], Kind::Rust), (slow[1], Kind::Asyncio), (slow[2], Kind::Blocking)];
    let clients = clients.map(|(slow, kind)| (beside(stage, slow), kind));
    let callers = beside(stage, slow[3]);
    stage.fault("do not read", "five readers")?;
    start_workers(stage, 1)?;
    stage.start_gateways(&["g1"], &Storage::Own)?;
    let mut watches = vec![stage.watch_memory("g1", GATEWAY_KIB)?];
    for (asks, kind) in clients {
        stage.client_settings.kind = kind;
        stage.start_client_for(&asks)?;
        watches.push(stage.watch_memory(kind.name(), CLIENT_KIB)?);
    }
    callers.into_iter().for_each(|n| stage.start_caller(n, Manner::default()));
    watches.push(stage.start_ask(slow[4], CLIENT_KIB)?);
    for ask in short {
        stage.until_over(ask)?;
    }
    for ask in &slow {
        stage.until("the end of a long run", |lines| was_said(lines, *ask))?;
    }
    // The gateway stores each piece, so it has all of them after its worker's run. If it never has, the
    // readers tell what is lost.
    let gateway_has_all =
        stage.until_said_within(GATEWAY_TIMEOUT, "g1.0", &format!("pieces={PIECES}"));
    sleep(UNREAD);
    stage.open_gate()?;
    stage.finish()?;
    gateway_has_all
}
