//! Decision about findings: which categories refuse a text, and from which score on.

use std::collections::BTreeMap;

use nsbridge_handler::{Error, Result};
use serde::Deserialize;

use crate::judge::{Category, Finding};

/// Threshold of a category that the configuration does not name.
const THRESHOLD: f64 = 0.5;

/// Selection of names in a configuration: `true` for all, `false` for none, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "it must be true, false or a list of names")]
#[non_exhaustive]
pub enum Selection {
    /// All names, or none.
    All(bool),
    /// Names of a list alone.
    Named(Vec<String>),
}

impl Default for Selection {
    fn default() -> Self {
        Self::All(true)
    }
}

impl Selection {
    /// Checks that each name of the list is known.
    ///
    /// # Errors
    ///
    /// Returns an error that names `field`, the unknown name and the known ones.
    pub(crate) fn check<'a>(
        &self,
        field: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<()> {
        let Self::Named(names) = self else { return Ok(()) };
        match names.iter().find(|name| !known.clone().any(|known| known == *name)) {
            None => Ok(()),
            Some(other) => Err(unknown(field, other, known)),
        }
    }

    /// Returns true if a name is selected. `default` decides for `true`.
    pub(crate) fn has(&self, name: &str, default: bool) -> bool {
        match self {
            Self::All(all) => *all && default,
            Self::Named(names) => names.iter().any(|selected| selected == name),
        }
    }
}

/// Error for a name that the judge does not have.
fn unknown<'a>(field: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.collect();
    let known = known.join(", ");
    Error::fatal(format!("[judge] {field} has `{name}`, and may have {known}"))
}

/// Lowest score of each category that refuses a text; `None` for a category that refuses none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Thresholds(Vec<Option<f32>>);

impl Thresholds {
    /// Returns true if the finding refuses its text.
    pub(crate) fn refuses(&self, finding: &Finding) -> bool {
        let threshold = self.0.get(finding.category).copied().flatten();
        // The score of a damaged judge may be no number, which refuses.
        threshold.is_some_and(|threshold| finding.score.is_nan() || finding.score >= threshold)
    }

    /// Returns true if some category can refuse a text.
    pub(crate) fn is_any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// Returns the bytes for a fingerprint.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.0.iter().flat_map(|threshold| threshold.unwrap_or(f32::INFINITY).to_be_bytes())
    }
}

/// Thresholds of prompts and of replies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Policy {
    pub(crate) before: Thresholds,
    pub(crate) after: Thresholds,
}

impl Policy {
    /// Creates the policy that the fields of a configuration describe.
    ///
    /// # Errors
    ///
    /// Returns an error for a category that the judge does not have, for a threshold that is not from
    /// 0 to 1, and if no category can refuse a text.
    pub(crate) fn new(
        categories: &[Category],
        before: &Selection,
        after: &Selection,
        thresholds: &BTreeMap<String, f64>,
    ) -> Result<Self> {
        let known = categories.iter().map(|category| category.name.as_str());
        before.check("before", known.clone())?;
        after.check("after", known.clone())?;
        for (name, threshold) in thresholds {
            if !known.clone().any(|known| known == name) {
                return Err(unknown("thresholds", name, known));
            }
            // A threshold of 0 would refuse each text.
            if !(*threshold > 0.0 && *threshold <= 1.0) {
                let field = format!("[judge] thresholds {name} is {threshold}");
                return Err(Error::fatal(format!("{field}, and must be above 0 and at most 1")));
            }
        }
        let threshold = |category: &Category| {
            thresholds.get(&category.name).copied().unwrap_or(THRESHOLD) as f32
        };
        let of = |selection: &Selection, default: fn(&Category) -> bool| {
            let each = categories.iter().map(|category| {
                selection.has(&category.name, default(category)).then(|| threshold(category))
            });
            Thresholds(each.collect())
        };
        let before = of(before, |_| true);
        let after = of(after, |category| category.in_replies);
        if !before.is_any() && !after.is_any() {
            let why = "[judge] refuses no text, because no category is on: remove the table";
            return Err(Error::fatal(why));
        }
        Ok(Self { before, after })
    }
}
