//! Metrics of the handler, among those of the worker.

use std::fmt;
use std::sync::{Arc, OnceLock};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::{Measure, MeasureKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Collector over the handler, once it is loaded.
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
        let measures = handler.measures();
        for several in measures.chunk_by(|one, other| one.name == other.name) {
            let Some(Measure { name, help, kind, .. }) = several.first() else { continue };
            let kind = match kind {
                MeasureKind::Counter => MetricType::Counter,
                MeasureKind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for measure in several {
                let labels: Vec<(&str, &str)> =
                    measure.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                put(measure, metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn put(measure: &Measure, encoder: MetricEncoder<'_>) -> fmt::Result {
    match measure.kind {
        MeasureKind::Counter => ConstCounter::new(measure.value).encode(encoder),
        MeasureKind::Gauge => ConstGauge::new(measure.value).encode(encoder),
    }
}
