//! Number of workers that each model of a fleet should have.
//!
//! [`Scaler`] observes the queues and the workers of models, decides with [`nsbridge_scaling::policy`], and
//! tells the number on a page, to Prometheus, to CloudWatch and to ECS. [`replay()`] makes the decisions of a
//! log again. The command is `nsbridge scaler`.

mod averages;
mod aws;
mod cloudwatch;
mod config;
mod decision_log;
mod ecs;
mod leader;
mod metrics;
mod model;
mod pages;
mod pending;
mod replay;
mod scaler;
mod workers;

pub use self::config::{
    CloudWatchConfig, Config, Decisions, EcsConfig, ManagementConfig, ModelConfig, Server,
};
pub use self::replay::{Replayed, replay};
pub use self::scaler::Scaler;
