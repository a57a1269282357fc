//! What nsbridge's tests stand on: a private RabbitMQ node, a proxy that breaks connections, and an
//! object store in memory.

#[cfg(feature = "system")]
pub mod http;
pub mod proxy;
pub mod rabbit;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "system")]
pub mod system;

pub use proxy::Proxy;
pub use rabbit::{Rabbit, amqp_url};
