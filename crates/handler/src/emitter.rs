//! How an engine's own thread sends pieces.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;

use crate::transcript::{Admission, Writer};
use crate::{Result, Stop};

/// Sends the pieces of one call without ever blocking: for an engine that serves many calls.
///
/// Get one from [`Job::emitter`](crate::Job::emitter), hand it to the engine's thread, and let
/// `handle` wait for the engine's word that the reply is complete.
pub struct Emitter<O> {
    writer: Writer,
    output: PhantomData<fn(O)>,
}

/// Why a piece was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room: pause this sequence only, and try again when [`Emitter::on_change`] calls.
    Full,
    /// The call is over or is to end.
    Stopped(Stop),
}

impl<O: Serialize> Emitter<O> {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { writer, output: PhantomData }
    }

    /// Sends a piece if there is room for it.
    ///
    /// # Errors
    ///
    /// [`Refused`] says whether to wait or to end. The piece is only borrowed, so it is still
    /// there for the next try.
    pub fn try_emit(&self, piece: &O) -> Result<(), Refused> {
        match self.writer.try_push(&encode(piece)) {
            Admission::Free => Ok(()),
            Admission::Full => Err(Refused::Full),
            Admission::Closed => Err(Refused::Stopped(Stop::Cancelled)),
            Admission::Stopped(stop) => Err(Refused::Stopped(stop)),
        }
    }

    /// Why the call is to end, if it is.
    ///
    /// # Errors
    ///
    /// The reason to stop.
    pub fn check(&self) -> Result<(), Stop> {
        self.writer.stop().map_or(Ok(()), Err)
    }

    /// Has `wake` called whenever there may be room again or the call is to stop.
    ///
    /// It is called on the bridge's threads: it must only send a signal and return.
    pub fn on_change(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.writer.on_change(Arc::new(wake));
    }

    pub(crate) async fn emit(&self, piece: &O) -> Result<(), Stop> {
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

    pub(crate) async fn stopped(&self) -> Stop {
        self.writer.until(|| self.writer.stop()).await
    }
}

fn encode<O: Serialize>(piece: &O) -> Vec<u8> {
    // Fails only for types that are no JSON at all, such as a map with non-text keys.
    serde_json::to_vec(piece).expect("an Output type must serialise to JSON")
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
