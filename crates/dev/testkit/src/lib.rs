//! Test servers of nsbridge: a private RabbitMQ node, a moto server, an in-memory S3 store, and a
//! TCP proxy that injects connection faults.

#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "http")]
pub mod http;
pub mod moto;
pub mod proxy;
pub mod rabbit;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "system")]
pub mod system;

pub use moto::Moto;
pub use proxy::Proxy;
pub use rabbit::{Rabbit, amqp_url};
