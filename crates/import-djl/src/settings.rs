//! Options of a DJLServing model, from its file and from variables of the environment.

use super::properties::Property;

/// Option with the place where it is set.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// Name as it is written: `option.dtype`, or `OPTION_DTYPE`.
    pub(super) name: String,
    /// Name of the option in `serving.properties`.
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: Place,
    /// Places of earlier values of this name, which have no effect.
    pub(super) earlier: Vec<Place>,
}

/// Place of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Line of `serving.properties`.
    File(usize),
    /// Line of a file of variables.
    Variables(usize),
    /// Environment of the process.
    Environment,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(line) => write!(f, "line {line}"),
            Self::Variables(line) => write!(f, "line {line} of the variables"),
            Self::Environment => f.write_str("environment"),
        }
    }
}

impl Setting {
    /// Returns the value without white space around it. Java keeps such space.
    pub(super) fn value(&self) -> &str {
        self.value.trim()
    }

    /// Returns the place, with earlier places of the name.
    pub(super) fn places(&self) -> String {
        let mut place = self.place.to_string();
        if !self.earlier.is_empty() {
            let earlier: Vec<_> = self.earlier.iter().map(ToString::to_string).collect();
            place += &format!("; the value of {} has no effect", earlier.join(", "));
        }
        place
    }

    /// Returns true for an empty variable, which DJLServing ignores.
    pub(super) fn is_ignored(&self) -> bool {
        self.value.is_empty() && !matches!(self.place, Place::File(_))
    }

    /// Returns the name of an option without its prefix; `None` for a setting of the server.
    pub(super) fn option(&self) -> Option<&str> {
        self.key.strip_prefix("option.")
    }
}

/// Options in the order of their precedence. The file wins over the environment. Empty variables are kept
/// for the report, and set nothing.
#[derive(Debug)]
pub(super) struct Settings(Vec<Setting>);

impl Settings {
    pub(super) fn new(properties: Vec<Property>, variables: Vec<Variable>) -> Self {
        let mut settings: Vec<Setting> = Vec::new();
        for Property { name, value, line } in properties {
            let place = Place::File(line);
            add(&mut settings, Setting { key: name.clone(), name, value, place, earlier: vec![] });
        }
        let mut others: Vec<Setting> = Vec::new();
        for Variable { name, key, value, place } in variables {
            add(&mut others, Setting { name, key, value, place, earlier: vec![] });
        }
        // The container translates a variable such as MAX_BATCH_SIZE only if OPTION_.. is not set.
        others.sort_by_key(|setting| {
            !["OPTION_", "SERVING_"].iter().any(|own| setting.name.starts_with(own))
        });
        settings.extend(others);
        Self(settings)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }

    /// Returns true if no option is set.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Setting::is_ignored)
    }

    /// Returns the setting of an option that takes effect.
    pub(super) fn find(&self, key: &str) -> Option<&Setting> {
        self.0.iter().find(|setting| setting.key == key && !setting.is_ignored())
    }

    /// Returns the value of an option, without white space around it. An empty one counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.find(key).map(Setting::value).filter(|value| !value.is_empty())
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Returns the setting that takes effect instead of this one.
    pub(super) fn winner_over(&self, setting: &Setting) -> Option<&Setting> {
        let wins = self.find(&setting.key)?;
        (wins.place != setting.place || wins.name != setting.name).then_some(wins)
    }
}

/// Adds a setting in the place of an earlier one of its name.
fn add(settings: &mut Vec<Setting>, setting: Setting) {
    let Some(known) = settings.iter_mut().find(|known| known.name == setting.name) else {
        settings.push(setting);
        return;
    };
    let mut earlier = std::mem::take(&mut known.earlier);
    earlier.push(known.place);
    *known = Setting { earlier, ..setting };
}

/// Variable of an environment.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    /// Option that it stands for, or its own name.
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: Place,
}
