//! Reasoning of a model, which precedes its answer between two tags.

use super::sink::Sink;
use super::tag::{Tag, is_space};

/// Tags around a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Tag at the beginning of the reply. Whitespace may precede it.
    pub open: &'static str,
    /// Tag between the reasoning and the answer.
    pub close: &'static str,
    /// True if the chat template ends in the opening tag, so that the reply begins in the
    /// reasoning. If the reply repeats the tag, the tag is dropped.
    pub begun: bool,
}

impl ReasoningTags {
    /// Creates the tags `<think>` and `</think>`. `begun` is true if the chat template opens the
    /// reasoning.
    pub fn think(begun: bool) -> Self {
        Self { open: "<think>", close: "</think>", begun }
    }
}

/// Parser of the reasoning, up to the first character of the answer.
pub(super) struct Reasoning {
    tags: ReasoningTags,
    state: State,
}

enum State {
    /// Before the opening tag.
    Start {
        /// Whitespace so far.
        space: String,
        tag: Tag,
    },
    Inside(Tag),
    /// After the closing tag, where whitespace is dropped.
    After,
    Over,
}

impl Reasoning {
    /// Creates the parser.
    pub(super) fn new(tags: ReasoningTags) -> Self {
        Self { tags, state: State::Start { space: String::new(), tag: Tag::new(tags.open) } }
    }

    /// Returns true if the answer has begun. No further text is taken then.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Returns true between the tags.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.state, State::Inside(_))
    }

    /// Takes a character. Returns the text that is part of the answer.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) -> String {
        match &mut self.state {
            State::Start { space, tag } if tag.held().is_empty() && is_space(c) => space.push(c),
            State::Start { space, tag } => {
                let mut other = String::new();
                if tag.push(c, |c| other.push(c)) {
                    self.state = State::Inside(Tag::new(self.tags.close));
                } else if !other.is_empty() {
                    let text = format!("{space}{other}{}", tag.held());
                    return self.start_without_tag(text, sink);
                }
            }
            State::Inside(tag) => {
                if tag.push(c, |c| sink.reasoning(c.encode_utf8(&mut [0; 4]))) {
                    self.state = State::After;
                }
            }
            State::After if is_space(c) => {}
            State::After | State::Over => {
                self.state = State::Over;
                return c.to_string();
            }
        }
        String::new()
    }

    /// Ends the reply. Returns the text that is part of the answer.
    pub(super) fn end(self, sink: &mut Sink) -> String {
        match self.state {
            State::Start { space, tag } => {
                let text = space + tag.held();
                if !self.tags.begun {
                    return text;
                }
                sink.reasoning(&text);
            }
            State::Inside(tag) => sink.reasoning(tag.held()),
            State::After | State::Over => {}
        }
        String::new()
    }

    /// Takes the beginning of a reply that does not begin with the tag.
    fn start_without_tag(&mut self, text: String, sink: &mut Sink) -> String {
        if !self.tags.begun {
            self.state = State::Over;
            return text;
        }
        self.state = State::Inside(Tag::new(self.tags.close));
        // The closing tag may begin here, and even end.
        text.chars().map(|c| self.push(c, sink)).collect()
    }
}
