//! Library of the tests: private RabbitMQ and moto servers, an S3 store, a fault-injecting proxy,
//! an HTTP server, a whole system in one process, a real model, a Python with packages, and the fuzz
//! targets.

#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "http")]
pub mod http;
pub mod models;
pub mod moto;
pub mod proxy;
pub mod python;
pub mod rabbit;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "system")]
pub mod system;

pub use moto::Moto;
pub use proxy::Proxy;
pub use rabbit::{Rabbit, amqp_url};
