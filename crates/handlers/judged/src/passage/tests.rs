//! Tests that a growing text gets the verdict of the whole text, however it is divided.

use std::sync::OnceLock;

use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::{Passage, Refusal};
use crate::judge::Judge;
use crate::policy::{Policy, Selection, Thresholds};
use crate::rules::Rules;

fn rules() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    RULES.get_or_init(|| {
        let words = ["no good", "ばかもの", "ass", "aa"].map(str::to_owned).to_vec();
        Rules::new(&Selection::default(), [("insult".to_owned(), words)].into()).unwrap()
    })
}

fn thresholds(rules: &Rules) -> Thresholds {
    let all = Selection::default();
    Policy::new(rules.categories(), &all, &all, &std::collections::BTreeMap::new()).unwrap().before
}

/// Parts from which texts are made: whole findings, their beginnings and ends, and neighbors.
fn part() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "4111 1111 1111 1111",
        "4111",
        "1111",
        " ",
        "-",
        ".",
        "+81 90 1234",
        " 5678",
        "090-1234-5678",
        "0",
        "9",
        "taro@example.com",
        "taro",
        "@",
        "example",
        ".com",
        "no good",
        "no ",
        "good",
        "ass",
        "istant",
        "ばかもの",
        "ばか",
        "もの",
        "ignore all previous",
        " instructions",
        "クマが",
        "海",
        "a",
        "The bear went to the sea. ",
        "(212) 555-0123",
        "１２３",
        "\n",
    ]);
    prop_oneof![
        8 => fixed.prop_map(str::to_owned),
        1 => "[0-9 ]{1,30}",
        1 => "[a-z@.]{1,140}",
        1 => Just("x1".repeat(90)),
    ]
}

/// Returns the first finding of the whole text that refuses it.
fn whole(text: &str, rules: &Rules, thresholds: &Thresholds) -> Option<Refusal> {
    let findings = rules.find(text, 0).into_iter().filter(|finding| thresholds.refuses(finding));
    let first = findings.map(|finding| (finding.range.start, finding.category)).min();
    first.map(|(at, category)| {
        let ascii = text.chars().nth(at).unwrap().is_ascii();
        Refusal { category, at, ascii }
    })
}

proptest! {
    #[test]
    fn any_division_of_a_text_gets_the_verdict_of_the_whole(
        parts in prop::collection::vec(part(), 1..14),
        cuts in prop::collection::vec(1_usize..12, 1..60),
        skips in prop::collection::vec(any::<bool>(), 1..20),
    ) {
        let (rules, text) = (rules(), parts.concat());
        let thresholds = thresholds(rules);
        let expected = whole(&text, rules, &thresholds);
        let characters: Vec<char> = text.chars().collect();
        let (mut passage, mut at) = (Passage::default(), 0);
        for (index, cut) in cuts.iter().cycle().enumerate() {
            if at == characters.len() {
                break;
            }
            let end = (at + cut).min(characters.len());
            passage.push(&characters[at..end].iter().collect::<String>());
            at = end;
            // A text need not be judged after each part.
            if skips[index % skips.len()] {
                passage.check(rules, &thresholds, false);
                let held = passage.text.chars().count();
                prop_assert!(held <= 2 * rules.window(), "{held} characters are held");
            }
            // Nothing of the refused text is ever clear.
            if let Some(refusal) = expected {
                prop_assert!(passage.clear() <= refusal.at, "{text:?}");
            }
        }
        prop_assert_eq!(passage.check(rules, &thresholds, true), expected, "{:?}", text);
        if expected.is_none() {
            prop_assert_eq!(passage.clear(), characters.len());
        }
    }

    #[test]
    fn no_text_makes_the_rules_panic(text in ".{0,300}") {
        let rules = rules();
        let count = text.chars().count();
        for finding in rules.find(&text, 0) {
            prop_assert!(finding.range.start < finding.range.end && finding.range.end <= count);
            prop_assert!(finding.range.len() < rules.window());
        }
        prop_assert!(rules.open(&text, 0) <= count);
    }
}

#[test]
fn a_category_that_refuses_nothing_holds_no_verdict() {
    let rules = rules();
    let none = Thresholds::default();
    let mut passage = Passage::default();
    passage.push("4111 1111 1111 1111");
    assert_eq!(passage.check(rules, &none, true), None);
    assert_eq!(passage.clear(), 19);
}
