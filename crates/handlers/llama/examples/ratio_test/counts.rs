//! Statistics of stories.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::telling::Dice;

/// Names of the two animals of a story; each animal has one.
const HEROES: [&str; 14] = [
    "Bruno", "Molly", "Felix", "Cleo", "Rocky", "Hazel", "Rex", "マル", "モモ", "コン", "タマ",
    "ポン", "チコ", "ハチ",
];
const FRIENDS: [&str; 10] =
    ["Sally", "Danny", "Toby", "Olive", "Pip", "ルル", "ソラ", "ノン", "ミミ", "ペペ"];

/// Length of the n-grams that are counted, in tokens.
const GRAM: usize = 4;

/// Mean, and half the width of its 95 % interval, by the normal approximation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean(pub(crate) f64, pub(crate) f64);

impl Mean {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self(mean, 1.96 * (squares / (count - 1.0) / count).sqrt())
    }
}

/// Returns true if the names show more or fewer than one hero and one friend.
pub(crate) fn mixes_names(story: &str) -> bool {
    // The bear's honey contains the dog's name.
    let story = story.replace("ハチミツ", "");
    let named = |names: &[&str]| names.iter().filter(|name| story.contains(**name)).count();
    (named(&HEROES), named(&FRIENDS)) != (1, 1)
}

/// Returns the story up to its first full stop.
pub(crate) fn first_sentence(story: &str) -> &str {
    story.split_inclusive(['.', '。']).next().unwrap_or_default()
}

/// Returns the fraction of a story's 4-grams that occurred in it before.
pub(crate) fn repeated(tokens: &[u32]) -> f64 {
    let grams = tokens.windows(GRAM);
    let (count, seen) = (grams.len(), grams.collect::<HashSet<_>>().len());
    (count - seen) as f64 / count.max(1) as f64
}

/// Returns the number of distinct 4-grams of all stories, as a fraction of all their 4-grams.
pub(crate) fn different<'a>(stories: impl Iterator<Item = &'a [u32]>) -> f64 {
    let (mut count, mut seen) = (0, HashSet::new());
    for gram in stories.flat_map(|tokens| tokens.windows(GRAM)) {
        count += 1;
        seen.insert(gram);
    }
    seen.len() as f64 / f64::from(count.max(1))
}

/// Returns the probability that two samples of one source differ as much as these, by `G = 2 sum O
/// ln(O / E)`.
///
/// Both samples have one item, as `(stratum, item)`, for each of the same strata. The test
/// exchanges items randomly between the samples within a stratum, `shuffles` times. The chi-squared
/// distribution that `G` tends to is no substitute, because many items are rare.
pub(crate) fn differ_by_chance<T: Hash + Eq>(
    one: &[(usize, T)],
    other: &[(usize, T)],
    shuffles: usize,
) -> f64 {
    let mut numbers = HashMap::new();
    let mut places = HashMap::<usize, Vec<usize>>::new();
    let mut cells = Vec::new();
    for (place, item) in one.iter().chain(other).enumerate() {
        let next = numbers.len();
        cells.push(*numbers.entry(item).or_insert(next));
        places.entry(item.0).or_default().push(place);
    }
    let mut strata: Vec<Vec<usize>> = places.into_values().collect();
    strata.sort_unstable();
    let mut dice = Dice(1);
    let observed = unlikeness(&cells, one.len(), numbers.len());
    let mut as_much = 1;
    for _ in 0..shuffles {
        for places in &strata {
            for last in (1..places.len()).rev() {
                let with = (dice.roll() * (last + 1) as f64) as usize;
                cells.swap(places[last], places[with]);
            }
        }
        as_much += usize::from(unlikeness(&cells, one.len(), numbers.len()) >= observed - 1e-9);
    }
    as_much as f64 / (shuffles + 1) as f64
}

/// Returns `sum O ln O`, the part of `G` that shuffling changes.
fn unlikeness(cells: &[usize], first: usize, numbers: usize) -> f64 {
    let mut counts = vec![[0u32; 2]; numbers];
    for (place, &number) in cells.iter().enumerate() {
        counts[number][usize::from(place >= first)] += 1;
    }
    let counts = counts.as_flattened().iter().filter(|count| **count > 0);
    counts.map(|&count| f64::from(count) * libm::log(f64::from(count))).sum()
}

#[cfg(test)]
mod tests {
    use super::{Mean, differ_by_chance, different, first_sentence, mixes_names, repeated};
    use crate::telling::Dice;

    #[test]
    fn names_that_change_are_seen() {
        assert!(!mixes_names("The bear's name was Bruno. Bruno met Sally."));
        assert!(mixes_names("The bear's name was Bruno. Rex met Sally."));
        assert!(mixes_names("The bear's name was Bruno."));
        assert!(!mixes_names("マルはハチミツをルルに分けました。"));
        assert!(mixes_names("マルはハチとルルに会いました。"));
    }

    #[test]
    fn sentences_and_rows_of_tokens_are_told_apart() {
        assert_eq!(first_sentence("A bear. A seal."), "A bear.");
        assert_eq!(first_sentence("クマ。海。"), "クマ。");
        assert_eq!(first_sentence(""), "");
        assert_eq!(repeated(&[1, 2, 3, 4, 5, 6]), 0.0);
        assert_eq!(repeated(&[1, 2, 3, 4, 1, 2, 3, 4]), 0.2);
        assert_eq!(repeated(&[1]), 0.0);
        assert_eq!(different([[1, 2, 3, 4].as_slice(), &[1, 2, 3, 4]].into_iter()), 0.5);
    }

    #[test]
    fn samples_of_one_source_differ_by_chance_and_others_do_not() {
        let sample = |seed, bias: f64| -> Vec<(usize, usize)> {
            let mut dice = Dice(seed);
            let mut item =
                |place: usize| (place % 4, usize::from(dice.roll() < bias) + 2 * (place % 2));
            (0..200).map(&mut item).collect()
        };
        let chances = (0..100)
            .map(|seed| differ_by_chance(&sample(2 * seed, 0.5), &sample(2 * seed + 1, 0.5), 99));
        let rejected = chances.filter(|chance| *chance <= 0.1).count();
        assert!((3..=20).contains(&rejected), "{rejected} of 100 at 0.1");
        assert_eq!(differ_by_chance(&sample(1, 0.5), &sample(2, 0.9), 999), 0.001);
    }

    #[test]
    fn means_have_intervals() {
        let Mean(mean, half) = Mean::of([1.0, 2.0, 3.0, 4.0].into_iter());
        assert!((mean - 2.5).abs() < 1e-12 && (half - 1.96 * (5.0 / 12.0f64).sqrt()).abs() < 1e-12);
    }
}
