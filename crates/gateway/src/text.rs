//! Text of requests and replies: fields, errors, tools, and the pieces of an output.

pub(crate) mod error;
pub(crate) mod extent;
pub(crate) mod fields;
pub(crate) mod output;
pub(crate) mod tools;
