//! Metrics in CloudWatch, which alarms and Application Auto Scaling act on.

use std::fmt::Write as _;

use anyhow::Result;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::aws::{Aws, Service};
use crate::config::CloudWatchConfig;

const SERVICE: Service = Service { id: "CloudWatch", name: "monitoring" };

/// Maximum number of metrics in a request: the limit of the action.
const MAX_METRICS: usize = 1000;

/// Value of a metric of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Datum {
    pub(crate) metric: &'static str,
    pub(crate) model: String,
    pub(crate) value: f64,
    /// Unit as CloudWatch names it.
    pub(crate) unit: &'static str,
}

/// Publisher of metrics.
#[derive(Debug)]
pub(crate) struct CloudWatch {
    aws: Aws,
    namespace: String,
}

impl CloudWatch {
    pub(crate) async fn new(config: &CloudWatchConfig) -> Result<Self> {
        let aws = Aws::new(SERVICE, config.region.as_deref()).await?;
        Ok(Self { aws, namespace: config.namespace.clone() })
    }

    /// Publishes metrics with the time of now.
    pub(crate) async fn put(&self, data: &[Datum]) -> Result<()> {
        for part in data.chunks(MAX_METRICS) {
            let kind = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");
            self.aws.post(&[kind], form(&self.namespace, part)).await?;
        }
        Ok(())
    }
}

/// Returns the action `PutMetricData` as a form.
fn form(namespace: &str, data: &[Datum]) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut form =
        format!("Action=PutMetricData&Version=2010-08-01&Namespace={}", encoded(namespace));
    for (number, datum) in (1..).zip(data) {
        for (field, value) in [
            ("MetricName", datum.metric),
            ("Unit", datum.unit),
            ("Value", &datum.value.to_string()),
            ("Dimensions.member.1.Name", "Model"),
            ("Dimensions.member.1.Value", &datum.model),
        ] {
            let value = encoded(value);
            // A text takes any text.
            let _ = write!(form, "&MetricData.member.{number}.{field}={value}");
        }
    }
    form
}
