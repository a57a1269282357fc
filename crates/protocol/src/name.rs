//! Names chosen by people: models, tenants, keys and revisions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Error of a text that is not a valid name; says which rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}: {rule}")]
pub struct InvalidName {
    text: String,
    what: &'static str,
    rule: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $broken_rule:path) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                match $broken_rule(&text) {
                    Some(rule) => Err(InvalidName { text, what: $what, rule }),
                    None => Ok(Self(text)),
                }
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

name! {
    /// Name of a model. It is part of a queue name, so only characters that every broker tool can
    /// show are allowed.
    ///
    /// ```
    /// use nsbridge_protocol::ModelName;
    ///
    /// let model: ModelName = "llama-3.1-70b".parse()?;
    /// assert_eq!(model.as_str(), "llama-3.1-70b");
    /// assert!("a b".parse::<ModelName>().is_err());
    /// // The name of a dead-letter queue would collide with that of the model `tale`.
    /// assert!("tale.dead".parse::<ModelName>().is_err());
    /// # Ok::<(), nsbridge_protocol::InvalidName>(())
    /// ```
    ModelName, "model name", model_rule
}

name! {
    /// Tenant that a request belongs to; scopes keys, caches and fair scheduling.
    ///
    /// ```
    /// use nsbridge_protocol::Tenant;
    ///
    /// assert_eq!("acme".parse::<Tenant>()?.as_str(), "acme");
    /// assert!("two\nlines".parse::<Tenant>().is_err());
    /// # Ok::<(), nsbridge_protocol::InvalidName>(())
    /// ```
    Tenant, "tenant", label_rule
}

name! {
    /// Identifier of the key that seals a request.
    KeyId, "key id", label_rule
}

name! {
    /// Revision of a model's files, such as `2026-11-21-a1b2c3`.
    Revision, "revision", revision_rule
}

fn revision_rule(text: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > 100 {
        return Some("use 1 to 100 characters");
    }
    let good = text.chars().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    (!good).then_some("use ASCII letters, digits, `.`, `_` and `-`, the first a letter or digit")
}

fn model_rule(text: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > 100 {
        return Some("use 1 to 100 characters");
    }
    if !text.chars().all(plain) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Some("use ASCII letters, digits, `.`, `_` and `-`, the first a letter or digit");
    }
    // A queue name is `nsbridge.<model>` plus a suffix, so these names would collide with the
    // queues of another model.
    let suffix = text.ends_with(".dead") || text.ends_with(".bulk");
    let infix = text.contains(".retry.") || text.contains(".runs.");
    let prefix = ["reply.", "control.", "nsbridge."].iter().any(|word| text.starts_with(word));
    (suffix || infix || prefix || text == "reply" || text == "control")
        .then_some("it reads as the name of a reply, control, retry, runs, bulk or dead queue")
}

fn label_rule(text: &str) -> Option<&'static str> {
    if text.is_empty() || text.len() > 255 {
        return Some("use 1 to 255 bytes");
    }
    text.chars().any(char::is_control).then_some("control characters are not allowed")
}

#[cfg(test)]
mod tests {
    use super::{ModelName, Revision, Tenant};

    #[track_caller]
    fn check_model(text: &str, fine: bool) {
        assert_eq!(text.parse::<ModelName>().is_ok(), fine, "{text:?}");
    }

    #[test]
    fn a_model_name_makes_a_queue_name_that_is_nobody_elses() {
        check_model("llama-3.1-70b", true);
        check_model("Tale_7m", true);
        for bad in [
            "",
            "-a",
            "a b",
            "くま",
            "a/b",
            "a.dead",
            "a.retry.1s",
            "a.runs.b",
            "reply.x",
            "control",
            "nsbridge.a",
            "a.bulk",
        ] {
            check_model(bad, false);
        }
        check_model(&"x".repeat(101), false);
    }

    #[test]
    fn a_refused_name_says_which_rule_it_breaks() {
        let error = "a b".parse::<ModelName>().unwrap_err().to_string();
        assert!(error.starts_with("`a b` is not a model name: use ASCII"), "{error}");
        for good in ["2026-11-21-a1b2c3", "v1.0_rc", &"7".repeat(100)] {
            assert!(good.parse::<Revision>().is_ok(), "{good}");
        }
        for bad in ["", "-a", ".", "a/b", "a b", "é", &"7".repeat(101)] {
            assert!(bad.parse::<Revision>().is_err(), "{bad}");
        }
        assert!("くま".parse::<Tenant>().is_ok() && "a\nb".parse::<Tenant>().is_err());
    }
}
