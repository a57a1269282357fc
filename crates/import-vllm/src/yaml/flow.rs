//! Lists and objects in brackets, JSON among them.

use super::scalar::quoted;
use super::{MAX_DEPTH, Node};

/// Reason why a text is no list or object in brackets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// A bracket or a quotation does not end: it goes on with the next line.
    Open,
    /// End of a sentence about the line.
    Wrong(&'static str),
}

/// Parses the text as a whole. A comment may follow.
pub(super) fn parse(text: &str) -> Result<Node, Flow> {
    let mut reader = Reader { text };
    let node = reader.node(0)?;
    reader.skip();
    match reader.text.is_empty() {
        true => Ok(node),
        false => Err(Flow::Wrong("has a text behind a closing bracket")),
    }
}

struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    /// Skips white space and comments.
    fn skip(&mut self) {
        self.text = self.text.trim_start();
        while self.text.starts_with('#') {
            self.text = self.text.split_once('\n').map_or("", |(_, rest)| rest.trim_start());
        }
    }

    /// Takes a character, and returns false if another one is there.
    fn take(&mut self, c: char) -> Result<bool, Flow> {
        self.skip();
        if self.text.is_empty() {
            return Err(Flow::Open);
        }
        let rest = self.text.strip_prefix(c);
        self.text = rest.unwrap_or(self.text);
        Ok(rest.is_some())
    }

    fn node(&mut self, depth: usize) -> Result<Node, Flow> {
        if depth > MAX_DEPTH {
            return Err(Flow::Wrong("lies too deep"));
        }
        if self.take('[')? {
            let mut items = Vec::new();
            while !self.take(']')? {
                items.push(self.node(depth + 1)?);
                self.end_of_item(']')?;
            }
            return Ok(Node::List(items));
        }
        if self.take('{')? {
            let mut fields = Vec::new();
            while !self.take('}')? {
                let Node::Scalar(key, _) = self.scalar()? else {
                    return Err(Flow::Wrong("has a key that is no text"));
                };
                let has_colon = self.take(':')?;
                self.skip();
                let value = match has_colon && !self.text.starts_with([',', '}']) {
                    true => self.node(depth + 1)?,
                    false => super::null(),
                };
                fields.push((key, value));
                self.end_of_item('}')?;
            }
            return Ok(Node::Fields(fields));
        }
        self.scalar()
    }

    /// Takes the comma behind an item, unless the bracket follows.
    fn end_of_item(&mut self, bracket: char) -> Result<(), Flow> {
        let has_comma = self.take(',')?;
        self.skip();
        match has_comma || self.text.starts_with(bracket) {
            true => Ok(()),
            false => Err(Flow::Wrong("has no comma between two items in brackets")),
        }
    }

    fn scalar(&mut self) -> Result<Node, Flow> {
        self.skip();
        match self.text.chars().next() {
            None => Err(Flow::Open),
            Some('"' | '\'') => {
                let read = quoted(self.text).ok_or(Flow::Open)?;
                let (text, end) =
                    read.map_err(|_| Flow::Wrong("has an escape that is not read here"))?;
                self.text = &self.text[end..];
                Ok(Node::Scalar(text, true))
            }
            Some('&' | '*' | '!' | '[' | '{' | '|' | '>') => {
                Err(Flow::Wrong("has an anchor, an alias, a tag or a key that is not read here"))
            }
            Some(',' | ']' | '}' | ':') => Err(Flow::Wrong("has brackets without a value")),
            Some(_) => Ok(Node::Scalar(self.plain().to_owned(), false)),
        }
    }

    /// Takes a text without quotation marks.
    fn plain(&mut self) -> &'a str {
        let text = self.text;
        let ends = |(at, c): (usize, char)| match c {
            ',' | '[' | ']' | '{' | '}' | '\n' => true,
            ':' => text[at + 1..].starts_with([' ', ',', ']', '}', '\n']),
            '#' => text[..at].ends_with(' '),
            _ => false,
        };
        let end = text.char_indices().find(|it| ends(*it)).map_or(text.len(), |(at, _)| at);
        let (plain, rest) = text.split_at(end);
        self.text = rest;
        plain.trim_end()
    }
}
