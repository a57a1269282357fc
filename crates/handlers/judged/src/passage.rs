//! Text that is judged while it grows.
//!
//! The verdict is a function of the whole text: its first finding that reaches the threshold of its
//! category. The division of the text into parts has no effect on it.

use crate::judge::Judge;
use crate::policy::Thresholds;

/// Text in progress. Holds only the characters that a finding may still depend on.
#[derive(Debug, Default)]
pub(crate) struct Passage {
    /// Text from the character `start` on.
    text: String,
    start: usize,
    /// Number of characters of the whole text.
    end: usize,
    /// No finding begins before this character.
    clear: usize,
    refusal: Option<Refusal>,
}

/// First finding that refuses a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Index of the category.
    pub(crate) category: usize,
    /// Character at which the finding begins.
    pub(crate) at: usize,
    /// True if that character is an ASCII character.
    pub(crate) ascii: bool,
}

impl Passage {
    /// Appends text.
    pub(crate) fn push(&mut self, text: &str) {
        if self.refusal.is_none() {
            self.text.push_str(text);
        }
        self.end += text.chars().count();
    }

    /// Returns the number of characters so far.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Returns the number of characters at the beginning that no finding can reach any more.
    pub(crate) fn clear(&self) -> usize {
        self.clear
    }

    /// Returns the first finding that refuses the text, if there is one.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Judges the text so far; `ended` if no more text follows.
    pub(crate) fn check<J: Judge>(
        &mut self,
        judge: &J,
        thresholds: &Thresholds,
        ended: bool,
    ) -> Option<Refusal> {
        if self.refusal.is_some() {
            return self.refusal;
        }
        let window = judge.window().max(1);
        let open = if ended { 0 } else { judge.open(&self.text, self.start).min(window) };
        let decided = self.end.saturating_sub(open);
        if decided <= self.clear {
            return None;
        }
        let findings = judge.find(&self.text, self.start).into_iter();
        let refusing =
            findings.filter(|finding| thresholds.refuses(finding)).filter_map(|finding| {
                let at = self.start + finding.range.start;
                (self.clear..decided).contains(&at).then_some((at, finding.category))
            });
        if let Some((at, category)) = refusing.min() {
            let first = self.text.chars().nth(at - self.start);
            let ascii = first.is_some_and(|first| first.is_ascii());
            self.refusal = Some(Refusal { category, at, ascii });
            self.text = String::new();
            return self.refusal;
        }
        self.clear = decided;
        self.forget(decided.saturating_sub(window));
        None
    }

    /// Drops the text before this character.
    fn forget(&mut self, before: usize) {
        let count = before.saturating_sub(self.start);
        if let Some((byte, _)) = self.text.char_indices().nth(count) {
            self.text.drain(..byte);
            self.start += count;
        } else {
            self.text.clear();
            self.start = self.end;
        }
    }
}

#[cfg(test)]
mod tests;
