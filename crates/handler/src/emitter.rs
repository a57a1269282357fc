//! Non-blocking emitter, with which an engine's own thread sends pieces.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;

use crate::error::Result;
use crate::transcript::{Admission, Stop, Writer};

/// Non-blocking sender of the pieces of one call, for an engine that serves many calls.
///
/// Obtain one from [`AsyncJob::emitter`](crate::AsyncJob::emitter) or
/// [`Job::emitter`](crate::Job::emitter), and pass it to the engine's thread.
/// `handle` then waits until the engine signals that the reply is complete.
pub struct Emitter<O> {
    writer: Writer,
    output: PhantomData<fn(O)>,
}

/// Reason why a piece was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The buffer is full: pause only this sequence, and retry when [`Emitter::on_change`] calls
    /// back.
    Full,
    /// The call has ended or must end.
    Stopped(Stop),
}

impl<O: Serialize> Emitter<O> {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { writer, output: PhantomData }
    }

    /// Sends a piece if there is space for it.
    ///
    /// # Errors
    ///
    /// Returns a [`Refused`] that tells a full buffer from a stop. The piece is only borrowed, so
    /// the caller can retry with it.
    pub fn try_emit(&self, piece: &O) -> Result<(), Refused> {
        match self.writer.try_push(&encode(piece)) {
            Admission::Free => Ok(()),
            Admission::Full => Err(Refused::Full),
            Admission::Closed => Err(Refused::Stopped(Stop::Cancelled)),
            Admission::Stopped(stop) => Err(Refused::Stopped(stop)),
        }
    }

    /// Checks for a stop.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end.
    pub fn check(&self) -> Result<(), Stop> {
        self.writer.see_stop().map_or(Ok(()), Err)
    }

    /// Sets a callback that runs whenever there may be space again or the call must stop.
    ///
    /// The callback runs on the bridge's threads: it must only send a signal and return.
    pub fn on_change(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.writer.on_change(Arc::new(wake));
    }

    /// Sends a piece. Waits while more than 32 KiB of the reply are unsent, because the broker does
    /// not confirm the earlier frames.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end.
    pub async fn emit(&self, piece: &O) -> Result<(), Stop> {
        let piece = encode(piece);
        self.writer
            .until(|| match self.writer.try_push(&piece) {
                Admission::Free => Some(Ok(())),
                Admission::Full => None,
                Admission::Closed => Some(Err(Stop::Cancelled)),
                Admission::Stopped(stop) => Some(Err(stop)),
            })
            .await
    }

    pub(crate) fn emit_blocking(&self, piece: &O) -> Result<(), Stop> {
        self.writer.push_blocking(&encode(piece))
    }

    /// Waits until the call must stop, and returns the reason.
    pub async fn stopped(&self) -> Stop {
        self.writer.until(|| self.writer.see_stop()).await
    }
}

fn encode<O: Serialize>(piece: &O) -> Vec<u8> {
    // Fails only for types without a JSON form, such as a map with keys that are not strings.
    serde_json::to_vec(piece).expect("an Output type must serialize to JSON")
}

impl<O> Clone for Emitter<O> {
    fn clone(&self) -> Self {
        Self { writer: self.writer.clone(), output: PhantomData }
    }
}

impl<O> fmt::Debug for Emitter<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emitter").finish_non_exhaustive()
    }
}
