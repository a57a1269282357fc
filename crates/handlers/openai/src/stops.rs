//! Stop sequences, found in text that comes in parts.

use std::sync::Arc;

/// Text of one reply before its first stop sequence.
#[derive(Debug)]
pub(crate) struct StopFilter {
    stops: Arc<[String]>,
    /// Text held back because a stop sequence may begin in it.
    held: String,
}

impl StopFilter {
    /// Creates the filter of these stop sequences, none of which is empty.
    pub(crate) fn new(stops: Arc<[String]>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds text. Returns the text that is now final, and true if a stop sequence was met.
    ///
    /// With the `last` text, all held-back text is returned.
    pub(crate) fn push(&mut self, text: &str, last: bool) -> (String, bool) {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begun = if last { 0 } else { self.begun() };
        let rest = self.held.split_off(self.held.len() - begun);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Returns the length in bytes of the longest end of the text that begins a stop sequence.
    fn begun(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or_default();
        let mut from = self.held.len().saturating_sub(longest);
        while !self.held.is_char_boundary(from) {
            from += 1;
        }
        let begins = |end: &str| self.stops.iter().any(|stop| stop.starts_with(end));
        let mut ends = self.held[from..].char_indices().map(|(at, _)| &self.held[from + at..]);
        ends.find(|end| begins(end)).map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, proptest};

    use super::StopFilter;

    fn filter(stops: &[&str]) -> StopFilter {
        StopFilter::new(stops.iter().map(|stop| (*stop).to_owned()).collect())
    }

    #[test]
    fn text_is_held_back_while_a_stop_sequence_may_begin_in_it() {
        let mut text = filter(&["\n\n", "END"]);
        assert_eq!(text.push("a\n", false), ("a".to_owned(), false));
        assert_eq!(text.push("b", false), ("\nb".to_owned(), false));
        assert_eq!(text.push("E", false), (String::new(), false));
        assert_eq!(text.push("N", true), ("EN".to_owned(), false));
        assert_eq!(text.push("x\n\ny", false), ("x".to_owned(), true));
    }

    proptest! {
        #[test]
        fn the_text_before_the_first_stop_sequence_comes_out_however_it_is_cut(
            stops in prop::collection::vec("[abあ]{1,4}", 0..5),
            parts in prop::collection::vec("[abあ]{0,4}", 0..10),
        ) {
            let mut filter = StopFilter::new(stops.clone().into());
            let (mut out, mut all) = (String::new(), String::new());
            for (at, part) in parts.iter().enumerate() {
                all.push_str(part);
                let (text, met) = filter.push(part, at + 1 == parts.len());
                out.push_str(&text);
                let first = stops.iter().filter_map(|stop| all.find(stop.as_str())).min();
                assert_eq!(met, first.is_some());
                if let Some(first) = first {
                    assert_eq!(out, all[..first]);
                    return Ok(());
                }
            }
            assert_eq!(out, all);
        }
    }
}
