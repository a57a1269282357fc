//! Calls after `[TOOL_CALLS]`, as Mistral writes them.
//!
//! Older models write one list `[{"name": .., "arguments": ..}, ..]`. Newer ones write the tag, the
//! name and the arguments of each call: `[TOOL_CALLS]name{..}` or `[TOOL_CALLS]name[ARGS]{..}`.

use super::json_calls::{BareCall, CallList, Outcome};
use super::sink::Sink;
use super::tag::{Content, is_space};
use crate::output::name::{LONGEST_NAME, is_name, is_name_char};

const TAG: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";

/// Maximum size of the text between the tag and the arguments, in bytes.
const LONGEST_HEAD: usize = LONGEST_NAME + 64;

/// Parser of a reply.
pub(super) struct Mistral {
    content: Content,
    /// Tag with the whitespace around it.
    tag: String,
    state: State,
}

enum State {
    Content,
    /// After the tag.
    Tagged,
    List(CallList),
    /// Text before the arguments of a call.
    Head(String),
    Call(BareCall),
}

impl Mistral {
    /// Creates the parser.
    pub(super) fn new() -> Self {
        Self { content: Content::new(TAG), tag: String::new(), state: State::Content }
    }

    /// Takes a character.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) {
        match &mut self.state {
            State::Content => self.content(c, sink),
            State::Tagged if is_space(c) => self.tag.push(c),
            State::Tagged if c == '[' => {
                let mut list = CallList::new();
                // The bracket fits always.
                list.push(c, sink);
                self.state = State::List(list);
            }
            State::Tagged => {
                self.state = State::Head(String::new());
                self.push_head(c, sink);
            }
            State::List(list) => {
                let outcome = list.push(c, sink);
                self.follow(outcome, c, sink);
            }
            State::Head(_) => self.push_head(c, sink),
            State::Call(call) => {
                let outcome = call.push(c, sink);
                self.follow(outcome, c, sink);
            }
        }
    }

    /// Ends the reply.
    pub(super) fn end(self, sink: &mut Sink) {
        match &self.state {
            State::Content => self.content.end(sink),
            State::List(list) if list.begun() => sink.content(&list.text_at_end()),
            State::Tagged | State::List(_) | State::Head(_) | State::Call(_) => self.tell(sink),
        }
    }

    fn content(&mut self, c: char, sink: &mut Sink) {
        if let Some(tag) = self.content.push(c, sink) {
            self.tag = tag;
            self.state = State::Tagged;
        }
    }

    fn push_head(&mut self, c: char, sink: &mut Sink) {
        let State::Head(head) = &mut self.state else { return };
        if c == '{'
            && let Some(name) = complete(head)
        {
            let mut call = BareCall::begin(name, sink);
            // The brace fits always.
            call.push(c, sink);
            self.state = State::Call(call);
            return;
        }
        head.push(c);
        if !may_become_head(head) {
            head.pop();
            self.follow(Outcome::Failed, c, sink);
        }
    }

    fn follow(&mut self, outcome: Outcome, c: char, sink: &mut Sink) {
        match outcome {
            Outcome::More => {}
            Outcome::Done => {
                self.content.follows_call();
                self.state = State::Content;
            }
            Outcome::Failed => {
                self.tell(sink);
                self.state = State::Content;
                self.content(c, sink);
            }
        }
    }

    /// Tells the text that was held back as content, unless its call has begun.
    fn tell(&self, sink: &mut Sink) {
        match &self.state {
            State::Tagged => sink.content(&self.tag),
            State::Head(head) => {
                sink.content(&self.tag);
                sink.content(head);
            }
            State::List(list) => {
                if !list.begun() {
                    sink.content(&self.tag);
                }
                sink.content(&list.text());
            }
            State::Content | State::Call(_) => {}
        }
    }
}

/// Returns the name and the text after it.
fn parts(head: &str) -> (&str, &str) {
    let end = head.find(|c| !is_name_char(c)).unwrap_or(head.len());
    let (name, rest) = head.split_at_checked(end).unwrap_or((head, ""));
    (name, rest.trim_matches(is_space))
}

/// Returns the name if the arguments may follow.
fn complete(head: &str) -> Option<&str> {
    let (name, rest) = parts(head);
    (is_name(name) && (rest.is_empty() || rest == ARGS)).then_some(name)
}

/// Returns true if further text can complete it.
fn may_become_head(head: &str) -> bool {
    let (name, rest) = parts(head);
    head.len() <= LONGEST_HEAD && is_name(name) && ARGS.starts_with(rest)
}

#[cfg(test)]
mod tests {
    use crate::output::ToolFormat;
    use crate::output::testing::check;

    #[track_caller]
    fn check_mistral(text: &str, content: &str, calls: &[(&str, &str)]) {
        check(&ToolFormat::Mistral, text, content, calls);
    }

    #[test]
    fn a_list_has_several_calls() {
        check_mistral(
            r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]"#,
            "",
            &[("f", r#"{"a": 1}"#)],
        );
        check_mistral(
            "Well. [TOOL_CALLS] [ {\"arguments\": {}, \"name\": \"f\"} ,\n{\"name\": \"g\"}] So.",
            "Well.So.",
            &[("f", "{}"), ("g", "{}")],
        );
    }

    #[test]
    fn a_name_comes_before_its_arguments() {
        check_mistral(r#"[TOOL_CALLS]f{"a": [1, "}"]}"#, "", &[("f", r#"{"a": [1, "}"]}"#)]);
        check_mistral(
            "A[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g-2 [ARGS] {\"b\":2}\n[TOOL_CALLS]h {}\nB",
            "AB",
            &[("f", "{}"), ("g-2", "{\"b\":2}"), ("h", "{}")],
        );
    }

    #[test]
    fn a_text_after_the_tag_that_is_no_call_is_content() {
        for text in [
            "[TOOL_CALLS",
            "[TOOL_CALLS]",
            " [TOOL_CALLS] hello world {}",
            "[TOOL_CALLS]f[ARGZ]{}",
            "[TOOL_CALLS]f[ARGS]x",
            "[TOOL_CALLS]f[ARGS",
            "[TOOL_CALLS]{}",
            "[TOOL_CALLS][]",
            "[TOOL_CALLS][1]",
            "[TOOL_CALLS][{\"name\": \"f\"",
            "[TOOL_CALLS][{\"nam\": \"f\"}]",
            "[TOOL_CALLS] [ {\"name\": \"f g\", \"arguments\": {}}]",
            "[[TOOL_CALL]S]",
        ] {
            check_mistral(text, text, &[]);
        }
        let long = format!("[TOOL_CALLS]{}{{}}", "f".repeat(65));
        check_mistral(&long, &long, &[]);
        let wide = format!("[TOOL_CALLS]f{}{{}}", " ".repeat(200));
        check_mistral(&wide, &wide, &[]);
    }

    #[test]
    fn the_text_after_a_broken_call_is_content() {
        check_mistral("[TOOL_CALLS]f{\"a\": ?}", "?}", &[("f", "{\"a\": ")]);
        check_mistral("[TOOL_CALLS][{\"name\": \"f\"}, oops]", ", oops]", &[("f", "{}")]);
        check_mistral(
            "[TOOL_CALLS][{\"name\": \"f\"}, {\"n\": 1}]",
            ", {\"n\": 1}]",
            &[("f", "{}")],
        );
    }

    #[test]
    fn a_reply_that_is_cut_off_within_a_list_has_the_calls_so_far() {
        check_mistral("[TOOL_CALLS][{\"name\": \"f\"} , ", "", &[("f", "{}")]);
        check_mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a", "", &[("f", "{\"a")]);
    }
}
