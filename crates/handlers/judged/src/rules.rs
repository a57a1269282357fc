//! Judge without a model: numbers and addresses by their form, phrases and words by lists.
//!
//! All rules take time linear in the length of the text and hold no state between calls.

mod cards;
mod emails;
mod fold;
mod lists;
mod telephones;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use nsbridge_handler::{Error, Models, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::judge::{Category, Finding, Judge};
use crate::policy::Selection;
use lists::Lists;

/// Version of the rules; increased when they could find something else in a text.
const VERSION: u32 = 1;

/// Characters beside a finding that the rules read, at most.
const CONTEXT: usize = 3;

/// Name of the category of phrases that try to override a model's instructions.
const INJECTION: &str = "prompt_injection";

/// Rule for the form of a text: adds the ranges and scores that it finds in folded characters.
type Form = fn(&[char], &mut dyn FnMut(std::ops::Range<usize>, f32));

/// Rules for forms, with the name of the category and the maximum length of a finding.
const FORMS: [(&str, Form, usize); 3] = [
    ("payment_card", cards::find, cards::MAX_NUMBER_CHARS),
    ("telephone_number", telephones::find, telephones::MAX_NUMBER_CHARS),
    ("email_address", emails::find, emails::MAX_ADDRESS_CHARS),
];

/// Fields of [`Rules`] in the table `[judge]`.
///
/// A literal ends in `..RulesOptions::default()`: minor versions add fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RulesOptions {
    /// Rules that are on: `payment_card`, `telephone_number`, `email_address` and
    /// `prompt_injection`. Absent: all.
    pub rules: Selection,
    /// TOML file with lists of words and phrases by category: `insult = ["..", ".."]`.
    pub words: Option<PathBuf>,
}

/// Judge by rules.
///
/// Letters are compared without case, and full-width characters as their ASCII forms.
pub struct Rules {
    categories: Vec<Category>,
    /// Rules for forms that are on, with the index of their category.
    forms: Vec<(usize, Form)>,
    lists: Lists,
    window: usize,
    fingerprint: Vec<u8>,
}

impl Rules {
    /// Creates rules with lists of words and phrases by category.
    ///
    /// # Errors
    ///
    /// Returns an error if a rule is unknown, a list is too large, or a category has two sources.
    pub fn new(rules: &Selection, words: BTreeMap<String, Vec<String>>) -> Result<Self> {
        let known = FORMS.iter().map(|(name, ..)| *name).chain([INJECTION]);
        rules.check("rules", known.clone())?;
        if let Some(name) = words.keys().find(|name| known.clone().any(|known| known == *name)) {
            return Err(Error::fatal(format!("[judge] words: the category `{name}` is a rule's")));
        }
        let (mut categories, mut forms, mut window) = (Vec::new(), Vec::new(), 0);
        for (name, form, longest) in FORMS {
            if rules.has(name, true) {
                forms.push((categories.len(), form));
                categories.push(Category::new(name));
                window = longest.max(window);
            }
        }
        let mut patterns = Vec::new();
        if rules.has(INJECTION, true) {
            let category = categories.len();
            categories.push(Category { in_replies: false, ..Category::new(INJECTION) });
            patterns.extend(lists::injections().into_iter().map(|phrase| (category, phrase)));
        }
        for (name, words) in words {
            let category = categories.len();
            categories.push(Category::new(name));
            patterns.extend(words.into_iter().map(|word| (category, word)));
        }
        let lists = Lists::new(patterns)?;
        let window = lists.longest().max(window) + CONTEXT;
        let mut digest = Sha256::new();
        digest.update(VERSION.to_be_bytes());
        for category in &categories {
            digest.update((category.name.len() as u64).to_be_bytes());
            digest.update(&category.name);
        }
        lists.patterns().for_each(|(category, pattern)| {
            digest.update((category as u64).to_be_bytes());
            digest.update((pattern.len() as u64).to_be_bytes());
            digest.update(pattern);
        });
        let fingerprint = digest.finalize().to_vec();
        Ok(Self { categories, forms, lists, window, fingerprint })
    }
}

impl Judge for Rules {
    type Options = RulesOptions;

    fn load(options: RulesOptions, _models: &Models) -> Result<Self> {
        let words = match &options.words {
            None => BTreeMap::new(),
            Some(path) => {
                let failed = |error: &dyn fmt::Display| {
                    Error::fatal(format!("[judge] words {}: {error}", path.display()))
                };
                let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
                // The message of the parser quotes the line, which may hold a slur.
                toml::from_str(&text).map_err(|_| {
                    failed(&"the file must have lists of texts: insult = [\"..\", \"..\"]")
                })?
            }
        };
        Self::new(&options.rules, words)
    }

    fn categories(&self) -> &[Category] {
        &self.categories
    }

    fn window(&self) -> usize {
        self.window
    }

    fn find(&self, text: &str, _offset: usize) -> Vec<Finding> {
        let text = fold::characters(text);
        let mut findings = Vec::new();
        for (category, form) in &self.forms {
            let category = *category;
            form(&text, &mut |range, score| findings.push(Finding { category, score, range }));
        }
        self.lists.find(&text, &mut findings);
        findings
    }

    fn open(&self, text: &str, _offset: usize) -> usize {
        // The end of the text, as far as a finding can reach back.
        let begin = text.char_indices().rev().take(self.window).last().map_or(0, |(at, _)| at);
        let tail = fold::characters(&text[begin..]);
        let run = |belongs: fn(char) -> bool| {
            tail.iter().rev().take_while(|character| belongs(**character)).count()
        };
        let forms = if self.forms.is_empty() {
            0
        } else {
            let number = &tail[tail.len() - run(fold::is_of_number)..];
            let separators = number.iter().take_while(|it| fold::is_separator(**it)).count();
            (number.len() - separators).max(run(emails::is_of_address))
        };
        forms.max(self.lists.open(&tail))
    }

    fn fingerprint(&self) -> Vec<u8> {
        self.fingerprint.clone()
    }
}

impl fmt::Debug for Rules {
    /// Omits the lists.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("categories", &self.categories.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
