//! Errors of a device.

/// Error of a device: a call failed, or memory is short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// Wraps a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Returns the error for a kernel that a device does not have.
    #[cfg(any(feature = "cuda", feature = "emulator"))]
    pub(crate) fn no_kernel(name: &str) -> Self {
        Self(format!("there is no kernel {name}"))
    }
}

/// Result of an operation on a device.
pub type Result<T, E = Error> = std::result::Result<T, E>;
