//! Errors of this crate, without any text of a request.

use std::io;
use std::time::Duration;

use nsbridge_base::child::Exit;

/// Reason why a Python process or a call in it failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start {python}; name a Python interpreter in [handler] python")]
    Spawn {
        python: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot {what}")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{file} cannot be loaded: {why}")]
    Load { file: String, why: String },
    #[error("{file} was not loaded within {} s; [handler] load_timeout_s sets the limit", .limit.as_secs())]
    Timeout { file: String, limit: Duration },
    #[error("the Python process ended while it loaded {file}: {exit}")]
    EndedLoading { file: String, exit: Exit },
    #[error("the Python process does not speak this worker's protocol")]
    Protocol,
    #[error("the Python process ended during the call: {0}")]
    Ended(Exit),
    #[error(
        "the Python process was ended during the call, because another call in it ignored a stop"
    )]
    Neighbor,
    #[error("`handle` raised {class} at {place}")]
    Raised { class: String, place: String },
}
