//! Configuration of a worker in the making, from the options of another program.
//!
//! A [`Draft`] is the `worker.toml`, a [`Report`] has a line for each option of the input, and [`Imported`] has
//! both. [`Source`] is the place of a model. The commands are `nsbridge import-djl` and `nsbridge import-vllm`.

mod draft;
mod imported;
mod models;
mod report;
mod source;
mod text;

pub use draft::{Draft, Written};
pub use imported::Imported;
pub use models::{Revision, fate_of_revision};
pub use report::{Entry, Fate, Report};
pub use source::{Source, base_name, plain_name, without_secrets};
pub use text::key;
