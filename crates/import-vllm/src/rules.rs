//! Arguments of vLLM, and what becomes of each.

mod engine;
mod former;
mod gateway;
mod server;

use nsbridge_import::Fate;

use crate::arguments::{Argument, Arguments, Group, Kind};
use crate::context::Import;
use crate::settings::{Given, Setting};
use crate::value::{has_variable, read};

/// Treatment of an argument.
#[derive(Clone, Copy)]
enum Apply {
    By(fn(&mut Import<'_>, &Argument, &Setting<'_>) -> Fate),
    NotNeeded(&'static str),
    NotCarried(&'static str),
    /// Values that have no effect; the reason for these; the reason for others.
    Unless(&'static [&'static str], &'static str, &'static str),
}

/// Rule for arguments by the names of their fields.
struct Rule {
    names: &'static [&'static str],
    apply: Apply,
}

/// Applies the rule of an argument.
pub(super) fn apply(import: &mut Import<'_>, arguments: &Arguments, setting: &Setting<'_>) -> Fate {
    let Some(argument) = setting.argument else { return unknown(arguments, setting) };
    if setting.given == Given::Values(Vec::new()) && argument.kind != Kind::Secret {
        return Fate::NotCarried("it has no value".to_owned());
    }
    // The place of the model has a sentence of its own, and a token is not read at all.
    let is_read = (argument.group == Group::Engine || argument.name == "lora_modules")
        && argument.kind != Kind::Secret
        && argument.name != "model";
    if is_read && setting.values().iter().any(|value| has_variable(value)) {
        return Fate::NotCarried(
            "a shell's variable is in it, and its value is not known here: write the value"
                .to_owned(),
        );
    }
    let rules = match argument.group {
        Group::Engine => engine::RULES,
        Group::Server => server::RULES,
    };
    match rules.iter().find(|rule| rule.names.contains(&argument.name.as_str())) {
        Some(rule) => rule.apply.to(import, argument, setting),
        // A server argument has a rule.
        None => carry(import, argument, setting),
    }
}

impl Apply {
    fn to(self, import: &mut Import<'_>, argument: &Argument, setting: &Setting<'_>) -> Fate {
        match self {
            Self::NotCarried(_) if setting.given == Given::Off => {
                Fate::NotNeeded("it is off".to_owned())
            }
            Self::By(apply) => apply(import, argument, setting),
            Self::NotNeeded(why) => Fate::NotNeeded(why.to_owned()),
            Self::NotCarried(why) => Fate::NotCarried(why.to_owned()),
            Self::Unless(harmless, why, otherwise) => match setting.value() {
                Some(value) if harmless.contains(&value) => Fate::NotNeeded(why.to_owned()),
                _ => Fate::NotCarried(otherwise.to_owned()),
            },
        }
    }
}

/// Carries an engine argument over.
fn carry(import: &mut Import<'_>, argument: &Argument, setting: &Setting<'_>) -> Fate {
    match read(argument, &setting.given) {
        Ok(Some(value)) => import.option(&argument.name, value, setting),
        Ok(None) => Fate::NotNeeded("it is what vLLM does without it".to_owned()),
        Err(why) => Fate::NotCarried(why),
    }
}

/// Returns the fate of a flag that vLLM does not have.
fn unknown(arguments: &Arguments, setting: &Setting<'_>) -> Fate {
    let flag = setting.name.split('.').next().unwrap_or_default().replace('_', "-");
    if !flag.starts_with('-') {
        return Fate::Unknown("no flag takes it".to_owned());
    }
    if let Some(fate) = former::fate(&flag) {
        return fate;
    }
    let version = &arguments.version;
    Fate::Unknown(match arguments.nearest(&flag) {
        Some(near) => format!("vLLM {version} does not have it; did you mean `{near}`?"),
        None => format!("vLLM {version} does not have it"),
    })
}

/// Returns true if an argument has a rule.
#[cfg(test)]
pub(super) fn has_rule(argument: &Argument) -> bool {
    names().any(|name| name == argument.name)
}

/// Returns the names of all arguments that have a rule.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    [engine::RULES, server::RULES].into_iter().flatten().flat_map(|rule| rule.names.iter().copied())
}
