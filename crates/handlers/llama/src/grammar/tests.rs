//! Tests that token masks equal those of an independent automaton, and that errors name the field.

use std::collections::HashMap;

use nsbridge_handler::{Error, ResponseFormat};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, MatchKind};
use serde_json::{Value, json};

use super::{Grammar, Grammars, Rule, VERSION, vocabulary};
use crate::sample::TokenSet;
use crate::workers::Workers;

/// End token of the model, among [`words`].
const END: u32 = 0;

/// Returns an end token, all bytes, and longer tokens: words, parts of characters, two equal ones
/// and an empty one.
fn words() -> Vec<Vec<u8>> {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let pieces: [&[u8]; 18] = [
        b"ab",
        b"abc",
        b"ca",
        b"12",
        b"120",
        b"{\"",
        b"\":",
        b"\",\"",
        b"true",
        b"\xe3\x81",
        b"\x81\x82",
        b"\x82\xe3",
        b"\xe3\x81\x82",
        b"\xe3\x81\x82",
        b"a\xe3",
        b"\xff",
        b"  ",
        b"b\"}",
    ];
    let pieces = pieces.iter().map(|piece| piece.to_vec());
    std::iter::once(Vec::new()).chain(bytes).chain(pieces).collect()
}

fn grammar(format: &Value) -> Result<Grammar, Error> {
    grammar_over(words(), format)
}

fn grammar_over(words: Vec<Vec<u8>>, format: &Value) -> Result<Grammar, Error> {
    let format: ResponseFormat = serde_json::from_value(format.clone()).unwrap();
    let rule = Rule::of(&format)?.unwrap();
    Grammars::new(move || words.clone()).compile(&rule)
}

fn regex(regex: &str) -> Value {
    json!({ "type": "regex", "regex": regex })
}

fn schema(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } })
}

/// Returns the allowed next tokens.
fn allowed(grammar: &mut Grammar) -> Vec<u32> {
    let allowed = grammar.allowed(&[END].as_slice().into()).unwrap();
    (0..words().len() as u32 + 64).filter(|&token| allowed.has(token)).collect()
}

/// Finite automaton of a regular expression, from another crate.
struct Oracle {
    dfa: dense::DFA<Vec<u32>>,
    alive: HashMap<StateID, bool>,
}

impl Oracle {
    fn new(regex: &str) -> Self {
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .minimize(true);
        let dfa = dense::Builder::new().configure(config).build(regex).unwrap();
        Self { dfa, alive: HashMap::new() }
    }

    fn after(&self, text: &[u8]) -> StateID {
        let input = regex_automata::Input::new("").anchored(Anchored::Yes);
        let start = self.dfa.start_state_forward(&input).unwrap();
        text.iter().fold(start, |state, &byte| self.dfa.next_state(state, byte))
    }

    fn ends(&self, state: StateID) -> bool {
        self.dfa.is_match_state(self.dfa.next_eoi_state(state))
    }

    /// Returns true if some text that continues from this state matches.
    fn is_alive(&mut self, state: StateID) -> bool {
        if let Some(&alive) = self.alive.get(&state) {
            return alive;
        }
        let (mut seen, mut open, mut alive) = (vec![state], vec![state], false);
        while let Some(state) = open.pop() {
            alive = alive || self.ends(state);
            for byte in 0..=u8::MAX {
                let next = self.dfa.next_state(state, byte);
                if !seen.contains(&next) {
                    seen.push(next);
                    open.push(next);
                }
            }
        }
        self.alive.insert(state, alive);
        alive
    }
}

fn drawn(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

/// Follows random tokens and compares each mask with the automaton.
#[track_caller]
fn check_masks(format: &Value, regex: &str, walks: u64) {
    let (words, mut oracle) = (words(), Oracle::new(regex));
    let first = grammar(format).unwrap();
    let mut steps = 0;
    for walk in 0..walks {
        let (mut grammar, mut text, mut state) = (first.clone(), Vec::new(), walk);
        for _ in 0..24 {
            let may = |(token, word): (usize, &Vec<u8>)| {
                let fits = if token as u32 == END {
                    oracle.ends(oracle.after(&text))
                } else {
                    let to = oracle.after(&[&text[..], word].concat());
                    !word.is_empty() && oracle.is_alive(to)
                };
                fits.then_some(token as u32)
            };
            let expected: Vec<u32> = words.iter().enumerate().filter_map(may).collect();
            assert_eq!(allowed(&mut grammar), expected, "{regex} after {:?}", text.escape_ascii());
            steps += 1;
            let token = expected[drawn(&mut state, expected.len())];
            if token == END {
                break;
            }
            text.extend(&words[token as usize]);
            let over = grammar.take(token).unwrap();
            let state = oracle.after(&text);
            let mut on = (0..=u8::MAX).map(|byte| oracle.dfa.next_state(state, byte));
            let next: Vec<StateID> = on.by_ref().collect();
            assert_eq!(over, !next.into_iter().any(|next| oracle.is_alive(next)), "{regex}");
            if over {
                assert!(oracle.ends(state));
                break;
            }
        }
    }
    assert!(steps > walks);
}

#[test]
fn masks_of_expressions_are_those_of_an_automaton() {
    for expression in [
        "[abc]{1,6}",
        "(ab|ca)*12?0?",
        "a+|b*c",
        "(?i)true|\"[^\"]{0,4}\"",
        "[あ-ん]{2,4}",
        "(あ|い|a)+b?",
        ".{3,5}",
        "[^a]{2}\u{3042}?",
        "(a|ab)(c|bcd)(d*)",
        r"\d{2,3}(\.\d+)?",
        r"(?s:.)\s*x",
        "a/b\\/c\n+",
        "(?x) a b # said\n c",
    ] {
        check_masks(&regex(expression), expression, 12);
    }
}

#[test]
fn anchors_at_the_ends_say_nothing_more() {
    check_masks(&regex("^(ab|ca)+$"), "(ab|ca)+", 4);
    check_masks(&regex("[abc]{2}$"), "[abc]{2}", 4);
}

#[test]
fn masks_of_json_are_those_of_an_automaton() {
    // Strings without escapes, so that a regular expression can describe them.
    let object = json!({
        "type": "object", "additionalProperties": false, "required": ["ab"],
        "properties": { "ab": { "type": "string", "pattern": "^[abcあ]{0,3}$" }, "1": { "enum": [true, 120] } }
    });
    let text = r#"\{"ab":"[abcあ]{0,3}"(,"1":(true|120))?\}"#;
    check_masks(&schema(&object), text, 20);
    let numbers = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 120 }, "maxItems": 3 });
    let number = "(0|[1-9][0-9]?|1[01][0-9]|120)";
    check_masks(&schema(&numbers), &format!(r"\[({number}(,{number}){{0,2}})?\]"), 20);
    check_masks(&schema(&json!({ "const": "ab\"あ" })), r#""ab\\"あ""#, 4);
}

fn calls(begin: &str, end: &str, call: &Value, otherwise: Option<&Value>) -> Value {
    let mut calls = json!({ "begin": begin, "end": end, "schema": call });
    if let Some(otherwise) = otherwise {
        calls["otherwise"] = otherwise.clone();
    }
    json!({ "type": "tool_calls", "tool_calls": calls })
}

#[test]
fn masks_of_calls_are_those_of_an_automaton() {
    let (one, two) = (json!({ "const": 1 }), json!({ "const": 2 }));
    let before = "(?:[^a]|a+[^ab])*";
    let among = format!(r"(?:{before}a+b[ \n]*1[ \n]*c)*{before}a*");
    check_masks(&calls("ab", "c", &one, None), &among, 200);
    check_masks(&calls("<", ">", &one, Some(&two)), r"(?:[ \n]*<[ \n]*1[ \n]*>)+|2", 100);
    check_masks(&calls("/*", "*/", &one, Some(&two)), r"(?:[ \n]*/\*[ \n]*1[ \n]*\*/)+|2", 50);
    let object = json!({ "type": "object", "additionalProperties": false });
    check_masks(&calls("", "", &object, None), r"(?s)\{\}|[^{].*", 100);
    check_masks(&calls("", "", &object, Some(&two)), r"\{\}|2", 20);
}

#[test]
fn calls_that_cannot_be_held_to_are_refused_by_their_field() {
    check_refused(&calls("<", ">", &json!(true), None), &["`tools`", "object"]);
    let wrong = json!({ "type": "text" });
    check_refused(&calls("<", ">", &wrong, None), &["`tools`"]);
    check_refused(
        &calls("<", ">", &json!({ "const": 1 }), Some(&json!([]))),
        &["`response_format.json_schema.schema`", "object"],
    );
    check_refused(&calls(&"<".repeat(65), ">", &json!({}), None), &["`tools`", "64"]);
}

#[test]
fn a_copy_goes_its_own_way() {
    let mut one = grammar(&regex("a[abc]{3}|b1")).unwrap();
    let mut other = one.clone();
    let token = |byte: u8| u32::from(byte) + 1;
    assert!(!one.take(token(b'a')).unwrap());
    assert!(!other.take(token(b'b')).unwrap());
    assert!(allowed(&mut one).contains(&token(b'c')));
    assert_eq!(allowed(&mut other)[0], token(b'1'));
    assert!(other.take(token(b'1')).unwrap());
}

#[test]
fn ends_follow_where_the_text_may_end_and_nowhere_else() {
    let (a, b) = (u32::from(b'a') + 1, u32::from(b'b') + 1);
    let mut grammar = grammar(&regex("a[ab]?")).unwrap();
    let has = |grammar: &mut Grammar, ends: &[u32], token| {
        grammar.allowed(&ends.into()).unwrap().has(token)
    };
    assert!(!has(&mut grammar, &[END, 9_999_999], END));
    assert!(!has(&mut grammar, &[a], a));
    grammar = super::tests::grammar(&regex("a[ab]?")).unwrap();
    grammar.take(a).unwrap();
    assert!(has(&mut grammar, &[END, b], END));
    assert!(has(&mut grammar, &[END, b], b));
}

#[track_caller]
fn check_refused(format: &Value, words: &[&str]) {
    match grammar(format) {
        Err(Error::BadInput(why)) => {
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
            // The sentence reveals no internals of the parser and no advice for its developers.
            let inner = ["panic", "limits.", "option", "feature", "\n"];
            assert!(why.len() < 1000 && !inner.iter().any(|word| why.contains(word)), "{why}");
        }
        other => panic!("{format}: {other:?}"),
    }
}

#[test]
fn an_expression_that_cannot_be_held_to_is_refused_by_its_field() {
    for (expression, why) in [
        ("a(", "unclosed group"),
        ("[z-a]", "invalid"),
        (r"(a)\1", "backreferences"),
        ("a(?=b)", "look-around"),
        (r"a\bb", "anchor or border"),
        ("^a|b$", "anchor or border"),
        ("(?m)^a$", "anchor or border"),
        ("[a&&b]", "matches no text"),
        ("", "the empty one"),
        ("()", "the empty one"),
        (r"^$", "the empty one"),
        (r"\xff(?-u:\xff)", "no regular expression"),
    ] {
        check_refused(&regex(expression), &["`response_format.regex`", why]);
    }
    check_refused(&regex(&r"\w".repeat(2000)), &["`response_format.regex`", "too much"]);
    check_refused(&regex(&"[a-z]?".repeat(1000)), &["`response_format.regex`", "too much"]);
    check_refused(&regex(&"a".repeat(8193)), &["`response_format.regex`", "8193", "8192"]);
    check_refused(&regex(&"(".repeat(4000)), &["`response_format.regex`"]);
    check_refused(
        &regex(&("(".repeat(4000) + &")".repeat(4000))),
        &["`response_format.regex`", "nest"],
    );
}

#[test]
fn a_schema_that_cannot_be_held_to_is_refused_by_its_field() {
    for (given, why) in [
        (json!("string"), "must be an object"),
        (json!(true), "must be an object"),
        (json!({ "type": "object", "x-guidance": {} }), "x-guidance"),
        (json!({ "type": "strin" }), "strin"),
        (json!({ "type": 5 }), "type"),
        (json!({ "not": { "type": "string" } }), "not"),
        (json!({ "if": {}, "then": {} }), "if"),
        (json!({ "type": "array", "uniqueItems": true }), "uniqueItems"),
        (json!({ "type": "integer", "minimum": 5, "maximum": 4 }), "nsatisfiable"),
        (json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] }), "nsatisfiable"),
        (json!({ "enum": [] }), "nsatisfiable"),
        (json!({ "$ref": "#/$defs/none" }), "none"),
        (json!({ "$ref": "https://example.com/schema" }), "`$ref`"),
        (json!({ "type": "string", "pattern": "a(" }), "unclosed"),
        (json!({ "type": "string", "format": "no-such" }), "no-such"),
        (json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), "`oneOf`"),
        (json!({ "type": "string", "minLength": 3, "maxLength": 2 }), "nsatisfiable"),
        (json!({ "type": "array", "minItems": 3, "maxItems": 2, "items": {} }), "nsatisfiable"),
        (json!({ "$ref": "#" }), "no text"),
        (json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/a" } } }), "no text"),
        (
            json!({ "allOf": vec![json!({ "anyOf": vec![json!({ "properties": { "a": {} } }); 9] }); 9] }),
            "too much",
        ),
        (json!({ "multipleOf": 999_983 }), "`multipleOf`"),
        (json!({ "items": { "multipleOf": 12.34567 } }), "`multipleOf`"),
        (json!({ "anyOf": [{ "multipleOf": 1e15 }] }), "`multipleOf`"),
        (json!({ "description": "x".repeat(70_000) }), "65536"),
        // The parser cuts its message in the middle of a character.
        (
            json!({ "type": "integer", "minimum": format!("x{}", "あ".repeat(80)) }),
            "cannot be compiled",
        ),
    ] {
        check_refused(&schema(&given), &["`response_format.json_schema.schema`", why]);
    }
}

#[test]
fn h2_a_schema_that_would_compile_without_end_is_refused_at_once() {
    let all = |parts: Vec<Value>| json!({ "type": "integer", "allOf": parts });
    let patterns = |count: u32| {
        let not = |at| json!({ "pattern": format!("[^{}]", char::from_u32(0x100 + at).unwrap()) });
        json!({ "type": "string", "allOf": (0..count).map(not).collect::<Vec<_>>() })
    };
    let names = |count: u32| {
        let names = (0..count).map(|at| (format!("^p{at}x"), json!({})));
        json!({ "type": "object", "patternProperties": names.collect::<serde_json::Map<_, _>>() })
    };
    let steps = |count: u32| {
        let step = |at| (format!("p{at}"), json!({ "type": "integer", "multipleOf": 9901 + at }));
        json!({ "type": "object", "properties": (0..count).map(step).collect::<serde_json::Map<_, _>>() })
    };
    let step = |step: u32| json!({ "multipleOf": step });
    let by_reference = json!({
        "$defs": { "a": { "multipleOf": 9999 }, "b": { "allOf": [{ "$ref": "#/$defs/a" }] } },
        "type": "object", "properties": { "x": { "$ref": "#/$defs/b", "multipleOf": 9973 } }
    });
    let in_properties = json!({ "allOf": [
        { "properties": { "x": { "type": "integer", "multipleOf": 997 } } },
        { "properties": { "x": { "type": "integer", "multipleOf": 991 } } }
    ] });
    for (given, why) in [
        (all(vec![step(9999), step(9973)]), "least common multiple"),
        (all(vec![step(997), step(991)]), "least common multiple"),
        (json!({ "anyOf": [step(9973), step(9967)] }), "least common multiple"),
        (json!({ "type": "number", "multipleOf": 0.01, "allOf": [step(101)] }), "least common"),
        (by_reference, "least common multiple"),
        (in_properties, "least common multiple"),
        (steps(100), "in sum"),
        (patterns(300), "at most 12"),
        (patterns(13), "at most 12"),
        (names(200), "at most 32"),
        (json!({ "allOf": [names(20), { "items": names(20) }] }), "at most"),
    ] {
        let begun = std::time::Instant::now();
        check_refused(&schema(&given), &["`response_format.json_schema.schema`", why]);
        let took = begun.elapsed();
        assert!(took.as_millis() < 1000, "{took:?}: {why}");
    }
    for within in [
        all(vec![step(4), step(100)]),
        json!({ "type": "number", "multipleOf": 0.01, "allOf": [step(5)] }),
        json!({ "type": "integer", "multipleOf": 9973 }),
        steps(2),
        patterns(2),
        names(32),
    ] {
        assert!(grammar(&schema(&within)).is_ok(), "{within}");
    }
}

#[test]
fn deep_schemas_and_expressions_are_answered_or_refused() {
    let deep = |wrap: &dyn Fn(Value) -> Value, depth| {
        (0..depth).fold(json!({ "type": "null" }), |inner, _| wrap(inner))
    };
    let work = move || {
        for depth in [10, 60, 120] {
            let _ =
                grammar(&schema(&deep(&|inner| json!({ "type": "array", "items": inner }), depth)));
            let _ = grammar(&schema(&deep(
                &|inner| json!({ "anyOf": [inner, { "const": 1 }] }),
                depth,
            )));
            let _ =
                grammar(&schema(&deep(&|inner| json!({ "properties": { "a": inner } }), depth)));
        }
        for depth in [50, 200] {
            let _ = grammar(&regex(&("(a|b".repeat(depth) + &")*".repeat(depth))));
        }
        let _ = grammar(&regex(&"ab|".repeat(2700)));
        Ok(())
    };
    let workers = Workers::start(2).unwrap();
    futures_executor::block_on(workers.run("a".into(), 1, work)).unwrap();
}

#[test]
fn tokens_that_spell_nothing_are_a_reason_to_refuse() {
    assert_eq!(vocabulary::parsers(Vec::new()).err(), Some("this model's tokens spell no text"));
    let none = vec![Vec::new(), vec![0xff], vec![b'a'; 5000]];
    assert_eq!(vocabulary::parsers(none).err(), Some("this model's tokens spell no text"));
    let many = vec![vec![b'a'; 1000]; 5000];
    assert!(vocabulary::parsers(many).err().unwrap().contains("too many"));
    // The tokens spell some text, but not this one.
    let words = vec![b"a".to_vec(), b"b".to_vec()];
    let missing = grammar_over(words.clone(), &regex("c+")).unwrap_err();
    assert!(missing.to_string().contains("no text"), "{missing}");
    let empty = grammar_over(words.clone(), &regex("c?")).unwrap_err();
    assert!(empty.to_string().contains("the empty one"), "{empty}");
    let mut later = grammar_over(words, &regex("[ab]c")).unwrap();
    later.take(0).unwrap();
    let missing = later.allowed(&TokenSet::default()).unwrap_err();
    assert!(missing.to_string().contains("tokens cannot spell"), "{missing}");
}

#[test]
fn the_versions_that_the_fingerprint_tells_are_those_of_the_lock_file() {
    let lock = include_str!("../../../../../Cargo.lock");
    for each in VERSION.split(", ") {
        let (name, version) = each.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry), "{each}");
    }
}
