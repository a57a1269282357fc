//! Boundary of the judge: a panic on a text is the failure of its request.
//!
//! A judge reads what users write, and its findings are a function of the text. So another request
//! is judged as if there had been no panic, and nothing is sent of the text that was not judged.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt as _;
use nsbridge_handler::{Error, Result};

/// Runs the judge on a text.
///
/// # Errors
///
/// Returns an error if the judge panics. The request is not retried.
pub(crate) fn caught<T>(judging: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(judging)).map_err(|_| panicked())
}

/// Awaits the judge's part of a call.
///
/// # Errors
///
/// Returns the error of that part, or an error if the judge panics. The request is not retried.
pub(crate) async fn caught_call<T>(judging: impl Future<Output = Result<T>>) -> Result<T> {
    let judged = AssertUnwindSafe(judging).catch_unwind().await;
    judged.unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    Error::failed("the judge panicked")
}
