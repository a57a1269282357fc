//! Readers of RabbitMQ's management API, and of the metrics pages of workers and gateways.

pub mod address;
mod buckets;
mod exposition;
mod http;
mod management;
mod page;
mod queue;

pub use self::buckets::Buckets;
pub use self::http::{Answer, Http};
pub use self::management::{Declaration, Management};
pub use self::page::{Count, Counters, Gateway, Page, Worker};
pub use self::queue::{Queue, Use, model_of};
