//! Requests of a flow that may still run.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::reply::Running;

/// Requests of a flow and of its parts. Each request is also listed by the flows above its own, so
/// that the end of a flow reaches the requests of parts that were moved to other tasks.
#[derive(Debug, Default)]
pub(super) struct Requests {
    above: Option<Arc<Self>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    canceled: bool,
    running: Vec<Running>,
}

impl Requests {
    /// Creates the list of a part of a flow.
    pub(super) fn below(above: &Arc<Self>) -> Self {
        Self { above: Some(above.clone()), state: Mutex::default() }
    }

    /// Lists a request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] if a flow of the request has been canceled.
    pub(super) fn add(&self, running: &Running) -> Result<()> {
        let mut list = Some(self);
        while let Some(requests) = list {
            let mut state = requests.state.lock();
            if state.canceled {
                return Err(Error::Closed);
            }
            state.running.retain(|earlier| !earlier.is_over());
            state.running.push(running.clone());
            list = requests.above.as_deref();
        }
        Ok(())
    }

    /// Returns [`Error::Closed`] if this flow or one above it has been canceled.
    pub(super) fn check(&self) -> Result<()> {
        let mut list = Some(self);
        while let Some(requests) = list {
            if requests.state.lock().canceled {
                return Err(Error::Closed);
            }
            list = requests.above.as_deref();
        }
        Ok(())
    }

    /// Cancels the requests that still run, and refuses others.
    pub(super) fn cancel(&self) {
        let mut state = self.state.lock();
        state.canceled = true;
        let running = std::mem::take(&mut state.running);
        drop(state);
        running.iter().for_each(Running::cancel);
    }
}
