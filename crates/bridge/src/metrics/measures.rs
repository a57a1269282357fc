//! What the handler tells of itself, among the worker's metrics.

use std::fmt;
use std::sync::{Arc, OnceLock};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::{Measure, MeasureKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The handler, once it is loaded.
#[derive(Clone, Default)]
pub(super) struct Measures(Arc<OnceLock<Arc<dyn AnyHandler>>>);

impl Measures {
    pub(super) fn of(&self, handler: Arc<dyn AnyHandler>) {
        let _ = self.0.set(handler);
    }
}

impl fmt::Debug for Measures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Measures")
    }
}

impl Collector for Measures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(handler) = self.0.get() else { return Ok(()) };
        for Measure { name, help, kind, value } in handler.measures() {
            match kind {
                MeasureKind::Counter => put(&mut encoder, name, help, &ConstCounter::new(value))?,
                MeasureKind::Gauge => put(&mut encoder, name, help, &ConstGauge::new(value))?,
            }
        }
        Ok(())
    }
}

fn put(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}
