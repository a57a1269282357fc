//! Number of tasks of a service of ECS.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::aws::{Aws, Service};
use crate::config::EcsConfig;

const SERVICE: Service = Service { id: "ECS", name: "ecs" };

/// Time after which a number is set again: it may have been changed by hand.
const SET_AGAIN: Duration = Duration::from_secs(300);

/// Service of ECS whose number of tasks is set.
#[derive(Debug)]
pub(crate) struct Ecs {
    aws: Aws,
    config: EcsConfig,
    /// Number that was set last, with its time.
    set: Option<(u32, Instant)>,
}

impl Ecs {
    pub(crate) async fn new(config: &EcsConfig) -> Result<Self> {
        let aws = Aws::new(SERVICE, config.region.as_deref()).await?;
        Ok(Self { aws, config: config.clone(), set: None })
    }

    /// Sets the number of tasks for this number of workers. Returns the number if the service was told.
    pub(crate) async fn set(&mut self, desired: u32) -> Result<Option<u32>> {
        let tasks = desired.saturating_sub(self.config.other_workers);
        if self.set.is_some_and(|(known, at)| known == tasks && at.elapsed() < SET_AGAIN) {
            return Ok(None);
        }
        let EcsConfig { cluster, service, .. } = &self.config;
        let body = json!({ "cluster": cluster, "service": service, "desiredCount": tasks });
        let headers = [
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", "AmazonEC2ContainerServiceV20141113.UpdateService"),
        ];
        self.aws.post(&headers, body.to_string()).await?;
        self.set = Some((tasks, Instant::now()));
        Ok(Some(tasks))
    }
}
