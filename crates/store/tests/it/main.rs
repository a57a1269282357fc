//! A store on a server that speaks S3, and on folders.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod small_files;
mod store;
