//! Tests of the parser, against what Java reads.

use proptest::prelude::*;

use super::{Property, decode, parse};

/// Texts with what `java.util.Properties` reads from each; `Vectors.java` beside it writes them.
const BY_JAVA: &str = include_str!("../../tests/djl/java/properties.json");

fn pairs(properties: Vec<Property>) -> Vec<(String, String)> {
    properties.into_iter().map(|property| (property.name, property.value)).collect()
}

#[test]
fn properties_are_those_that_java_reads() {
    type Pairs = Vec<(String, String)>;
    let vectors: Vec<(String, Option<Pairs>)> = serde_json::from_str(BY_JAVA).unwrap();
    assert!(vectors.len() >= 800);
    for (text, by_java) in vectors {
        assert_eq!(parse(&text).ok().map(pairs), by_java, "{text:?}");
    }
}

#[test]
fn a_property_has_the_line_on_which_it_begins() {
    let text = "# a\r\nb=1\r\n\r\nc=\\\r\n  2\rd=3\n\\\n\ne=4";
    let lines = parse(text).unwrap().into_iter().map(|property| (property.name, property.line));
    let expected =
        [("b", 2), ("c", 4), ("d", 6), ("e", 9)].map(|(name, line)| (name.to_owned(), line));
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn an_escape_that_java_refuses_is_named_with_its_line() {
    let refused = |text: &str| nsbridge_base::chain(parse(text).unwrap_err().as_ref());
    assert_eq!(refused("a=b\nc=\\u12\n"), "line 2: an escape \\u needs four hexadecimal digits");
    // Java reads a half, and strings here cannot hold it.
    for half in ["a=\\ud83d", "a=\\ud83dx", "a=\\ude00", "a=\\ud83d\\u0041", "\\ud83d=\\ude00"] {
        assert_eq!(refused(half), "line 1: an escape \\u is half of a surrogate pair", "{half}");
    }
}

#[test]
fn a_file_is_utf_8_or_else_latin_1_and_no_binary() {
    assert_eq!(decode("a=é\n".as_bytes()).unwrap(), "a=é\n");
    assert_eq!(decode("\u{feff}a=b".as_bytes()).unwrap(), "a=b");
    assert_eq!(decode(b"a=\xe9\t\x0c\r\n").unwrap(), "a=é\t\u{c}\r\n");
    let refused = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    assert_eq!(refused(b"ab\0"), "it is not a text file: byte 2 is 0x00");
    assert_eq!(refused(b"\x1b[2J"), "it is not a text file: byte 0 is 0x1b");
    assert_eq!(refused(&vec![b'a'; (1 << 20) + 1]), "it has 1048577 bytes, more than 1048576");
}

/// Writes a text as a name or value of a file.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => escaped.push(c),
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    escaped += &format!("\\u{unit:04x}");
                }
            }
        }
    }
    escaped
}

proptest! {
    #[test]
    fn what_is_written_with_escapes_is_read_back(
        written in prop::collection::vec((any::<String>(), any::<String>()), 0..8),
        separator in prop::sample::select(vec!["=", ":", " ", "\t", " = ", " :\u{c}"]),
        end in prop::sample::select(vec!["\n", "\r", "\r\n"]),
    ) {
        let lines = written.iter().map(|(name, value)| format!("{}{separator}{}{end}", escaped(name), escaped(value)));
        let text: String = lines.collect();
        // A line of white space alone has no property.
        let is_blank = |name: &str, value: &str| name.is_empty() && value.is_empty() && separator.trim().is_empty();
        let expected: Vec<_> =
            written.into_iter().filter(|(name, value)| !is_blank(name, value)).collect();
        // Without a separator that is no space, the name of a line is its first word.
        let shifted = separator.trim().is_empty();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, value)| if shifted && name.is_empty() { (value, name) } else { (name, value) })
            .collect();
        prop_assert_eq!(pairs(parse(&text).unwrap()), expected);
    }

    #[test]
    fn no_text_makes_the_parser_fail_otherwise(text in any::<String>(), bytes in any::<Vec<u8>>()) {
        if let Err(error) = parse(&text) {
            prop_assert!(error.to_string().starts_with("line "));
        }
        if let Ok(text) = decode(&bytes) {
            let _ = parse(&text);
        }
    }

    #[test]
    fn plain_values_stay_as_they_are(names in prop::collection::vec("[a-z.]{1,9}", 1..6), value in "[!-\\[\\]-~][ -\\[\\]-~]{0,20}") {
        let value = value.trim_start_matches(['=', ':']).to_owned();
        let text: String = names.iter().map(|name| format!("{name}={value}\n")).collect();
        let expected: Vec<_> = names.into_iter().map(|name| (name, value.trim_start().to_owned())).collect();
        prop_assert_eq!(pairs(parse(&text).unwrap()), expected);
    }
}
