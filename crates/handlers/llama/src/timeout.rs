//! Time limits, under the names of DJLServing's options.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::error::LoadError;

/// Reads an option in seconds.
///
/// # Errors
///
/// Returns an error if the value is not a positive, finite duration.
pub(crate) fn seconds(option: &str, given: Option<f64>) -> Result<Option<Duration>, LoadError> {
    let Some(seconds) = given else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if !limit.is_zero() => Ok(Some(limit)),
        _ => Err(LoadError::unsupported(
            format!("the option {option}"),
            seconds.to_string(),
            "a number of seconds above 0",
        )),
    }
}

/// Reads an option in milliseconds.
///
/// # Errors
///
/// Returns an error if the value is 0.
pub(crate) fn milliseconds(
    option: &str,
    given: Option<u64>,
) -> Result<Option<Duration>, LoadError> {
    if given == Some(0) {
        let supported = "a number of milliseconds above 0";
        return Err(LoadError::unsupported(format!("the option {option}"), "0", supported));
    }
    Ok(given.map(Duration::from_millis))
}

/// Loads a model within a time limit.
///
/// A load that takes longer is abandoned on its thread: it may be waiting for a disk or a network
/// that never answers, and the process is about to end.
///
/// # Errors
///
/// Returns the error of the load, or an error if the time limit passes.
pub(crate) fn within<T: Send + 'static>(
    limit: Option<Duration>,
    load: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    let Some(limit) = limit else { return load() };
    let (done, loaded) = channel();
    let thread = std::thread::Builder::new().name("nsbridge-load-model".to_owned());
    let thread = thread.spawn(move || done.send(load()).is_ok());
    let thread = thread.map_err(|error| LoadError::Read(format!("no thread to load: {error}")))?;
    match loaded.recv_timeout(limit) {
        Ok(loaded) => loaded,
        Err(RecvTimeoutError::Timeout) => Err(LoadError::Slow(limit.as_secs_f64())),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => Err(LoadError::Read("the load ended without a result".to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::{seconds, within};
    use crate::error::LoadError;

    #[test]
    fn a_load_that_never_ends_is_given_up_and_one_in_time_is_not() {
        let (release, held) = channel::<()>();
        let hanging = move || {
            let _ = held.recv();
            Ok(())
        };
        let error = within(Some(Duration::from_millis(20)), hanging).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the model was not loaded within model_loading_timeout, 0.02 s"
        );
        drop(release);
        for limit in [None, Some(Duration::from_secs(3600))] {
            assert_eq!(within(limit, || Ok(5)).unwrap(), 5);
            let failed = within(limit, || Err::<(), _>(LoadError::Missing("it".to_owned())));
            assert!(matches!(failed, Err(LoadError::Missing(_))));
        }
    }

    #[test]
    fn a_panic_is_passed_on() {
        let load = || within(Some(Duration::from_secs(3600)), || -> Result<(), _> { panic!("it") });
        let panic = std::panic::catch_unwind(load).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"it"));
    }

    #[test]
    fn only_lengths_of_time_are_taken() {
        assert_eq!(seconds("x", None).unwrap(), None);
        assert_eq!(seconds("x", Some(1.5)).unwrap(), Some(Duration::from_millis(1500)));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-30] {
            let error = seconds("predict_timeout", Some(wrong)).unwrap_err().to_string();
            assert!(error.contains("predict_timeout"), "{error}");
        }
    }
}
