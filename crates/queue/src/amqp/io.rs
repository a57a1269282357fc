//! Thread that serves sockets and heartbeats.

use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// Runtime with one thread, separate from the caller's.
pub(super) struct Io {
    /// Runtime, taken in `drop`. Dropping a runtime blocks, which tokio forbids in async code, so
    /// `drop` shuts it down in the background.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Io {
    pub(super) fn start() -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nsbridge-amqp")
            .enable_all()
            .build()
            .map_err(|error| Error::Lost { reason: format!("cannot start a thread: {error}") })?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    /// Runs `work` on the I/O thread and waits for its result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let task = self.handle.spawn(work);
        task.await.map_err(|error| Error::Lost { reason: error.to_string() })
    }

    pub(super) fn spawn(
        self: &Arc<Self>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.handle.spawn(work)
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
