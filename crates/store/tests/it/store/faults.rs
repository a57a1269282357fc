//! Faults of the store: a load ends with the right bytes or with one sentence.

use std::time::Duration;

use bytes::Bytes;
use nsbridge_base::chain;
use nsbridge_checkpoint::{Checkpoint, Order};
use nsbridge_handler::Model;
use nsbridge_store::{StoreError, Wanted};
use nsbridge_testkit::s3::{Fault, Faults, Kind, Rule, When};

use super::{Fixture, on_a_thread, store_on, top};

const LARGE_FILE: &str = "model-00001-of-00002.safetensors";

/// Loads all weights; returns the error message on failure.
fn load(model: &Model) -> Result<Vec<Vec<u8>>, String> {
    let all = || -> nsbridge_handler::Result<Vec<Vec<u8>>> {
        let checkpoint = Checkpoint::open(model)?;
        let weights = checkpoint.load(&Order::everything())?;
        let read = |name: &str| Ok(weights.tensor(name)?.contiguous().to_vec());
        checkpoint.tensors().iter().map(|tensor| read(&tensor.name)).collect()
    };
    all().map_err(|error| error.to_string())
}

async fn load_under(fixture: &Fixture, faults: Faults) -> Result<Vec<Vec<u8>>, String> {
    load_with(fixture, faults, 4).await
}

async fn load_with(
    fixture: &Fixture,
    faults: Faults,
    in_flight: usize,
) -> Result<Vec<Vec<u8>>, String> {
    let store = store_on(&fixture.server, |config| config.in_flight = in_flight);
    fixture.server.faults(faults);
    let opened = store.model(&top().into()).await;
    let loaded = match opened {
        Ok(opened) => on_a_thread(move || load(&opened.model)).await,
        Err(error) => Err(error.to_string()),
    };
    fixture.server.faults(Faults::none());
    loaded
}

/// Checks that a load succeeds despite a transient fault.
async fn check_mended(fixture: &Fixture, right: &[Vec<u8>], rule: Rule) {
    let name = format!("{rule:?}");
    // The load is sequential, so the second request is for the second chunk.
    let loaded = load_with(fixture, Faults::seeded(1).with(rule), 1).await;
    assert!(loaded.as_deref() == Ok(right), "{name}: {:?}", loaded.err());
}

/// Checks that a permanent fault ends the load with a sentence that names the object and contains
/// `reason`.
async fn check_refused(fixture: &Fixture, rule: Rule, reason: &str) {
    let name = format!("{rule:?}");
    let refused = load_under(fixture, Faults::seeded(1).with(rule)).await.expect_err(&name);
    assert!(refused.contains(reason) && refused.contains("s3://models/tale"), "{name}: {refused}");
    assert!(!refused.contains('\n'), "{refused}");
}

fn on_large(fault: Fault) -> Rule {
    Rule::new(fault).of(LARGE_FILE)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_mended() {
    let fixture = Fixture::new().await;
    let folder = Model::in_dir(fixture.dir.path());
    let right = on_a_thread(move || load(&folder)).await.unwrap();
    let passing = [
        Fault::SLOW_DOWN,
        Fault::INTERNAL_ERROR,
        Fault::EXPIRED_TOKEN,
        Fault::ResetAtOnce,
        Fault::Reset(3_000_000),
        Fault::Truncate(5_000_000),
        Fault::Stall(1_000_000, Duration::from_secs(300)),
        Fault::Endless,
        Fault::Longer(1000),
        Fault::IgnoreRange,
        Fault::WrongRange,
        Fault::Flip(20_000_000),
    ];
    for fault in passing {
        check_mended(&fixture, &right, on_large(fault).when(When::Nth(2))).await;
    }
    // Each response is cut off but brings some bytes.
    check_mended(&fixture, &right, on_large(Fault::Reset(4_000_000))).await;
    check_mended(&fixture, &right, Rule::new(Fault::Slow(100_000_000))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lasts_is_told_in_one_sentence() {
    let fixture = Fixture::new().await;
    check_refused(&fixture, on_large(Fault::Flip(20_000_000)), "chunk 1 of").await;
    let denied = on_large(Fault::Refuse(403, "AccessDenied"));
    check_refused(&fixture, denied, "AccessDenied: This is a fault that was asked for.").await;
    check_refused(&fixture, on_large(Fault::Refuse(404, "NoSuchKey")), "there is no").await;
    check_refused(&fixture, on_large(Fault::SLOW_DOWN), "no byte of it came").await;
    check_refused(&fixture, on_large(Fault::IgnoreRange), "the range was ignored").await;
    let other = Bytes::from(vec![0; 30_000_000]);
    let changed = on_large(Fault::Change(other)).when(When::Nth(3));
    check_refused(&fixture, changed, "changed while it was read").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_has_its_cause_as_its_source_and_does_not_repeat_it() {
    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |config| config.patience_s = 0.5);
    fixture.server.faults(Rule::new(Fault::Reset(0)));
    let broken = store.model(&top().into()).await.unwrap_err();
    assert!(matches!(broken, StoreError::Unreachable { .. }), "{broken}");
    let cause = std::error::Error::source(&broken).expect("the connection's error").to_string();
    let (sentence, line) = (broken.to_string(), chain(&broken));
    assert!(!sentence.contains(&cause), "{sentence}");
    assert!(line.starts_with(&sentence) && line[sentence.len()..].contains(&cause), "{line}");
    // A handler receives the error of its load with the causes.
    let refused = load_under(&fixture, on_large(Fault::Reset(0)).into()).await.unwrap_err();
    assert!(refused.contains("(the body broke off): "), "{refused}");
    assert!(refused.contains("Connection reset"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_object_of_the_same_size_is_refused_too() {
    let fixture = Fixture::new().await;
    let mut other = fixture.file(LARGE_FILE);
    other[30_000_000] ^= 1;
    let changed = on_large(Fault::Change(other.clone().into())).when(When::Nth(2));
    check_refused(&fixture, changed, "changed while it was read").await;
    // An object that was replaced earlier is detected by its digests.
    fixture.server.put("models", &format!("tale/r1/{LARGE_FILE}"), other);
    let refused = load_under(&fixture, Faults::none()).await.unwrap_err();
    assert!(refused.contains("chunk 1 of") && refused.contains(LARGE_FILE), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_not_the_pinned_one_is_refused() {
    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |_| ());
    let pinned = |manifest| Wanted::pinned(top(), manifest);
    assert!(store.model(&pinned(fixture.pushed.manifest)).await.is_ok());
    let refused = store.model(&pinned([7; 32])).await.unwrap_err();
    assert!(refused.to_string().contains("its BLAKE3 must be 0707"), "{refused}");
    // The alias pins the manifest as well.
    let key = "tale/r1/nsb-manifest.json";
    let mut json = fixture.server.get("models", key).unwrap().to_vec();
    json.push(b' ');
    fixture.server.put("models", key, json);
    let refused = store.model(&top().into()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unusable { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_end_and_a_manifest_without_end_take_no_memory() {
    let fixture = Fixture::new().await;
    check_refused(&fixture, Rule::new(Fault::Endless).of("nsb-manifest"), "more than").await;
    check_refused(&fixture, on_large(Fault::RefuseEndlessly(500)), "length limit exceeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_seeded_days_end_byte_for_byte_right_or_with_one_sentence() {
    let fixture = Fixture::new().await;
    let folder = Model::in_dir(fixture.dir.path());
    let right = on_a_thread(move || load(&folder)).await.unwrap();
    let mut well = 0;
    for seed in 0..40 {
        let often = |fault, chance| Rule::new(fault).when(When::Chance(chance)).of("tale/r1");
        let day = [
            often(Fault::SLOW_DOWN, 0.1),
            often(Fault::INTERNAL_ERROR, 0.05),
            often(Fault::ResetAtOnce, 0.1),
            often(Fault::Reset(seed * 250_000), 0.1),
            often(Fault::Truncate(seed * 125_000), 0.1),
            often(Fault::Longer(5), 0.05),
            often(Fault::WrongRange, 0.05),
            often(Fault::IgnoreRange, 0.05),
            often(Fault::Flip(seed * 980_000), 0.1),
            often(Fault::Refuse(403, "AccessDenied"), 0.005).on([Kind::Get]),
        ];
        let faults = day.into_iter().fold(Faults::seeded(seed), Faults::with);
        match load_under(&fixture, faults).await {
            Ok(loaded) => {
                assert!(loaded == right, "seed {seed}: a wrong byte");
                well += 1;
            }
            Err(sentence) => {
                assert!(sentence.contains("s3://") && !sentence.contains('\n'), "{sentence}");
            }
        }
    }
    assert!((20..=40).contains(&well), "{well} of 40 ended well");
}
