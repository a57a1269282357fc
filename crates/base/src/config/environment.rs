//! Variables of the environment that override fields of a file.

use zeroize::Zeroizing;

const PREFIX: &str = "NSBRIDGE_";

/// Beginning of the names of variables for the tests.
const OF_TESTS: &str = "NSBRIDGE_TEST_";

/// Parts of names that an orchestrator sets for a service called nsbridge.
const OF_SERVICES: [&str; 2] = ["_SERVICE_", "_PORT"];

/// Overrides of a configuration: `NSBRIDGE_<SECTION>__<FIELD>` sets a field of a section, and
/// `NSBRIDGE_<SECTION>__<TABLE>__<FIELD>` one of a table within it. Names in capitals stand for small
/// letters, or for a name of the file that differs in capitals alone. Variables without the prefix,
/// and those that an orchestrator sets for a service called nsbridge, are ignored.
#[derive(Default)]
pub struct Environment {
    overrides: Vec<(String, Zeroizing<String>)>,
}

impl Environment {
    /// Creates the overrides among these variables.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_override = |name: &str| {
            let is_field = name.contains("__") || !OF_SERVICES.iter().any(|of| name.contains(of));
            name.starts_with(PREFIX) && !name.starts_with(OF_TESTS) && is_field
        };
        let overrides = variables.into_iter().filter(|(name, _)| is_override(name));
        Self { overrides: overrides.map(|(name, value)| (name, value.into())).collect() }
    }

    /// Removes the value of a variable, such as `NSBRIDGE_KEYS__KEYRING_JSON`, and returns it without
    /// a copy. Overrides that are left are copied into the configuration, and not wiped.
    pub fn take(&mut self, name: &str) -> Option<Zeroizing<String>> {
        let at = self.overrides.iter().position(|(set, _)| set == name)?;
        Some(self.overrides.swap_remove(at).1)
    }

    /// Returns each override: its name, the path of its field, and its value.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, Vec<String>, &str)> {
        self.overrides.iter().map(|(name, value)| {
            let field = name.strip_prefix(PREFIX).unwrap_or(name);
            (&**name, field.split("__").map(written).collect(), &***value)
        })
    }
}

/// Returns a part of a name: in small letters, unless it has some.
fn written(part: &str) -> String {
    let is_mixed = part.contains(|letter: char| letter.is_lowercase());
    if is_mixed { part.to_owned() } else { part.to_lowercase() }
}

/// Returns the variables of this process whose names begin with `NSBRIDGE_`.
///
/// Bytes that are no UTF-8 become replacement characters, which no field accepts: unlike
/// [`std::env::vars`], it does not panic, and no value is shown.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
        Some((name, value.to_string_lossy().into_owned()))
    })
}

impl std::fmt::Debug for Environment {
    /// Leaves out the values, which may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.overrides.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Environment;

    #[test]
    fn a_taken_value_overrides_nothing_and_no_value_is_shown() {
        let variables = [("NSBRIDGE_A__B", "canary"), ("NSBRIDGE_A__C", "2"), ("PATH", "x")];
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut environment = Environment::new(owned);
        assert_eq!(format!("{environment:?}"), r#"{"NSBRIDGE_A__B", "NSBRIDGE_A__C"}"#);
        assert_eq!(environment.take("NSBRIDGE_A__B").unwrap().as_str(), "canary");
        assert_eq!(environment.take("NSBRIDGE_A__B"), None);
        assert_eq!(environment.take("PATH"), None);
        let left: Vec<_> = environment.fields().collect();
        assert_eq!(left, [("NSBRIDGE_A__C", vec!["a".to_owned(), "c".to_owned()], "2")]);
    }
}
