//! Options table, and models that keep or break the contract.

use std::marker::PhantomData;

use nsbridge_handler::testing::{Breach, answer, check, check_batch, load};
use nsbridge_handler::{Batch, BatchOptions, Batched, Error, Item, Models, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// Options as most models have them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Own {
    threshold: Option<f32>,
    labels: Vec<String>,
}

fn read<O: serde::de::DeserializeOwned>(text: &str) -> Result<BatchOptions<O>, String> {
    let table: toml::Table = toml::from_str(text).unwrap();
    toml::Value::Table(table)
        .try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}

#[test]
fn the_options_of_batches_stand_beside_the_models_own() {
    let text = "threshold = 0.5\nbatch_size = 16\nlabels = ['a']\nmax_batch_delay = 2";
    let own = Own { threshold: Some(0.5), labels: vec!["a".to_owned()] };
    let expected = BatchOptions { batch_size: Some(16), max_batch_delay: Some(2.0), own };
    assert_eq!(read(text), Ok(expected));
    assert_eq!(read(""), Ok(BatchOptions::<Own>::default()));
}

#[test]
fn a_model_without_options_has_those_of_batches() {
    let expected = BatchOptions { batch_size: Some(4), max_batch_delay: Some(1.5), own: () };
    assert_eq!(read("batch_size = 4\nmax_batch_delay = 1.5"), Ok(expected));
    assert_eq!(read("").map(|read: BatchOptions<()>| read.batch_size), Ok(None));
    let optional = BatchOptions { own: Some(Own::default()), ..read("batch_size = 4").unwrap() };
    assert_eq!(read("batch_size = 4"), Ok(optional));
    let wrong = "unknown field `bach_size`, expected `batch_size` or `max_batch_delay`";
    assert_eq!(read::<()>("bach_size = 4"), Err(wrong.to_owned()));
    // Stand-in for the worker's value of an absent table.
    #[derive(Debug, PartialEq, Deserialize)]
    struct Unit;
    assert_eq!(read("batch_size = 4").map(|read| read.own), Ok(Unit));
    #[derive(Debug, PartialEq, Deserialize)]
    struct New(Own);
    assert_eq!(read("batch_size = 4").map(|read| read.own), Ok(New(Own::default())));
}

#[test]
fn a_wrong_option_is_refused_by_its_name() {
    let says = |text: &str| read::<Own>(text).unwrap_err();
    let unknown = says("bach_size = 4");
    assert!(unknown.starts_with("unknown field `bach_size`, expected `threshold`"), "{unknown}");
    assert!(unknown.ends_with("has `batch_size`, `max_batch_delay`"), "{unknown}");
    let size = says("batch_size = 'many'");
    assert!(size.starts_with("batch_size: invalid type"), "{size}");
    let delay = says("threshold = 1.0\nmax_batch_delay = true");
    assert!(delay.starts_with("max_batch_delay: invalid type"), "{delay}");
    assert!(says("batch_size = -1").starts_with("batch_size: "), "{}", says("batch_size = -1"));
}

/// Way in which a model of bytes treats the other inputs of the batch.
trait Manner: 'static {
    fn sum(text: &str, at: usize, batch: &[Item<String>]) -> u64;
}

struct Kept;
struct Padded;
struct Placed;
struct Mixed;
struct Counted;

fn plain(text: &str) -> u64 {
    text.bytes().map(u64::from).sum()
}

impl Manner for Kept {
    fn sum(text: &str, at: usize, batch: &[Item<String>]) -> u64 {
        plain(text).wrapping_mul(batch[at].info.seed)
    }
}

impl Manner for Padded {
    /// Pads with spaces up to the longest input, without a mask.
    fn sum(text: &str, _: usize, batch: &[Item<String>]) -> u64 {
        let longest = batch.iter().map(|item| item.input.len()).max().unwrap_or(0);
        plain(&format!("{text:longest$}"))
    }
}

impl Manner for Placed {
    fn sum(text: &str, at: usize, _: &[Item<String>]) -> u64 {
        plain(text) + u64::from(at > 1)
    }
}

impl Manner for Mixed {
    /// Uses the seed of the first input for all.
    fn sum(text: &str, _: usize, batch: &[Item<String>]) -> u64 {
        plain(text).wrapping_mul(batch[0].info.seed)
    }
}

impl Manner for Counted {
    fn sum(text: &str, _: usize, batch: &[Item<String>]) -> u64 {
        use std::sync::atomic::{AtomicU64, Ordering};
        static LONE: AtomicU64 = AtomicU64::new(0);
        let lone = batch.len() == 1 && text == "long and last";
        plain(text) + if lone { LONE.fetch_add(1, Ordering::Relaxed) } else { 0 }
    }
}

struct Sum<M>(PhantomData<M>);

impl<M: Manner> Batch for Sum<M> {
    type Options = ();
    type Input = String;
    type Output = u64;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self(PhantomData))
    }

    fn run(&mut self, batch: &[Item<String>]) -> Result<Vec<Result<u64>>> {
        if batch.len() > 1 && batch.iter().any(|item| item.input == "spoils") {
            return Err(Error::retry("one of them"));
        }
        let one = |(at, item): (usize, &Item<String>)| match item.input.as_str() {
            "" => Err(Error::bad_input("it is empty")),
            "panics" => panic!("a model's bug"),
            text => Ok(M::sum(text, at, batch)),
        };
        let results = batch.iter().enumerate().map(one);
        let lost = usize::from(batch.len() > 1 && batch[0].input == "loses");
        Ok(results.skip(lost).collect())
    }
}

fn breach<M: Manner>(inputs: &[Value]) -> Result<(), Breach> {
    check_batch(&mut Sum::<M>::load((), Models::default()).unwrap(), inputs)
}

fn texts() -> Vec<Value> {
    ["a", "some more", "", "the longest of all"].map(Value::from).to_vec()
}

#[test]
fn a_batched_model_keeps_the_contract_of_handlers() {
    for (batch_size, delay) in [(1, 0.0), (8, 0.0), (4, 20.0), (3, 5.0)] {
        let options =
            BatchOptions { batch_size: Some(batch_size), max_batch_delay: Some(delay), own: () };
        let handler = load::<Batched<Sum<Kept>>, _>(options, Models::default()).unwrap();
        assert_eq!(check(&handler, &json!("some text")), Ok(()), "{batch_size} {delay}");
    }
}

#[test]
fn a_seed_that_is_taken_from_a_neighbour_is_caught_by_the_check_of_handlers() {
    let options = BatchOptions { batch_size: Some(8), max_batch_delay: Some(200.0), own: () };
    let handler = load::<Batched<Sum<Mixed>>, _>(options, Models::default()).unwrap();
    assert_eq!(check(&handler, &json!("some text")), Err(Breach::Disturbed(0)));
}

/// Input whose drop panics on the model's thread.
#[derive(Deserialize)]
struct Bomb(u64);

impl Drop for Bomb {
    fn drop(&mut self) {
        let thread = std::thread::current();
        // Panic only once: a second panic during unwinding would abort the process.
        let there = thread.name() == Some("nsbridge-batch") && !std::thread::panicking();
        assert!(!there, "an input's bug");
    }
}

struct Bombs;

impl Batch for Bombs {
    type Options = ();
    type Input = Bomb;
    type Output = u64;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn run(&mut self, batch: &[Item<Bomb>]) -> Result<Vec<Result<u64>>> {
        Ok(batch.iter().map(|item| Ok(item.input.0)).collect())
    }
}

#[test]
fn nobody_waits_for_a_thread_that_ended_by_what_is_no_part_of_the_model() {
    let options = BatchOptions { own: (), ..BatchOptions::default() };
    let handler = load::<Batched<Bombs>, _>(options, Models::default()).unwrap();
    assert_eq!(answer(&handler, &json!(7), 1, &[]).unwrap().0, [7]);
    let error = answer(&handler, &json!(7), 1, &[]).unwrap_err();
    assert!(matches!(error, Error::Fatal(_)), "{error:?}");
    assert_eq!(error.to_string(), "the model's thread has stopped");
}

#[test]
fn a_model_that_does_not_mind_its_neighbours_passes() {
    assert_eq!(breach::<Kept>(&texts()), Ok(()));
    assert_eq!(breach::<Kept>(&[texts(), vec!["spoils".into()]].concat()), Ok(()));
}

#[test]
fn outputs_that_depend_on_neighbours_are_caught() {
    let padded = Breach::MindsNeighbours { input: 0, size: 2 };
    assert_eq!(breach::<Padded>(&texts()), Err(padded));
    let placed = Breach::MindsNeighbours { input: 3, size: 4 };
    assert_eq!(breach::<Placed>(&texts()), Err(placed));
    let mixed = Breach::MindsNeighbours { input: 1, size: 2 };
    assert_eq!(breach::<Mixed>(&texts()), Err(mixed));
}

#[test]
fn outputs_that_depend_on_what_was_answered_before_are_caught() {
    let twice = ["a", "long and last"].map(Value::from);
    assert_eq!(breach::<Counted>(&twice), Err(Breach::NotRepeatable(0)));
}

#[test]
fn a_model_that_cannot_be_checked_is_told_why() {
    let failed = |inputs: &[&str]| {
        let inputs: Vec<Value> = inputs.iter().map(|text| json!(text)).collect();
        breach::<Kept>(&inputs)
    };
    let says = |breach, part: &str| match breach {
        Err(Breach::Failed(why)) => assert!(why.contains(part), "{why}"),
        other => panic!("{other:?}"),
    };
    says(failed(&["", ""]), "answers none");
    says(failed(&["loses", "a"]), "1 results for 2 inputs");
    says(failed(&["spoils"]), "fails as a whole");
    assert_eq!(failed(&["a", "panics"]), Err(Breach::Panicked));
    assert!(matches!(breach::<Kept>(&[json!(1)]), Err(Breach::Setup(_))));
}
