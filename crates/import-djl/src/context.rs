//! Import in progress: what is known of the model, and what has been written so far.

use nsbridge_import::Draft;

use super::folder::Folder;
use super::kind::Kind;
use super::settings::Settings;

/// Import in progress.
#[derive(Debug)]
pub(super) struct Import<'a> {
    pub(super) settings: &'a Settings,
    pub(super) folder: &'a Folder,
    pub(super) kind: Kind,
    pub(super) draft: Draft,
    /// Steps that are left to a person before the worker starts.
    pub(super) steps: Vec<String>,
}

impl Import<'_> {
    /// Adds a step, unless it is there already.
    pub(super) fn step(&mut self, step: impl Into<String>) {
        let step = step.into();
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }
}
