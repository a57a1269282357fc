//! The trait as the bridge sees it: one type for every handler.

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use nsbridge_protocol::{Fingerprint, Finish, Pieces};

use crate::transcript::Writer;
use crate::{Error, Handler, Health, Job, JobInfo, Measure, Result, Slots};

/// What one call needs.
#[derive(Debug)]
pub struct Call {
    /// The request's input as JSON.
    pub input: Vec<u8>,
    /// What the handler may know about the request.
    pub info: JobInfo,
    /// Pieces the client already has.
    pub resume: Option<Pieces>,
    /// Where the pieces go.
    pub writer: Writer,
}

/// A [`Handler`] with its types hidden, so that the bridge is compiled once.
pub trait AnyHandler: Send + Sync {
    /// Reads the input and runs [`Handler::handle`].
    fn call(&self, call: Call) -> LocalBoxFuture<'_, Result<Finish>>;

    /// [`Handler::warm_up`].
    fn warm_up(&self) -> LocalBoxFuture<'_, Result<()>>;

    /// [`Handler::slots`].
    fn slots(&self) -> Slots;

    /// [`Handler::health`].
    fn health(&self) -> Health;

    /// [`Handler::forget`].
    fn forget(&self);

    /// [`Handler::measures`].
    fn measures(&self) -> Vec<Measure>;

    /// [`Handler::fingerprint`].
    fn fingerprint(&self) -> Option<Fingerprint>;
}

impl<H: Handler> AnyHandler for H {
    fn call(&self, call: Call) -> LocalBoxFuture<'_, Result<Finish>> {
        async move {
            let Call { input, info, resume, writer } = call;
            let input = serde_json::from_slice(&input)
                .map_err(|error| Error::bad_input(format!("the input does not fit: {error}")))?;
            self.handle(input, &mut Job::new(info, writer, resume)).await
        }
        .boxed_local()
    }

    fn warm_up(&self) -> LocalBoxFuture<'_, Result<()>> {
        Handler::warm_up(self).boxed_local()
    }

    fn slots(&self) -> Slots {
        Handler::slots(self)
    }

    fn health(&self) -> Health {
        Handler::health(self)
    }

    fn forget(&self) {
        Handler::forget(self);
    }

    fn measures(&self) -> Vec<Measure> {
        Handler::measures(self)
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Handler::fingerprint(self).map(Fingerprint)
    }
}
