//! Boundary of a request: a panic within it is its own failure.
//!
//! `tokenizers`, `minijinja` and `llguidance` panic on some texts, and any client can send such a
//! text. The state behind the boundary belongs to the request or is only read, so nothing has to be
//! rebuilt after a panic.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use nsbridge_handler::Result;

/// Panic of the work on a request. The panic's own message is dropped, since it may quote the text.
#[derive(Debug, thiserror::Error)]
#[error("the work on the request panicked")]
pub(crate) struct Panicked;

/// Runs a part of the work on a request, and returns a panic as an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
}

/// Awaits the call of a request.
///
/// # Errors
///
/// Returns the error of the call. A panic fails the request, which is not retried.
pub(crate) async fn caught_call<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let mut call = pin!(call);
    poll_fn(|context| {
        let polled = caught(|| call.as_mut().poll(context));
        polled.unwrap_or_else(|panicked| Poll::Ready(Err(panicked.into())))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures_executor::block_on;
    use nsbridge_handler::{Error, Result};

    use super::{caught, caught_call};

    #[test]
    fn a_panic_is_the_failure_of_its_request_and_quotes_nothing() {
        let said = "the canary in the prompt".to_owned();
        let failed = block_on(caught_call(async { panic_with(&said) })).unwrap_err();
        assert!(matches!(&failed, Error::Failed(_)), "{failed:?}");
        assert_eq!(failed.to_string(), "the work on the request panicked");
        assert!(caught(|| panic_with(&said)).is_err());
    }

    #[test]
    fn a_call_without_a_panic_is_unchanged() {
        assert_eq!(block_on(caught_call(ready(Ok(5)))).unwrap(), 5);
        let refused = block_on(caught_call(ready(Err::<(), _>(Error::bad_input("no")))));
        assert!(matches!(refused, Err(Error::BadInput(why)) if why == "no"));
        assert_eq!(caught(|| 7).unwrap(), 7);
    }

    fn panic_with(text: &str) -> Result<()> {
        panic!("{text}")
    }
}
