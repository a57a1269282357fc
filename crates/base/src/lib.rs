//! Ground of the other crates of nsbridge: configuration files, back-offs, random numbers, files that
//! hold secrets.
//!
//! | you need | you take |
//! |---|---|
//! | a configuration from TOML and the environment | `config`, with the feature of that name |
//! | the addresses of a broker's nodes in one text | [`broker_urls`](fn@broker_urls) |
//! | an error and its causes in one line | [`chain`](fn@chain) |
//! | the environment and the end of a child process | [`child`] |
//! | pauses between tries | [`Backoff`] |
//! | random numbers and bytes | [`random`] |
//! | whether a file has changed | [`FileStamp`] |
//! | untrusted text for a terminal | [`plain`](fn@plain) |
//! | a file that only its owner may read | [`private_file`] |

mod backoff;
mod broker_urls;
mod chain;
pub mod child;
#[cfg(feature = "config")]
pub mod config;
mod file_stamp;
mod plain;
pub mod private_file;
pub mod random;

pub use backoff::{Backoff, Pauses};
pub use broker_urls::broker_urls;
pub use chain::chain;
pub use file_stamp::{FileStamp, Reload};
pub use plain::plain;
