//! A connection's settings, and its lifetime.

use std::sync::Arc;

use tokio::sync::watch;

use super::io::Io;
use super::shallow::Bodies;
use crate::{Error, Limits, Result};

/// What a connection takes over from its broker.
pub(super) struct Settings {
    /// Limits of the bodies that it takes.
    pub(super) bodies: Arc<Bodies>,
    pub(super) limits: Limits,
    /// Whether the broker sets `x-acquired-count`.
    pub(super) counts_acquired: bool,
    pub(super) io: Arc<Io>,
}

/// How long a connection lives.
///
/// lapin may leave a call unanswered whose connection dies while it is made, so every call that
/// waits for the broker is made under this.
#[derive(Clone)]
pub(super) struct Life(watch::Receiver<Option<String>>);

impl Life {
    pub(super) fn new(ended: watch::Receiver<Option<String>>) -> Self {
        Self(ended)
    }

    /// Waits for the end; tells why.
    pub(super) async fn ended(&self) -> Error {
        let mut ended = self.0.clone();
        let reason = match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        };
        Error::Lost { reason }
    }

    /// Does this, unless the connection ends first.
    pub(super) async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            error = self.ended() => Err(error),
        }
    }
}
