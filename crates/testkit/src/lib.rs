//! What nsbridge's tests stand on: a private RabbitMQ node, a proxy that breaks connections, an
//! object store in memory, moto, and what is fuzzed.

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
