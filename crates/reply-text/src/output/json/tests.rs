//! The scanner and the decoder agree with serde_json, whatever the cuts.

use proptest::prelude::{any, prop, proptest};

use super::{Scanner, Step, StringReader};

/// Returns true if the text is one value. A number needs a character after it to end.
fn accepts(text: &str, deepest: usize) -> bool {
    let mut scanner = Scanner::new(deepest);
    let mut ended = false;
    for c in text.chars().chain([' ']) {
        if ended {
            if !c.is_whitespace() {
                return false;
            }
            continue;
        }
        match scanner.push(c) {
            Step::More => {}
            Step::Last => ended = true,
            Step::Past if c.is_whitespace() => ended = true,
            Step::Past | Step::Bad => return false,
        }
    }
    ended
}

#[track_caller]
fn check(text: &str, valid: bool) {
    assert_eq!(accepts(text, 128), valid, "{text}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(text).is_ok(), valid, "{text}");
}

#[test]
fn values_are_accepted_as_the_standard_defines_them() {
    for text in [
        "{}",
        "[]",
        "[ ]",
        "{ }",
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.5",
        "-10e-3",
        "1E+2",
        "\"\"",
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        "[1,2 , [3]]",
        r#"{"a":{"b":[{}]},"c":-1}"#,
        "[\n1\t]",
        "[0]",
        r#"{"a" : 1.0 , "b":"}"}"#,
        "[null,true]",
        "\"あ\"",
    ] {
        check(text, true);
    }
    for text in [
        "",
        "{",
        "[",
        "]",
        "}",
        "{]",
        "[}",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[,]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{'a':1}",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "nul",
        "nulll",
        "tru",
        "\"",
        "\"\\",
        "\"\\x\"",
        "\"\\u00g0\"",
        "\"\n\"",
        "[1 2]",
        "[\"a\" \"b\"]",
        "{\"a\":1 \"b\":2}",
        "1 2",
        "NaN",
        "[1]]",
        "{\"a\":1}}",
        "[-]",
        "{1:2}",
    ] {
        check(text, false);
    }
}

#[test]
fn the_depth_is_bounded() {
    let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(accepts(&nested(5), 5));
    assert!(!accepts(&nested(6), 5));
    assert!(accepts("[[],[],[[]]]", 3));
}

#[track_caller]
fn decode(json: &str) -> Option<String> {
    let mut reader = StringReader::default();
    let mut text = String::new();
    let mut last = Step::More;
    for c in json.strip_prefix('"')?.chars() {
        if last != Step::More {
            return None;
        }
        last = reader.push(c, |c| text.push(c));
    }
    (last == Step::Last).then_some(text)
}

#[test]
fn half_of_a_surrogate_pair_is_a_replacement_character() {
    for (json, text) in [
        (r#""\ud83d\ude00""#, "😀"),
        (r#""\uD83D""#, "\u{fffd}"),
        (r#""\ud83da""#, "\u{fffd}a"),
        (r#""\ud83d\n""#, "\u{fffd}\n"),
        (r#""\ud83d\u0041""#, "\u{fffd}A"),
        (r#""\ude00\ud83d\ud83d\ude00""#, "\u{fffd}\u{fffd}😀"),
    ] {
        assert_eq!(decode(json).as_deref(), Some(text), "{json}");
    }
}

proptest! {
    #[test]
    fn texts_are_accepted_as_serde_json_accepts_them(
        parts in prop::collection::vec(
            prop::sample::select(
                ["{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\", "n", "null", "1", "0", ".", "-", "e", " "]
                    .as_slice(),
            ),
            0..10,
        ),
    ) {
        let text = parts.concat();
        let valid = match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(_) => true,
            Err(error) => error.to_string().contains("out of range"),
        };
        assert_eq!(accepts(&text, 128), valid, "{text}");
    }

    #[test]
    fn texts_are_decoded_as_serde_json_wrote_them(text in any::<String>()) {
        let json = serde_json::to_string(&text).unwrap();
        assert_eq!(decode(&json), Some(text.clone()));
        let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        assert_eq!(decode(&format!("\"{ascii}\"")), Some(text));
    }
}
