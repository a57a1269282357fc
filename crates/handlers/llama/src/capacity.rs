//! Memory that a model of some shape takes, and the degrees of tensor parallelism that it allows.

mod degrees;
mod memory;

pub use self::degrees::Need;
pub(crate) use self::memory::mebibytes;
pub use self::memory::{Memory, parameters};
