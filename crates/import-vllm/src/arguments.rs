//! Arguments of vLLM's server, as its own parser describes them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// Least similarity of a flag that is offered in place of an unknown one.
const SIMILAR: f64 = 0.8;

/// All arguments of a version of vLLM.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// Version of vLLM.
    #[serde(rename = "vllm")]
    pub(super) version: String,
    #[serde(rename = "arguments")]
    all: BTreeMap<String, Argument>,
}

/// Argument of the server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Argument {
    /// Name of the field, with underscores.
    #[serde(skip)]
    pub(super) name: String,
    pub(super) group: Group,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// Short and old flags.
    #[serde(default)]
    other_flags: Vec<String>,
    /// True if the argument takes one value or more.
    #[serde(default)]
    pub(super) many: bool,
    /// True if `None` is a value, and means what the absent argument means.
    #[serde(default)]
    pub(super) optional: bool,
    /// All values, if vLLM takes no others.
    #[serde(default)]
    pub(super) choices: Vec<String>,
}

/// Part of vLLM that an argument belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Group {
    Engine,
    Server,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Flag that has a counterpart `--no-..`.
    Boolean,
    /// Flag without a counterpart.
    Switch,
    Integer,
    /// Whole number, also as `8k` (thousands) or `8K` (1024 each).
    Count,
    /// [`Kind::Count`], or `auto` for -1.
    CountOrAuto,
    Number,
    String,
    /// Name of which vLLM ignores case and the kind of dashes.
    Backend,
    Json,
    /// JSON object, or a text.
    JsonOrString,
    /// Token, which stands in no file and no report.
    Secret,
}

/// Flag of a command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag<'a> {
    pub(super) argument: &'a Argument,
    /// True for `--no-..`.
    pub(super) is_off: bool,
}

impl Argument {
    /// Returns the flag with the whole name.
    pub(super) fn flag(&self) -> String {
        long(&self.name)
    }

    /// Returns true if the argument takes a value.
    pub(super) fn has_value(&self) -> bool {
        !matches!(self.kind, Kind::Boolean | Kind::Switch)
    }

    /// Returns all of its long flags.
    fn long_flags(&self) -> impl Iterator<Item = (String, bool)> {
        let off =
            (self.kind == Kind::Boolean).then(|| (format!("--no-{}", &self.flag()[2..]), true));
        let others = self.other_flags.iter().filter(|flag| flag.starts_with("--"));
        let on = [self.flag()].into_iter().chain(others.cloned()).map(|flag| (flag, false));
        on.chain(off)
    }
}

impl Arguments {
    pub(super) fn read() -> Result<Self> {
        let text = include_str!("arguments.json");
        let mut read: Self = serde_json::from_str(text).context("reading vLLM's arguments")?;
        read.all.iter_mut().for_each(|(name, argument)| argument.name.clone_from(name));
        Ok(read)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Argument> {
        self.all.values()
    }

    /// Returns the argument of a field.
    pub(super) fn get(&self, name: &str) -> Option<&Argument> {
        self.all.get(name)
    }

    /// Returns the argument of a flag, which may be the beginning of one argument's flag alone.
    pub(super) fn find(&self, flag: &str) -> Option<Flag<'_>> {
        let short = self.iter().find(|it| it.other_flags.iter().any(|other| other == flag));
        if let Some(argument) = short {
            return Some(Flag { argument, is_off: false });
        }
        if !flag.starts_with("--") || flag.len() < 3 {
            return None;
        }
        let mut begun =
            self.flags().filter(|(name, ..)| name.starts_with(flag)).collect::<Vec<_>>();
        if let Some(whole) = begun.iter().position(|(name, ..)| name == flag) {
            begun = vec![begun.swap_remove(whole)];
        }
        match *begun {
            [(_, argument, is_off)] => Some(Flag { argument, is_off }),
            _ => None,
        }
    }

    /// Returns the known flag that is most like an unknown one.
    pub(super) fn nearest(&self, flag: &str) -> Option<String> {
        let scored = self.flags().map(|(name, ..)| (strsim::jaro_winkler(&name, flag), name));
        let nearest = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
        nearest.filter(|(score, _)| *score > SIMILAR).map(|(_, name)| name)
    }

    fn flags(&self) -> impl Iterator<Item = (String, &Argument, bool)> {
        self.iter().flat_map(|argument| {
            argument.long_flags().map(move |(flag, is_off)| (flag, argument, is_off))
        })
    }
}

/// Returns the long flag of a field.
pub(super) fn long(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}
