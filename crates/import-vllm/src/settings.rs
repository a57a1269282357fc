//! Arguments of a command, each once, with the value that takes effect.

use serde_json::{Map, Value as Json};

use crate::arguments::Argument;

/// Name of the model that stands without a flag.
pub(super) const MODEL: &str = "MODEL";

/// Argument of a command, with the place where it is set.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// Name as it is written, without a value.
    pub(super) name: String,
    /// Argument of vLLM; `None` if vLLM has none of this name.
    pub(super) argument: Option<&'a Argument>,
    pub(super) given: Given,
    pub(super) place: String,
    /// Places of values that have no effect.
    pub(super) without_effect: Vec<String>,
}

/// Value that is given for an argument.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    /// Flag alone.
    On,
    /// Flag `--no-..`.
    Off,
    Values(Vec<String>),
    /// Fields of an object, each by a flag of its own.
    Fields(Map<String, Json>),
}

impl Setting<'_> {
    /// Returns the values.
    pub(super) fn values(&self) -> &[String] {
        match &self.given {
            Given::Values(values) => values,
            Given::On | Given::Off | Given::Fields(_) => &[],
        }
    }

    /// Returns the value, if there is exactly one.
    pub(super) fn value(&self) -> Option<&str> {
        match self.values() {
            [value] => Some(value),
            _ => None,
        }
    }

    /// Returns the place, with the places of other values.
    pub(super) fn places(&self) -> String {
        let Self { place, without_effect, .. } = self;
        if without_effect.is_empty() {
            return place.clone();
        }
        format!("{place}; another value ({}) has no effect", without_effect.join(", "))
    }

    /// Returns name and place, for a comment.
    pub(super) fn origin(&self) -> String {
        format!("{} ({})", self.name, self.place)
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self.argument, other.argument) {
            (Some(one), Some(other)) => one.name == other.name,
            (None, None) => self.name == other.name,
            _ => false,
        }
    }

    /// Returns true if an earlier value holds against a later one.
    fn holds_against(&self, later: &Self) -> bool {
        let is_object = |given: &Given| matches!(given, Given::Fields(_));
        self.name == MODEL && later.name != MODEL
            || is_object(&self.given) && !is_object(&later.given)
    }
}

/// Arguments in the order of the command.
#[derive(Debug, Default)]
pub(super) struct Settings<'a>(Vec<Setting<'a>>);

impl<'a> Settings<'a> {
    /// Adds an argument. A later value holds; fields of an object come together, and hold against an object
    /// that is given whole.
    pub(super) fn add(&mut self, mut setting: Setting<'a>) {
        let Some(known) = self.0.iter_mut().find(|known| known.is_same(&setting)) else {
            self.0.push(setting);
            return;
        };
        if let (Given::Fields(fields), Given::Fields(more)) = (&mut known.given, &mut setting.given)
        {
            merge(fields, std::mem::take(more));
        } else if known.holds_against(&setting) {
            known.without_effect.push(setting.place);
        } else {
            setting.without_effect = std::mem::take(&mut known.without_effect);
            setting.without_effect.push(std::mem::take(&mut known.place));
            *known = setting;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Setting<'a>> {
        self.0.iter()
    }

    /// Returns the setting of a field.
    pub(super) fn find(&self, name: &str) -> Option<&Setting<'a>> {
        self.iter().find(|setting| setting.argument.is_some_and(|argument| argument.name == name))
    }

    /// Returns the only value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.find(name).and_then(Setting::value)
    }
}

/// Adds fields to an object: lists grow, other values are replaced.
fn merge(fields: &mut Map<String, Json>, more: Map<String, Json>) {
    for (name, value) in more {
        match (fields.get_mut(&name), value) {
            (Some(Json::Object(fields)), Json::Object(more)) => merge(fields, more),
            (Some(Json::Array(values)), Json::Array(more)) => values.extend(more),
            (_, value) => {
                fields.insert(name, value);
            }
        }
    }
}
