//! Object-safe form of the [`Handler`] trait, which the bridge uses for every handler.

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use nsbridge_protocol::{Fingerprint, Finish, Pieces};

use crate::transcript::Writer;
use crate::{Error, Handler, Health, Job, JobInfo, Measure, Result, Slots};

/// Arguments of one call.
#[derive(Debug)]
pub struct Call {
    /// Input of the request as JSON.
    pub input: Vec<u8>,
    /// Information about the request for the handler.
    pub info: JobInfo,
    /// Pieces that the client already has.
    pub resume: Option<Pieces>,
    /// Destination of the pieces.
    pub writer: Writer,
}

/// [`Handler`] with its types erased, so that the bridge is compiled once.
pub trait AnyHandler: Send + Sync {
    /// Decodes the input and runs [`Handler::handle`].
    fn call(&self, call: Call) -> LocalBoxFuture<'_, Result<Finish>>;

    /// Calls [`Handler::warm_up`].
    fn warm_up(&self) -> LocalBoxFuture<'_, Result<()>>;

    /// Calls [`Handler::slots`].
    fn slots(&self) -> Slots;

    /// Calls [`Handler::health`].
    fn health(&self) -> Health;

    /// Calls [`Handler::forget`].
    fn forget(&self);

    /// Calls [`Handler::measures`].
    fn measures(&self) -> Vec<Measure>;

    /// Calls [`Handler::fingerprint`].
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
