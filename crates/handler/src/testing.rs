//! Test support that checks a handler against the contract of its trait.
//!
//! ```
//! # use std::sync::Arc;
//! # use nsbridge_handler::{Finish, Handler, Job, Models, Result, testing};
//! # struct Echo;
//! # impl Handler for Echo {
//! #     type Options = ();
//! #     type Input = String;
//! #     type Output = String;
//! #     fn load((): (), _models: Models) -> Result<Self> {
//! #         Ok(Self)
//! #     }
//! #     fn handle(&self, input: String, job: &mut Job<String>) -> Result<Finish> {
//! #         for word in input.split_inclusive(' ') {
//! #             job.emit(word.to_owned())?;
//! #         }
//! #         Ok(Finish::STOP)
//! #     }
//! # }
//! let echo: Arc<Echo> = testing::load((), Models::default()).unwrap();
//! testing::check(&echo, &"good morning".into()).unwrap();
//! ```

mod batch;
mod stage;

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use futures_util::FutureExt as _;
use serde_json::Value;

use crate::erased::Servable;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::handler::{AsyncHandler, Handler};
use crate::models::Models;
use crate::transcript::Stop;
pub use batch::check_batch;
use nsbridge_protocol::{Finish, FinishReason};
use stage::{End, GivenUp, Plan, Room, Stage};
pub use stage::{call, pieces};

/// Time limit of a call that is not stopped.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for a call to end after it is stopped.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Maximum time for which the thread of an [`AsyncHandler`] may be blocked.
const BLOCK_LIMIT: Duration = Duration::from_secs(1);
/// Time that a leaked emitter is given to emit a late piece.
const AFTERMATH: Duration = Duration::from_millis(100);
/// Number of concurrent calls, if the handler has that many slots.
const CROWD: usize = 8;
const SEED: u64 = 1_234_567_890_123;

/// Clause of the contract that a handler broke.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The check could not be set up.
    #[error("the check could not be set up: {0}")]
    Setup(String),
    /// The call returned an error. The input of a check must be one that the handler answers.
    #[error("the call failed: {0}")]
    Failed(String),
    /// The reply has no pieces, so there is nothing to compare.
    #[error("the input makes no piece: check with one that makes several")]
    NoPieces,
    /// The handler panicked. A panic ends the worker.
    #[error("the handler panicked")]
    Panicked,
    /// The call did not return within this time.
    #[error("the call had not returned after {} s", .0.as_secs())]
    Hangs(Duration),
    /// A piece was emitted after the return. The return value of `handle` must end the reply.
    #[error("a piece was emitted after `handle` had returned")]
    EmitsAfterReturn,
    /// This piece differs between two calls. Pieces must depend on the weights, the input and the
    /// seed alone.
    #[error("piece {0} differs when the same input and seed are answered again")]
    NotRepeatable(usize),
    /// This piece differs when other calls run at the same time.
    #[error("piece {0} differs when other calls run at the same time")]
    Disturbed(usize),
    /// This piece differs when the client is slow.
    #[error("piece {0} differs when the client falls behind")]
    LosesPieces(usize),
    /// The call did not notice a stop within two seconds.
    #[error("the call went on for more than {} s after it was told to stop", STOP_LIMIT.as_secs())]
    MissesStop,
    /// The call ended with another result after a stop. A failed emit must end the call and be
    /// passed on.
    #[error("the call was told to stop and returned {0} instead of `Error::Stopped(Cancelled)`")]
    HidesStop(String),
    /// The thread was blocked for this long. All calls of an `AsyncHandler` share it.
    #[error("the calls' thread was blocked for {} ms: implement `Handler`", .0.as_millis())]
    Blocks(Duration),
    /// The call after one that was given up failed: an `AsyncHandler`'s future that was dropped, a
    /// `Handler`'s call that was stopped. The handler must be able to answer the next request.
    #[error("the call after a dropped one went wrong: {0}")]
    BrokenByDrop(String),
    /// The reply after a resume differs from the uninterrupted one.
    #[error("after a resume at piece {at}, piece {piece} differs from the uninterrupted reply")]
    ResumesWrong {
        /// Number of pieces that the client already had.
        at: usize,
        /// Index of the first piece that differs.
        piece: usize,
    },
    /// The output depends on other inputs of the batch, for example on padding to the length of a
    /// neighbor.
    #[error("input {input} is answered otherwise in a batch of {size} than alone")]
    MindsNeighbours {
        /// Index of the input.
        input: usize,
        /// Number of inputs in the batch.
        size: usize,
    },
}

impl fmt::Debug for Breach {
    /// Writes the sentence, which is what `unwrap` in a test shows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Loads a handler of either trait, blocking until it is loaded.
///
/// The type of the result says which handler: `let echo: Arc<Echo> = testing::load((), models)?;`.
///
/// # Errors
///
/// Returns the error of the handler's `load`, or an error if the load could not be run.
pub fn load<H: Servable<K>, K>(options: H::Options, models: Models) -> Result<Arc<H>> {
    let load = move || {
        let load = H::load(options, models);
        match H::BLOCKS {
            true => load.now_or_never().unwrap_or_else(|| Err(Error::fatal("`load` awaits"))),
            false => stage::runtime()?.block_on(load),
        }
    };
    let panicked = |_| Err(Error::fatal("the handler panicked while loading"));
    thread::scope(|scope| scope.spawn(load).join().unwrap_or_else(panicked)).map(Arc::new)
}

/// Returns the whole reply of one call, including the `resumed` pieces, and its finish.
///
/// # Errors
///
/// Returns the error of `handle`, or an error that says how the call broke the contract.
pub fn answer<H: Servable<K>, K>(
    handler: &Arc<H>,
    input: &Value,
    seed: u64,
    resumed: &[H::Output],
) -> Result<(Vec<H::Output>, Finish)> {
    let resumed = resumed.iter().map(serde_json::to_vec).collect::<Result<Vec<_>, _>>()?;
    let plan = Plan { seed, resume: Some(resumed), room: Room::Free };
    let mut watch = Stage::new(handler, input).start(vec![plan])?.remove(0);
    match watch.end(CALL_TIMEOUT)? {
        End::Returned(finish) => {
            let pieces = watch.pieces.iter().map(|piece| serde_json::from_slice(piece));
            Ok((pieces.collect::<Result<_, _>>()?, finish?))
        }
        End::Dropped => Err(Error::fatal("the call was dropped")),
    }
}

/// Tests a [`Handler`] or an [`AsyncHandler`] against every testable clause of its contract.
///
/// `input` should yield a reply of about ten pieces. The handler is called about twenty times, on
/// threads as in the bridge. A call that never returns leaks its thread.
///
/// # Errors
///
/// Returns the first broken clause that was found.
pub fn check<H: Servable<K>, K>(handler: &Arc<H>, input: &Value) -> Result<(), Breach> {
    let check = Check { stage: Stage::new(handler, input) };
    let alone = check.ends_with_its_return()?;
    check.repeats(&alone)?;
    check.is_not_disturbed(&alone)?;
    check.waits_for_a_slow_client(&alone)?;
    check.survives_giving_up(&alone)?;
    check.stops(Room::None)?;
    if alone.pieces.len() > 1 {
        check.stops(Room::OnePiece)?;
    }
    check.resumes(&alone, alone.pieces.len() / 2)?;
    check.resumes(&alone, alone.pieces.len())
}

/// Complete reply.
#[derive(PartialEq)]
struct Reply {
    pieces: Vec<Vec<u8>>,
    reason: FinishReason,
    took: Duration,
}

impl Reply {
    /// Returns the index of the first piece that differs in `other`, or the end if only the finish
    /// differs.
    fn differs(&self, other: &Self) -> Option<usize> {
        let same = self.pieces.iter().zip(&other.pieces).take_while(|(a, b)| a == b).count();
        let whole = same == self.pieces.len() && same == other.pieces.len();
        (!whole || self.reason != other.reason).then_some(same)
    }

    fn expect(&self, other: &Self, breach: impl Fn(usize) -> Breach) -> Result<(), Breach> {
        self.differs(other).map_or(Ok(()), |piece| Err(breach(piece)))
    }
}

struct Check {
    stage: Stage,
}

impl Check {
    fn replies(&self, plans: Vec<Plan>, limit: Duration) -> Result<Vec<Reply>, Breach> {
        let started = Instant::now();
        let mut replies = Vec::new();
        let mut watches = self.stage.start(plans)?;
        for at in 0..watches.len() {
            // The calls that are not waited for yet must not be held back in the meantime.
            let (this, others) = watches[at..].split_first_mut().ok_or(Breach::Panicked)?;
            let end = this.end_while(limit, || others.iter_mut().for_each(|other| other.read()))?;
            let finish = match end {
                End::Returned(Ok(finish)) => finish,
                End::Returned(Err(error)) => return Err(Breach::Failed(error.to_string())),
                End::Dropped => return Err(Breach::Panicked),
            };
            let pieces = std::mem::take(&mut this.pieces);
            replies.push(Reply { pieces, reason: finish.reason, took: started.elapsed() });
        }
        self.stage.blocked(BLOCK_LIMIT).map_or(Ok(replies), |long| Err(Breach::Blocks(long)))
    }

    fn reply(&self, plan: Plan, limit: Duration) -> Result<Reply, Breach> {
        self.replies(vec![plan], limit)?.pop().ok_or(Breach::NoPieces)
    }

    fn ends_with_its_return(&self) -> Result<Reply, Breach> {
        let started = Instant::now();
        let mut watch = self.stage.start(vec![Plan::plain(SEED)])?.remove(0);
        let end = watch.end(CALL_TIMEOUT)?;
        let took = started.elapsed();
        let (pieces, ended) = (watch.pieces.clone(), watch.pieces.len());
        thread::sleep(AFTERMATH);
        if watch.late() {
            return Err(Breach::EmitsAfterReturn);
        }
        if let Some(long) = self.stage.blocked(BLOCK_LIMIT) {
            return Err(Breach::Blocks(long));
        }
        match end {
            End::Returned(Ok(_)) if ended == 0 => Err(Breach::NoPieces),
            End::Returned(Ok(finish)) => Ok(Reply { pieces, reason: finish.reason, took }),
            End::Returned(Err(error)) => Err(Breach::Failed(error.to_string())),
            End::Dropped => Err(Breach::Panicked),
        }
    }

    fn repeats(&self, alone: &Reply) -> Result<(), Breach> {
        self.reply(Plan::plain(SEED), CALL_TIMEOUT)?.expect(alone, Breach::NotRepeatable)
    }

    /// Checks many concurrent calls with two seeds, so that shared state between calls becomes
    /// visible.
    fn is_not_disturbed(&self, alone: &Reply) -> Result<(), Breach> {
        let other = self.reply(Plan::plain(SEED + 1), CALL_TIMEOUT)?;
        let seeds = (0..CROWD as u64).map(|call| Plan::plain(SEED + call % 2)).collect();
        let replies = self.replies(seeds, CALL_TIMEOUT)?;
        for pair in replies.chunks(2) {
            for (reply, expected) in pair.iter().zip([alone, &other]) {
                reply.expect(expected, Breach::Disturbed)?;
            }
        }
        Ok(())
    }

    fn waits_for_a_slow_client(&self, alone: &Reply) -> Result<(), Breach> {
        let plan = Plan { room: Room::OnePiece, ..Plan::plain(SEED) };
        let mut watch = self.stage.start(vec![plan])?.remove(0);
        thread::sleep(AFTERMATH);
        let finish = match watch.end(CALL_TIMEOUT)? {
            End::Returned(Ok(finish)) => finish,
            End::Returned(Err(error)) => return Err(Breach::Failed(error.to_string())),
            End::Dropped => return Err(Breach::Panicked),
        };
        let reply =
            Reply { pieces: watch.pieces.clone(), reason: finish.reason, took: Duration::ZERO };
        reply.expect(alone, Breach::LosesPieces)
    }

    /// Checks a stop. The pieces stay unread, so the call cannot finish before it is stopped.
    fn stops(&self, room: Room) -> Result<(), Breach> {
        let mut watch = self.stage.start(vec![Plan { room, ..Plan::plain(SEED) }])?.remove(0);
        watch.until_held_back(CALL_TIMEOUT)?;
        watch.stop();
        let returned = match watch.end_unread(STOP_LIMIT) {
            Ok(End::Returned(Err(Error::Stopped(Stop::Cancelled)))) => return Ok(()),
            Ok(End::Returned(Ok(_))) => "success".to_owned(),
            Ok(End::Returned(Err(error))) => format!("`{error}`"),
            Ok(End::Dropped) => return Err(Breach::Panicked),
            Err(Breach::Hangs(_)) => return Err(Breach::MissesStop),
            Err(breach) => return Err(breach),
        };
        Err(Breach::HidesStop(returned))
    }

    fn survives_giving_up(&self, alone: &Reply) -> Result<(), Breach> {
        let room = if alone.pieces.len() > 1 { Room::OnePiece } else { Room::None };
        let mut watch = self.stage.start(vec![Plan { room, ..Plan::plain(SEED) }])?.remove(0);
        watch.until_held_back(CALL_TIMEOUT)?;
        match self.stage.give_up(&mut watch) {
            GivenUp::Dropped => drop(watch.end_unread(CALL_TIMEOUT)?),
            GivenUp::Stopped => {
                let hangs = |breach| match breach {
                    Breach::Hangs(_) => Breach::MissesStop,
                    other => other,
                };
                drop(watch.end_unread(STOP_LIMIT).map_err(hangs)?);
            }
        }
        let limit = alone.took * 10 + Duration::from_secs(5);
        self.reply(Plan::plain(SEED), limit)
            .and_then(|reply| reply.expect(alone, Breach::NotRepeatable))
            .map_err(|breach| Breach::BrokenByDrop(breach.to_string()))
    }

    fn resumes(&self, alone: &Reply, at: usize) -> Result<(), Breach> {
        let resume = Some(alone.pieces[..at].to_vec());
        self.reply(Plan { resume, ..Plan::plain(SEED) }, CALL_TIMEOUT)?
            .expect(alone, |piece| Breach::ResumesWrong { at, piece })
    }
}
