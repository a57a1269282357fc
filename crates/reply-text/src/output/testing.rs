//! Parsing of whole replies in the tests of the formats.

use super::{Delta, OutputParser, ReasoningTags, ToolFormat};

/// Parses the parts of a reply. Adjacent deltas of one kind are joined, as a client joins them.
pub(super) fn parse<'a>(
    tools: &ToolFormat,
    reasoning: Option<ReasoningTags>,
    parts: impl IntoIterator<Item = &'a str>,
) -> Vec<Delta> {
    let mut parser = OutputParser::new(tools.clone(), reasoning);
    let mut deltas = Vec::new();
    for part in parts {
        deltas.extend(parser.push(part));
    }
    let calls = parser.calls();
    deltas.extend(parser.end());
    let begun = deltas.iter().filter(|delta| matches!(delta, Delta::CallBegin { .. })).count();
    assert_eq!(calls, begun, "the count of calls");
    join(deltas)
}

fn join(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut joined: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (joined.last_mut(), delta) {
            (Some(Delta::Content(last)), Delta::Content(text))
            | (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => last.push_str(&text),
            (
                Some(Delta::CallArguments { index: of, text: last }),
                Delta::CallArguments { index, text },
            ) if *of == index => last.push_str(&text),
            (_, delta) => joined.push(delta),
        }
    }
    joined
}

/// Returns each character as a part of its own.
pub(super) fn characters(text: &str) -> Vec<&str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
}

/// Returns the content and the reasoning.
pub(super) fn texts(deltas: &[Delta]) -> (String, String) {
    let (mut content, mut reasoning) = (String::new(), String::new());
    for delta in deltas {
        match delta {
            Delta::Content(text) => content.push_str(text),
            Delta::Reasoning(text) => reasoning.push_str(text),
            Delta::CallBegin { .. } | Delta::CallArguments { .. } => {}
        }
    }
    (content, reasoning)
}

/// Returns the names and arguments of the calls.
pub(super) fn calls(deltas: &[Delta]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::CallBegin { index, name } => {
                assert_eq!(*index, calls.len());
                calls.push((name.clone(), String::new()));
            }
            Delta::CallArguments { index, text } => {
                assert_eq!(*index + 1, calls.len());
                calls[*index].1.push_str(text);
            }
            Delta::Content(_) | Delta::Reasoning(_) => {}
        }
    }
    calls
}

/// Checks the content and the calls of a reply without reasoning, in one piece and in characters.
#[track_caller]
pub(super) fn check(tools: &ToolFormat, text: &str, content: &str, told: &[(&str, &str)]) {
    for parts in [vec![text], characters(text)] {
        let deltas = parse(tools, None, parts);
        assert_eq!(texts(&deltas), (content.to_owned(), String::new()), "{text}");
        let told: Vec<_> =
            told.iter().map(|(name, args)| ((*name).into(), (*args).into())).collect();
        assert_eq!(calls(&deltas), told, "{text}");
    }
}
