//! Options of DJLServing, and what becomes of each.

mod common;
mod engine;
mod models;
mod python;
mod unsupported;
mod variables;

use nsbridge_import::{Fate, Written};
use toml::Value;

use super::context::Import;
use super::kind::Kind;
use super::settings::Setting;

/// Rule for an option, under all of its names.
struct Rule {
    names: &'static [&'static str],
    apply: Apply,
}

/// Treatment of an option.
#[derive(Clone, Copy)]
enum Apply {
    /// Whole number of `[handler]`, within a range.
    Count(&'static str, u64, u64),
    /// Seconds of `[handler]`, above 0.
    Seconds(&'static str),
    /// Boolean of `[handler]`.
    Flag(&'static str),
    By(fn(&mut Import<'_>, &Setting) -> Fate),
    NotNeeded(&'static str),
    NotCarried(&'static str),
    /// Values that have no effect; the reason for these; the reason for others.
    Unless(&'static [&'static str], &'static str, &'static str),
}

/// Returns the rules for a kind of handler, the first one that fits to be applied.
fn tables(kind: &Kind) -> Vec<&'static [Rule]> {
    match kind {
        Kind::Text | Kind::Embeddings => {
            vec![models::LLAMA, engine::RULES, common::RULES, unsupported::RULES, variables::RULES]
        }
        Kind::Python(_) => vec![python::RULES, python::SERVER, common::RULES, variables::RULES],
        Kind::Nothing(_) => vec![models::NOTHING, python::SERVER, common::RULES, variables::RULES],
    }
}

fn all() -> impl Iterator<Item = &'static Rule> {
    let tables = [
        models::LLAMA,
        engine::RULES,
        common::RULES,
        unsupported::RULES,
        python::RULES,
        python::SERVER,
        models::NOTHING,
        variables::RULES,
    ];
    tables.into_iter().flatten()
}

/// Returns true if the name is that of a variable that stands for no option.
pub(super) fn is_variable(name: &str) -> bool {
    variables::RULES.iter().any(|rule| rule.names.contains(&name))
}

/// Returns the known option with the same letters, whatever their case, and underscores left out.
pub(super) fn spelled_like(key: &str) -> Option<&'static str> {
    let letters = |name: &str| name.replace('_', "").to_lowercase();
    let wanted = letters(key);
    let names = || all().flat_map(|rule| rule.names.iter().copied());
    names().find(|name| *name == key).or_else(|| names().find(|name| letters(name) == wanted))
}

/// Applies the rule of an option.
pub(super) fn apply(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let rules = tables(&import.kind).into_iter().flatten();
    let Some(rule) = rules.into_iter().find(|rule| rule.names.contains(&&*setting.key)) else {
        return other(import, setting);
    };
    // The fate does not quote the value: it may be a token.
    if setting.value.contains(" #") && !matches!(rule.apply, Apply::NotCarried(_)) {
        return Fate::NotCarried(
            "`#` and what follows it are a part of the value in this format: a comment needs a line of its own"
                .to_owned(),
        );
    }
    match rule.apply {
        Apply::Count(field, least, most) => match number(setting, least, most) {
            Ok(count) => import.carry("handler", field, Value::Integer(count), setting),
            Err(fate) => fate,
        },
        Apply::Seconds(field) => match setting.value().parse::<f64>() {
            Ok(seconds) if seconds > 0.0 && seconds < 1e9 => {
                let whole = seconds.fract() == 0.0;
                let value =
                    if whole { Value::Integer(seconds as i64) } else { Value::Float(seconds) };
                import.carry("handler", field, value, setting)
            }
            _ => Fate::NotCarried("it is not a number of seconds above 0".to_owned()),
        },
        Apply::Flag(field) => match flag(setting) {
            Ok(flag) => import.carry("handler", field, Value::Boolean(flag), setting),
            Err(fate) => fate,
        },
        Apply::By(apply) => apply(import, setting),
        Apply::NotNeeded(why) => Fate::NotNeeded(why.to_owned()),
        Apply::NotCarried(why) => Fate::NotCarried(why.to_owned()),
        Apply::Unless(harmless, why, otherwise) => {
            let value = setting.value().to_lowercase();
            match harmless.contains(&&*value) {
                true => Fate::NotNeeded(why.to_owned()),
                false => Fate::NotCarried(otherwise.to_owned()),
            }
        }
    }
}

/// Sets the fields of `[models]` and `[handler]` that no option has set.
pub(super) fn complete(import: &mut Import<'_>) {
    let names_model =
        ["option.model_id", "option.s3url"].iter().any(|key| import.settings.get(key).is_some());
    match import.kind.clone() {
        Kind::Text if !names_model => models::beside(import),
        Kind::Embeddings => {
            if !names_model {
                models::beside(import);
            }
            if !import.draft.has("handler", "task") {
                models::embed(import);
            }
        }
        Kind::Text => {}
        Kind::Python(file) => {
            if !import.draft.has("handler", "entry_point") {
                python::own_file(import, &file);
            }
        }
        Kind::Nothing(why) => models::no_file(import, &why),
    }
}

/// Returns the fate of an option without a rule.
fn other(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let known = spelled_like(&setting.key);
    if let Some(known) = known.filter(|known| *known != setting.key) {
        return Fate::Unknown(format!("DJLServing's option is {known}"));
    }
    let is_variable = setting.name == setting.key
        && setting.name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    match &import.kind {
        _ if is_variable => Fate::Unknown(
            "it is no variable of DJLServing: set it for the worker if your code reads it".to_owned(),
        ),
        Kind::Python(_) => python::property(import, setting),
        Kind::Nothing(_) if known.is_some() || setting.option().is_none() => Fate::NotCarried(
            "it is for the engine or the translator of DJLServing, and no handler of nsbridge reads it"
                .to_owned(),
        ),
        _ => Fate::Unknown(match setting.option() {
            Some(_) if import.kind.is_llama() => "DJLServing's documentation does not have it; if it is an \
                                                  argument of vLLM or TensorRT-LLM, a worker of nsbridge runs \
                                                  neither"
                .to_owned(),
            Some(_) => "DJLServing's documentation does not have it".to_owned(),
            None => "DJLServing's documentation does not have it; if it is an argument of a translator in \
                     Java, a worker of nsbridge has none"
                .to_owned(),
        }),
    }
}

/// Reads a whole number within a range.
fn number(setting: &Setting, least: u64, most: u64) -> Result<i64, Fate> {
    let wrong = || Fate::NotCarried(format!("it must be a whole number from {least} to {most}"));
    let value: u64 = setting.value().parse().map_err(|_| wrong())?;
    if !(least..=most).contains(&value) {
        return Err(wrong());
    }
    i64::try_from(value).map_err(|_| wrong())
}

fn flag(setting: &Setting) -> Result<bool, Fate> {
    match setting.value().to_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Fate::NotCarried("it must be true or false".to_owned())),
    }
}

impl Import<'_> {
    /// Sets a field to the value of an option.
    fn carry(
        &mut self,
        section: &'static str,
        name: &str,
        value: Value,
        setting: &Setting,
    ) -> Fate {
        self.draft.carry(section, name, value, &origin(setting))
    }

    /// Sets a field to the place or value of an option. The fate does not quote it.
    fn write(
        &mut self,
        section: &'static str,
        name: &str,
        value: Written,
        setting: &Setting,
    ) -> Fate {
        self.draft.write(section, name, value, &origin(setting))
    }
}

/// Returns the name and place of an option, for a comment.
fn origin(setting: &Setting) -> String {
    format!("{} ({})", setting.name, setting.place)
}
