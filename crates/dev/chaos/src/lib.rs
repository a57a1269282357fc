//! Parts that the fault scenarios and the attacks share.

pub mod http;
pub mod process;
