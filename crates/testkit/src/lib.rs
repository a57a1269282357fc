//! What nsbridge's tests stand on: a private RabbitMQ node, and a proxy that breaks connections.

#[cfg(feature = "system")]
pub mod http;
pub mod proxy;
pub mod rabbit;
#[cfg(feature = "system")]
pub mod system;

pub use proxy::Proxy;
pub use rabbit::{Rabbit, amqp_url};
