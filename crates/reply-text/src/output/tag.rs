//! Search for a tag in text that arrives character by character.

use std::mem;

use super::sink::Sink;

/// Returns true for whitespace of JSON, which is what models write around tags.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Search for one tag.
pub(super) struct Tag {
    tag: &'static str,
    /// Beginning of the tag that was read last.
    held: String,
}

impl Tag {
    /// Creates the search for this tag.
    pub(super) fn new(tag: &'static str) -> Self {
        Self { tag, held: String::new() }
    }

    /// Takes a character and returns true if it completes the tag. Characters that are certainly
    /// no part of the tag go to `pass`, in order.
    pub(super) fn push(&mut self, c: char, mut pass: impl FnMut(char)) -> bool {
        self.held.push(c);
        while !self.tag.starts_with(&self.held) {
            pass(self.held.remove(0));
        }
        let complete = self.held == self.tag;
        if complete {
            self.held.clear();
        }
        complete
    }

    /// Returns the text that may still be the beginning of the tag.
    pub(super) fn held(&self) -> &str {
        &self.held
    }
}

/// Content up to the tag of a call, without the whitespace around calls.
pub(super) struct Content {
    tag: Tag,
    /// Whitespace read last, which is dropped if the tag follows.
    space: String,
    /// True directly after a call, where whitespace is dropped.
    after_call: bool,
}

impl Content {
    /// Creates the content before the first of these tags.
    pub(super) fn new(tag: &'static str) -> Self {
        Self { tag: Tag::new(tag), space: String::new(), after_call: false }
    }

    /// Says that a call ended here.
    pub(super) fn follows_call(&mut self) {
        self.after_call = true;
    }

    /// Takes a character. If it completes the tag, returns the tag with the whitespace before it,
    /// which is content if no call follows.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) -> Option<String> {
        let Self { tag, space, after_call } = self;
        let pass = |c| {
            if !is_space(c) {
                *after_call = false;
                sink.content(space);
                space.clear();
                sink.content_char(c);
            } else if !*after_call {
                space.push(c);
            }
        };
        if !tag.push(c, pass) {
            return None;
        }
        *after_call = false;
        let mut text = mem::take(space);
        text.push_str(tag.tag);
        Some(text)
    }

    /// Ends the reply: what was held back is content.
    pub(super) fn end(&self, sink: &mut Sink) {
        sink.content(&self.space);
        sink.content(self.tag.held());
    }
}
