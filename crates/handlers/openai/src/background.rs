//! Thread that runs all exchanges with the server, and the watch over it.

use std::io;
use std::thread;

use nsbridge_handler::{Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Thread with a runtime. It ends when this handle is dropped.
///
/// The thread of the handler's calls is another one, which may end before the connections that are
/// kept for later requests.
#[derive(Debug)]
pub(crate) struct Background {
    runtime: Handle,
    _ended: oneshot::Sender<()>,
}

/// Task on the thread. It is aborted when this is dropped, and its connections are closed.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl Background {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (ended, end) = oneshot::channel();
        let body = move || drop(runtime.block_on(end));
        thread::Builder::new().name("nsbridge-openai".to_owned()).spawn(body)?;
        Ok(Self { runtime: handle, _ended: ended })
    }

    /// Starts a task.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        Task(self.runtime.spawn(work))
    }
}

impl<T> Task<Result<T>> {
    /// Waits for the task's result.
    pub(crate) async fn result(mut self) -> Result<T> {
        let lost = |_| Err(Error::fatal("the thread of the exchanges with the server has ended"));
        (&mut self.0).await.unwrap_or_else(lost)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
