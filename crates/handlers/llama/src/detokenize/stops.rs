//! Stop sequences, matched incrementally.

use std::fmt;

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::noncontiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use nsbridge_handler::{Error, Result};

/// Stop sequences of a request as one automaton (Aho and Corasick, 1975).
///
/// A byte of a reply costs a few steps, however many stop sequences there are. The replies of a
/// request share the automaton, and each has its own [`Place`] in it.
pub(crate) struct Stops {
    /// `None` without stop sequences.
    automaton: Option<NFA>,
    /// Number of bytes of a stop sequence that were read at each state, of the longest one that
    /// matches.
    depths: Vec<u32>,
}

/// State of the automaton.
pub(crate) type Place = aho_corasick::automaton::StateID;

impl fmt::Debug for Stops {
    /// Omits the stop sequences, which are text of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stops")
    }
}

impl Stops {
    /// Creates the automaton of no stop sequence.
    pub(crate) fn none() -> Self {
        Self { automaton: None, depths: Vec::new() }
    }

    /// Builds the automaton of these stop sequences, none of which is empty.
    ///
    /// # Errors
    ///
    /// Returns an error if they exceed the size of an automaton.
    pub(crate) fn new(texts: &[String]) -> Result<Self> {
        if texts.is_empty() {
            return Ok(Self::none());
        }
        let automaton = NFA::builder().match_kind(MatchKind::Standard).build(texts);
        let automaton = automaton.map_err(|_| Error::bad_input("`stop` has too many texts"))?;
        let mut depths = Vec::new();
        for text in texts {
            let mut state = start(&automaton);
            for (read, &byte) in (1..).zip(text.as_bytes()) {
                state = automaton.next_state(Anchored::No, state, byte);
                if depths.len() <= state.as_usize() {
                    depths.resize(state.as_usize() + 1, 0);
                }
                depths[state.as_usize()] = read;
            }
        }
        Ok(Self { automaton: Some(automaton), depths })
    }

    /// Returns the initial state.
    pub(crate) fn start(&self) -> Place {
        self.automaton.as_ref().map_or(Place::ZERO, start)
    }

    /// Returns the byte offset of the first stop sequence in `text`, among those that end after the
    /// first `known` bytes. `place` is the state after those bytes, and advances to the end of the
    /// text.
    pub(crate) fn find(&self, place: &mut Place, text: &str, known: usize) -> Option<usize> {
        let automaton = self.automaton.as_ref()?;
        let mut first: Option<usize> = None;
        for (end, &byte) in (known + 1..).zip(&text.as_bytes()[known..]) {
            *place = automaton.next_state(Anchored::No, *place, byte);
            if automaton.is_match(*place) {
                // Of those that end here, the longest begins first.
                let length = automaton.pattern_len(automaton.match_pattern(*place, 0));
                let begin = end.saturating_sub(length);
                first = Some(first.map_or(begin, |first| first.min(begin)));
            }
        }
        first
    }

    /// Returns the length in bytes of the longest prefix of a stop sequence that ends at this
    /// state.
    pub(crate) fn begun(&self, place: Place) -> usize {
        self.depths.get(place.as_usize()).map_or(0, |depth| *depth as usize)
    }
}

fn start(automaton: &NFA) -> Place {
    // This only fails for automata of another kind.
    automaton.start_state(Anchored::No).unwrap_or(Place::ZERO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, proptest};

    use super::Stops;

    proptest! {
        #[test]
        fn stops_are_found_and_suspected_as_by_looking_at_all_of_them(
            stops in prop::collection::vec("[abあ]{1,5}", 0..6),
            text in prop::collection::vec("[abあ]{0,4}", 0..12),
        ) {
            let automaton = Stops::new(&stops).unwrap();
            let (mut place, mut held) = (automaton.start(), String::new());
            for part in text {
                let known = held.len();
                held.push_str(&part);
                let found = automaton.find(&mut place, &held, known);
                assert_eq!(found, stops.iter().filter_map(|stop| held.find(stop)).min());
                if found.is_some() {
                    break;
                }
                let mut ends = held.char_indices().map(|(at, _)| &held[at..]);
                let begun = ends.find(|end| stops.iter().any(|stop| stop.starts_with(end)));
                assert_eq!(automaton.begun(place), begun.map_or(0, str::len));
                let certain = held.len() - automaton.begun(place);
                held.drain(..certain);
            }
        }
    }
}
