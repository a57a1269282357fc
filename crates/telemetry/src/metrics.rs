//! Registration of Prometheus metrics under names that are constants.

use std::fmt;

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry, Unit};

/// Name and help text of one metric. [`names!`](crate::names) defines them.
#[derive(Debug)]
pub struct Name {
    /// Name as its convention writes it, or ours.
    name: &'static str,
    help: &'static str,
}

impl Name {
    /// Creates a name. Dots in it are OpenTelemetry's.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }

    /// Returns the name as Prometheus writes it.
    fn prometheus(&self) -> String {
        self.name.replace('.', "_")
    }
}

/// Defines a constant of type [`Name`](crate::metrics::Name) for each metric.
///
/// ```
/// nsbridge_telemetry::names! {
///     FRAMES = "frames_sent",
///         "Frames published";
/// }
/// ```
#[macro_export]
macro_rules! names {
    ($($id:ident = $name:literal, $help:literal;)*) => {
        $(pub(super) const $id: $crate::metrics::Name = $crate::metrics::Name::new($name, $help);)*
    };
}

/// Registry that metrics are put into by their names.
#[derive(Debug)]
pub struct Registrar<'a>(&'a mut Registry);

impl<'a> Registrar<'a> {
    /// Creates a registrar of a registry, whose labels and prefix all metrics get.
    pub fn new(registry: &'a mut Registry) -> Self {
        Self(registry)
    }

    /// Registers a metric and returns it.
    pub fn put<M: Metric + Clone>(&mut self, name: &Name, metric: &M) -> M {
        self.0.register(name.prometheus(), name.help, metric.clone());
        metric.clone()
    }

    /// Registers a metric of seconds and returns it.
    pub fn seconds<M: Metric + Clone>(&mut self, name: &Name, metric: &M) -> M {
        let unit = Unit::Seconds;
        self.0.register_with_unit(name.prometheus(), name.help, unit, metric.clone());
        metric.clone()
    }

    /// Registers a metric for each value of a label.
    pub fn by<M: Clone>(
        &mut self,
        name: &Name,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        zero: fn() -> M,
    ) -> By<M>
    where
        Family<Label, M, fn() -> M>: Metric,
    {
        let by = By::new(label, values, zero);
        self.put(name, &by.family);
        by
    }

    /// Registers a metric of seconds for each value of a label.
    pub fn seconds_by<M: Clone>(
        &mut self,
        name: &Name,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        zero: fn() -> M,
    ) -> By<M>
    where
        Family<Label, M, fn() -> M>: Metric,
    {
        let by = By::new(label, values, zero);
        self.seconds(name, &by.family);
        by
    }
}

/// Label and its value.
type Label = [(&'static str, &'static str); 1];

/// Family with one metric for each value of a label, all present from the start.
pub struct By<M> {
    label: &'static str,
    family: Family<Label, M, fn() -> M>,
}

impl<M: Clone> By<M> {
    fn new(
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        zero: fn() -> M,
    ) -> Self {
        let family = Family::new_with_constructor(zero);
        for value in values {
            drop(family.get_or_create(&[(label, value)]));
        }
        Self { label, family }
    }

    /// Returns the metric of a value.
    pub fn of(&self, value: &'static str) -> M {
        self.family.get_or_create_owned(&[(self.label, value)])
    }
}

impl<M> fmt::Debug for By<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By").field("label", &self.label).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::registry::Registry;

    use super::{Name, Registrar};

    #[test]
    fn the_metrics_of_all_values_exist_from_the_start() {
        let mut registry = Registry::default();
        let name = Name::new("messaging.ends", "Ends, by how");
        let ends = Registrar::new(&mut registry).by(
            &name,
            "end",
            ["well", "badly"],
            Counter::<u64>::default,
        );
        ends.of("well").inc();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in
            ["messaging_ends_total{end=\"well\"} 1", "messaging_ends_total{end=\"badly\"} 0"]
        {
            assert!(text.contains(line), "{text}");
        }
    }
}
