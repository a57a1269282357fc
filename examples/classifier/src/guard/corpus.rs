//! Corpus of the judge: sentences with places for values, and the values that fill them.
//!
//! `data/guard/train.tsv` and `data/guard/held-out.tsv` share no sentence. Numbers, names and addresses
//! are made up here.

use crate::training::Random;

const INSULTS: &str = include_str!("../../data/guard/insults.toml");
const TRAIN: &str = include_str!("../../data/guard/train.tsv");
const HELD_OUT: &str = include_str!("../../data/guard/held-out.tsv");

/// Labels in the order of the network's outputs.
pub const LABELS: [&str; 4] = ["none", "prompt_injection", "personal_data", "insult"];

/// Number of texts that are made of each held-out sentence.
const FILLED: usize = 8;

/// Seed of the values in held-out sentences.
const SEED: u64 = 27;

const NAMES: [&str; 12] = [
    "Taro Yamada",
    "Anna Schmidt",
    "John Carter",
    "Maria Rossi",
    "Ken Ito",
    "Lucy Brown",
    "山田太郎",
    "佐藤花子",
    "鈴木一郎",
    "高橋健",
    "田中美咲",
    "伊藤直子",
];
const USERS: [&str; 8] =
    ["taro", "anna.schmidt", "john_c", "m.rossi", "ken", "lucy99", "info", "h-sato"];
const HOSTS: [&str; 6] = [
    "example.com",
    "example.org",
    "mail.example.jp",
    "example.co.jp",
    "post.example.net",
    "corp.example",
];

/// Sentence with its label.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Index in [`LABELS`].
    pub label: usize,
    text: &'static str,
}

/// Returns the sentences for training.
pub fn train() -> Vec<Template> {
    read(TRAIN)
}

/// Returns the held-out texts with the index of their label.
pub fn held_out() -> Vec<(usize, String)> {
    let mut random = Random(SEED);
    let mut texts = Vec::new();
    for template in read(HELD_OUT) {
        let filled = if template.text.contains('{') { FILLED } else { 1 };
        for _ in 0..filled {
            texts.push((template.label, template.fill(&mut random)));
        }
    }
    texts
}

fn read(lines: &'static str) -> Vec<Template> {
    let lines = lines.lines().filter_map(|line| line.split_once('\t'));
    let known = lines.filter_map(|(label, text)| {
        let label = LABELS.iter().position(|known| *known == label)?;
        Some(Template { label, text })
    });
    known.collect()
}

impl Template {
    /// Returns a text of the sentence: `{a|b}` becomes `a` or `b`, and `{card}` a card number.
    pub fn fill(&self, random: &mut Random) -> String {
        let mut text = String::new();
        let mut rest = self.text;
        while let Some((before, (place, after))) =
            rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            text.push_str(before);
            text.push_str(&value(place, random));
            rest = after;
        }
        text.push_str(rest);
        text
    }
}

/// Returns the value of a place.
fn value(place: &str, random: &mut Random) -> String {
    match place {
        "card" => card(random),
        "phone" => phone(random),
        "email" => {
            let user = choose(&USERS, random);
            format!("{user}{}@{}", ["", "7", "+a"][random.below(3)], choose(&HOSTS, random))
        }
        "name" => choose(&NAMES, random).to_owned(),
        "en-insult" => insult(true, random),
        "ja-insult" => insult(false, random),
        choices => {
            let choices: Vec<&str> = choices.split('|').collect();
            choose(&choices, random).to_owned()
        }
    }
}

fn choose<'a>(from: &[&'a str], random: &mut Random) -> &'a str {
    from[random.below(from.len())]
}

/// Returns a word of the list, in English or in Japanese.
fn insult(english: bool, random: &mut Random) -> String {
    let words = INSULTS.lines().filter(|line| !line.starts_with('#'));
    let words = words.flat_map(|line| line.split('"').skip(1).step_by(2));
    let words: Vec<&str> = words.filter(|word| word.is_ascii() == english).collect();
    choose(&words, random).to_owned()
}

/// Returns the number of a card with a valid check digit.
fn card(random: &mut Random) -> String {
    let (prefix, length, groups): (&str, usize, &[usize]) = [
        ("4", 16, &[4, 4, 4, 4][..]),
        ("52", 16, &[4, 4, 4, 4]),
        ("37", 15, &[4, 6, 5]),
        ("3530", 16, &[4, 4, 4, 4]),
    ][random.below(4)];
    let mut digits: Vec<u32> = prefix.chars().filter_map(|digit| digit.to_digit(10)).collect();
    digits.extend((digits.len()..length - 1).map(|_| random.below(10) as u32));
    let weighed = digits.iter().rev().enumerate().map(|(place, digit)| match place % 2 {
        1 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    });
    digits.push((10 - weighed.sum::<u32>() % 10) % 10);
    let separator = ["", " ", "-"][random.below(3)];
    let mut text = String::new();
    let mut at = 0;
    for group in groups {
        if at > 0 {
            text.push_str(separator);
        }
        text.extend(digits[at..at + group].iter().filter_map(|digit| char::from_digit(*digit, 10)));
        at += group;
    }
    wide(text, random)
}

/// Returns a telephone number of Japan or North America.
fn phone(random: &mut Random) -> String {
    let forms = [
        "090-dddd-dddd",
        "080dddddddd",
        "03-dddd-dddd",
        "0422-dd-dddd",
        "(06)dddd-dddd",
        "+81 90 dddd dddd",
        "+81-3-dddd-dddd",
        "+1 212 555 dddd",
        "(415) 555-dddd",
        "206-555-dddd",
        "+44 20 dddd dddd",
        "0120-ddd-ddd",
    ];
    let form = choose(&forms, random);
    let digit = |random: &mut Random| char::from_digit(random.below(10) as u32, 10).unwrap_or('0');
    let text = form.chars().map(|form| if form == 'd' { digit(random) } else { form });
    let text = text.collect();
    wide(text, random)
}

/// Returns the text in full-width characters, one time in eight.
fn wide(text: String, random: &mut Random) -> String {
    if random.below(8) > 0 {
        return text;
    }
    let wide = |plain: char| match plain {
        '!'..='~' => char::from_u32(u32::from(plain) + 0xff01 - 0x21).unwrap_or(plain),
        other => other,
    };
    text.chars().map(wide).collect()
}

/// Errors of a judge on the held-out texts, for one category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Number of texts of other labels.
    pub others: usize,
    /// Number of texts of other labels that reach the threshold.
    pub false_positives: usize,
    /// Number of texts of the category.
    pub own: usize,
    /// Number of texts of the category that do not reach the threshold.
    pub false_negatives: usize,
}

/// Counts the errors of a category over the held-out texts that `counts` selects.
pub fn errors(
    probabilities: impl Fn(&str) -> Vec<f32>,
    category: usize,
    threshold: f32,
    counts: impl Fn(&str) -> bool,
) -> Errors {
    let mut errors = Errors::default();
    for (label, text) in held_out().into_iter().filter(|(_, text)| counts(text)) {
        let found = probabilities(&text)[category] >= threshold;
        if label == category {
            errors.own += 1;
            errors.false_negatives += usize::from(!found);
        } else {
            errors.others += 1;
            errors.false_positives += usize::from(found);
        }
    }
    errors
}
