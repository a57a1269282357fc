//! Collector of the deltas of one push; adjacent text of one kind is one delta.

use std::mem;

use super::Delta;

/// Deltas that were not returned yet, and the number of calls of the reply.
#[derive(Default)]
pub(super) struct Sink {
    deltas: Vec<Delta>,
    calls: usize,
}

impl Sink {
    /// Appends text of the answer.
    pub(super) fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(Delta::Content(last)) = self.deltas.last_mut() {
            last.push_str(text);
        } else {
            self.deltas.push(Delta::Content(text.to_owned()));
        }
    }

    /// Appends a character of the answer.
    pub(super) fn content_char(&mut self, c: char) {
        self.content(c.encode_utf8(&mut [0; 4]));
    }

    /// Appends text of the reasoning.
    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(Delta::Reasoning(last)) = self.deltas.last_mut() {
            last.push_str(text);
        } else {
            self.deltas.push(Delta::Reasoning(text.to_owned()));
        }
    }

    /// Begins a call of this function.
    pub(super) fn begin(&mut self, name: &str) {
        self.deltas.push(Delta::CallBegin { index: self.calls, name: name.to_owned() });
        self.calls += 1;
    }

    /// Appends text to the arguments of the last call that began.
    pub(super) fn arguments(&mut self, text: &str) {
        let Some(of) = self.calls.checked_sub(1) else { return };
        if text.is_empty() {
            return;
        }
        match self.deltas.last_mut() {
            Some(Delta::CallArguments { index, text: last }) if *index == of => last.push_str(text),
            _ => self.deltas.push(Delta::CallArguments { index: of, text: text.to_owned() }),
        }
    }

    /// Returns the number of calls begun so far.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the deltas collected since the last time.
    pub(super) fn take(&mut self) -> Vec<Delta> {
        mem::take(&mut self.deltas)
    }
}
