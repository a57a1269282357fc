//! A connection's settings, and its lifetime.

use std::sync::Arc;

use tokio::sync::watch;

use super::frame_filter::Bodies;
use super::io::Io;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::timing::Timing;

/// Settings that a connection takes over from its broker.
pub(super) struct Settings {
    /// Body size limits of the connection's channels.
    pub(super) bodies: Arc<Bodies>,
    pub(super) limits: Limits,
    pub(super) timing: Timing,
    /// True if the broker sets `x-acquired-count`.
    pub(super) counts_acquired: bool,
    pub(super) io: Arc<Io>,
}

/// Lifetime of a connection.
///
/// lapin may never complete a call if the connection dies during it. Every call that waits for the
/// broker is therefore raced against this lifetime.
#[derive(Clone)]
pub(super) struct Life(watch::Receiver<Option<String>>);

impl Life {
    pub(super) fn new(ended: watch::Receiver<Option<String>>) -> Self {
        Self(ended)
    }

    /// Waits for the end of the connection and returns the reason.
    pub(super) async fn ended(&self) -> Error {
        let mut ended = self.0.clone();
        let reason = match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        };
        Error::Lost { reason }
    }

    /// Runs `work`, and returns [`Error::Lost`] if the connection ends first.
    pub(super) async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            error = self.ended() => Err(error),
        }
    }
}
