//! Errors of the kernels.

/// Error of making a matrix or a cache.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system has no memory for as many numbers.
    #[error("there is no memory for {0} numbers")]
    OutOfMemory(usize),
    /// The kernels have no form for these weights.
    #[error("{field} is {found}, and only {supported} is supported")]
    Unsupported {
        /// Property, with the name of the tensor.
        field: String,
        /// Value of the property.
        found: String,
        /// Supported values.
        supported: String,
    },
}
