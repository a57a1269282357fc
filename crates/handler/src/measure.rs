//! Numbers that a handler tells of itself.

/// A number that a handler counts or tells, for the worker's metrics.
///
/// The worker shows it as `nsbridge_handler_` and its name. None of it may tell of a tenant, a
/// request or anything that a user wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// In `snake_case`, with its unit if it has one; the same each time.
    pub name: &'static str,
    /// What it counts, in a few words.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: MeasureKind,
    /// Of which of several it is, where one name has several numbers; they follow one another.
    pub label: Option<(&'static str, u32)>,
    /// What it is now.
    pub value: f64,
}

/// How a [`Measure`] is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureKind {
    /// It counts from the start on and never falls.
    Counter,
    /// It tells how something is now.
    Gauge,
}

impl Measure {
    /// A number that only grows.
    pub const fn counter(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, kind: MeasureKind::Counter, label: None, value }
    }

    /// A number that rises and falls.
    pub const fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, kind: MeasureKind::Gauge, label: None, value }
    }

    /// The same number, as that of one of several: `name{label="index"}`.
    pub const fn of(self, label: &'static str, index: u32) -> Self {
        Self { label: Some((label, index)), ..self }
    }
}
