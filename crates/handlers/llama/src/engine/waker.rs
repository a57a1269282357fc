//! Wake-up of the engine thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use super::Command;

/// Handle that wakes the thread, once for all events since the thread last checked.
#[derive(Clone)]
pub(super) struct Waker {
    commands: Sender<Command>,
    woken: Arc<AtomicBool>,
}

impl Waker {
    pub(super) fn new(commands: Sender<Command>, woken: Arc<AtomicBool>) -> Self {
        Self { commands, woken }
    }

    pub(super) fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            let _ = self.commands.send(Command::Look);
        }
    }
}

/// Guard of a caller that waits for its result. If it is dropped before that, the engine is woken
/// and removes the request at once.
pub(super) struct Left(Option<Waker>);

impl Left {
    pub(super) fn new(waker: Waker) -> Self {
        Self(Some(waker))
    }

    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(waker) = &self.0 {
            waker.wake();
        }
    }
}
