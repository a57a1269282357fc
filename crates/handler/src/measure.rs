//! Metrics of a handler.

use std::fmt;

/// Metric that a handler reports through the worker.
///
/// The worker exports it as `nsbridge_handler_` followed by the name. No field may reveal a tenant,
/// a request or anything that a user wrote.
///
/// ```
/// use nsbridge_handler::Measure;
///
/// // `/metrics` shows it as `nsbridge_handler_cache_hits_total`.
/// let hits = Measure::counter("cache_hits", "Prompts found in the cache", 12.0);
/// assert_eq!(hits.value, 12.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measure {
    /// Name in `snake_case`, including the unit if there is one. It never changes.
    pub name: &'static str,
    /// Short description of the metric.
    pub help: &'static str,
    /// Kind of the metric: counter or gauge.
    pub kind: MeasureKind,
    /// Labels of this value, where one name has several values. The values of one name are adjacent
    /// and have the same labels.
    pub labels: Vec<(&'static str, String)>,
    /// Current value.
    pub value: f64,
}

/// Kind of a [`Measure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureKind {
    /// Counter: starts at zero and never decreases.
    Counter,
    /// Gauge: a current value that rises and falls.
    Gauge,
}

impl Measure {
    /// Creates a counter.
    pub const fn counter(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, kind: MeasureKind::Counter, labels: Vec::new(), value }
    }

    /// Creates a gauge.
    pub const fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, kind: MeasureKind::Gauge, labels: Vec::new(), value }
    }

    /// Adds a label for a metric with several values: `name{label="value"}`.
    ///
    /// ```
    /// use nsbridge_handler::Measure;
    ///
    /// let first = Measure::counter("drafted", "Drafted tokens by place", 7.0).of("place", 1);
    /// assert_eq!(first.labels, [("place", "1".to_owned())]);
    /// ```
    #[must_use]
    pub fn of(mut self, label: &'static str, value: impl fmt::Display) -> Self {
        self.labels.push((label, value.to_string()));
        self
    }
}
