//! Tests that the reply equals that without a draft, whatever the drafter and the draft length.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::testing::{self, answer, check};
use nsbridge_handler::{
    AsyncHandler, Error, Finish, FinishReason, Health, Model, Models, Result, TextPiece, Usage,
};
use nsbridge_llama::{Config, Continuation, Drafter, Llama, Options, Setup, Watch, Weights};
use serde_json::{Value, json};

use crate::replies::uncached;
use crate::schedules::measure;
use crate::tiny::{EOS, Tiny};

const LENGTHS: std::ops::RangeInclusive<usize> = 0..=8;

/// Drafter of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Draft {
    Itself,
    /// Similar, slightly smaller weights: mostly right.
    Perturbed,
    Ngram,
    Random,
    AlwaysEnd,
}

const DRAFTS: [Draft; 5] =
    [Draft::Itself, Draft::Perturbed, Draft::Ngram, Draft::Random, Draft::AlwaysEnd];

/// Drafter that guesses without the context.
struct Blind(fn(&mut u64) -> u32, u64);

impl Drafter for Blind {
    fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()> {
        let Self(guess, state) = self;
        for reply in replies {
            while reply.wanted() > 0 && reply.guess(guess(state)) {}
        }
        Ok(())
    }
}

fn random(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as u32 % (EOS + 1)
}

/// Target model, and a model that resembles it.
struct Pair {
    target: Tiny,
    perturbed: Tiny,
}

impl Pair {
    fn new() -> Self {
        let (target, perturbed) = (Tiny::new(), Tiny::new());
        perturbed.draw_again(0.242);
        Self { target, perturbed }
    }

    fn models(&self, draft: Draft) -> Models {
        let (target, perturbed) = (self.target.path(), self.perturbed.path());
        let draft = match draft {
            Draft::Itself => Some(target),
            Draft::Perturbed => Some(perturbed),
            _ => None,
        };
        let draft = draft.map(|draft| ("draft".to_owned(), Model::in_dir(draft)));
        let target = ("target".to_owned(), Model::in_dir(target));
        [target].into_iter().chain(draft).collect()
    }

    fn load(&self, draft: Draft, options: Options) -> Arc<Llama> {
        let models = self.models(draft);
        let blind =
            |guess| Arc::new(Llama::load_with(options.clone(), &models, Blind(guess, 1)).unwrap());
        match draft {
            Draft::Itself | Draft::Perturbed => testing::load(options, models).unwrap(),
            Draft::Ngram => {
                let options = Options { speculative_ngram: Some(4), ..options };
                testing::load(options, models).unwrap()
            }
            Draft::Random => blind(random),
            Draft::AlwaysEnd => blind(|_| EOS),
        }
    }
}

/// Returns options with a fixed draft length.
fn always(length: usize) -> Options {
    Options {
        speculative_length: Some(length),
        speculative_adaptive: Some(false),
        job_queue_size: Some(300),
        ..Options::default()
    }
}

/// Returns every combination of request parameters, with two seeds each.
fn inputs() -> Vec<(Value, u64)> {
    let mut inputs = Vec::new();
    for (at, temperature) in [0.0, 0.3, 0.7, 1.5].into_iter().enumerate() {
        for cut in [json!({ "top_k": 20 }), json!({ "top_p": 0.8 }), json!({ "min_p": 0.05 })] {
            for rule in [
                json!({ "repetition_penalty": 1.3, "frequency_penalty": 0.4,
                        "presence_penalty": -0.2 }),
                json!({ "logit_bias": { "97": 2.0, "101": 1.5, "257": 1.0 }, "min_tokens": 6,
                        "bad_token_ids": [10, 13], "bad_token_sequences": [[97, 97], [101, 98]] }),
                json!({ "stop": ["stop"] }),
                json!({ "response_format": { "type": "regex",
                        "regex": "[a-z]{3,20}(, [0-9]+){0,9}" } }),
            ] {
                let mut input = json!({
                    "prompt": "again and again and again", "temperature": temperature,
                    "max_tokens": 30, "logprobs": true, "top_logprobs": 2,
                    // Either an end inside a draft, or drafts of end tokens that do not end the
                    // reply.
                    "ignore_eos": at % 2 == 0
                });
                for extra in [&cut, &rule] {
                    let extra = extra.as_object().unwrap().clone();
                    input.as_object_mut().unwrap().extend(extra);
                }
                inputs.extend([(input.clone(), 3), (input, 8)]);
            }
        }
    }
    inputs
}

fn text(pieces: &[TextPiece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

/// Returns all replies, generated concurrently.
fn replies(llama: &Arc<Llama>, inputs: &[(Value, u64)]) -> Vec<(Vec<TextPiece>, Finish)> {
    std::thread::scope(|scope| {
        let one = |(input, seed): &(Value, u64)| answer(llama, input, *seed, &[]).unwrap();
        let made: Vec<_> = inputs.iter().map(|input| scope.spawn(move || one(input))).collect();
        made.into_iter().map(|made| made.join().unwrap()).collect()
    })
}

/// Replaces stop sequences by ones that occur in the middle of the reply.
fn with_met_stops(llama: &Arc<Llama>, inputs: &mut [(Value, u64)]) {
    for (input, seed) in inputs.iter_mut().filter(|(input, _)| input.get("stop").is_some()) {
        let (pieces, _) = answer(llama, input, *seed, &[]).unwrap();
        let stop: String = text(&pieces).chars().skip(9).take(2).collect();
        if !stop.is_empty() {
            input["stop"] = json!([stop]);
        }
    }
}

#[test]
fn every_draft_of_every_length_leaves_every_reply_as_it_is() {
    let pair = Pair::new();
    let plain = pair.target.load(always(0)).unwrap();
    let mut inputs = inputs();
    with_met_stops(&plain, &mut inputs);
    let expected: Vec<_> = replies(&plain, &inputs).into_iter().map(uncached).collect();
    for reason in [FinishReason::Stop, FinishReason::StopText, FinishReason::Length] {
        assert!(
            expected.iter().any(|(_, finish)| finish.reason == reason),
            "no reply ends by {reason:?}"
        );
    }
    for draft in DRAFTS {
        let (mut drafted, mut accepted) = (0, 0);
        for length in LENGTHS {
            let llama = pair.load(draft, always(length));
            let made = replies(&llama, &inputs);
            for ((reply, expected), (input, seed)) in made.into_iter().zip(&expected).zip(&inputs) {
                let Usage { drafted_tokens, accepted_tokens, .. } = reply.1.usage;
                (drafted, accepted) = (drafted + drafted_tokens, accepted + accepted_tokens);
                assert_eq!(&uncached(reply), expected, "{draft:?} {length} seed {seed} {input}");
            }
        }
        let rate = accepted as f64 / drafted as f64;
        // Otherwise no draft was verified.
        let (least, most) = match draft {
            Draft::Itself => (0.85, 1.0),
            Draft::Perturbed => (0.3, 0.95),
            Draft::Ngram => (0.05, 0.9),
            Draft::Random | Draft::AlwaysEnd => (0.0, 0.1),
        };
        assert!(drafted > 1000 && (least..=most).contains(&rate), "{draft:?} {drafted} {rate}");
    }
}

#[test]
fn a_handler_that_drafts_keeps_its_contract() {
    let pair = Pair::new();
    for draft in [Draft::Perturbed, Draft::Ngram] {
        let llama = pair.load(draft, Options::default());
        let input = json!({ "prompt": "灯台", "temperature": 0.8, "max_tokens": 24 });
        assert_eq!(check(&llama, &input), Ok(()));
    }
}

#[test]
fn a_draft_that_breaks_leaves_the_reply_as_it_is() {
    struct Fails(u32, fn() -> Result<()>);
    impl Drafter for Fails {
        fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()> {
            self.0 += 1;
            for reply in replies {
                reply.guess(7);
            }
            if self.0 < 4 { Ok(()) } else { (self.1)() }
        }
    }
    let pair = Pair::new();
    let input = json!({ "prompt": "x", "max_tokens": 20, "ignore_eos": true });
    let expected = answer(&pair.target.load(always(0)).unwrap(), &input, 1, &[]).unwrap();
    let models = pair.models(Draft::Random);
    let ways: [fn() -> Result<()>; 2] = [|| Err(Error::fatal("broken")), || panic!("broken")];
    for way in ways {
        let llama = Arc::new(Llama::load_with(always(3), &models, Fails(0, way)).unwrap());
        assert_eq!(uncached(answer(&llama, &input, 1, &[]).unwrap()), uncached(expected.clone()));
        assert_eq!(measure(&llama, "speculation_drafting"), 0.0);
    }
    // A draft model with NaN weights chooses no token.
    pair.perturbed.break_weights();
    let llama = pair.load(Draft::Perturbed, always(3));
    let made = answer(&llama, &input, 1, &[]).unwrap();
    assert_eq!(made.1.usage.drafted_tokens, 0);
    assert_eq!(uncached(made), uncached(expected));
}

#[test]
fn a_drafter_may_take_long_unless_somebody_sees_that_it_stands_still() {
    struct Slow(Option<Watch>);
    impl Drafter for Slow {
        fn draft(&mut self, _: &mut [Continuation<'_>]) -> Result<()> {
            std::thread::sleep(Duration::from_secs(3));
            Ok(())
        }

        fn watch(&self) -> Option<Watch> {
            self.0.clone()
        }
    }
    let pair = Pair::new();
    let files = Model::in_dir(pair.target.path());
    let (config, weights) = (Config::read(&files).unwrap(), Weights::read(&files).unwrap());
    let still = nsbridge_llama::Model::new(&config, 32, &weights, &Setup::default()).unwrap();
    let still = still.watch();
    for watch in [None, Some(still)] {
        let options = Options { tensor_parallel_timeout: Some(0.5), ..always(3) };
        let slow = Slow(watch.clone());
        let models = pair.models(Draft::Random);
        let llama = Arc::new(Llama::load_with(options, &models, slow).unwrap());
        let asked = llama.clone();
        let asking = std::thread::spawn(move || {
            let input = json!({ "prompt": "x", "max_tokens": 3, "ignore_eos": true });
            let begun = Instant::now();
            answer(&asked, &input, 1, &[]).map(|_| begun.elapsed())
        });
        let mut failed = None;
        while failed.is_none() && !asking.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            failed = Some(AsyncHandler::health(&*llama)).filter(|health| *health != Health::Ok);
        }
        let late = Health::Failed("the model did not answer within 1 s".to_owned());
        assert_eq!(failed, watch.map(|_| late));
        assert!(asking.join().unwrap().unwrap() >= Duration::from_secs(3));
    }
}

#[test]
fn what_is_remembered_was_never_only_drafted() {
    let pair = Pair::new();
    let plain = Options { enable_prefix_caching: Some(false), ..always(0) };
    let plain = pair.target.load(plain).unwrap();
    for draft in [Draft::Perturbed, Draft::Random] {
        let llama = pair.load(draft, always(7));
        // Restricted to letters, so that the text has the same tokens as a prompt.
        let input = |prompt: &str| {
            json!({
                "prompt": prompt, "temperature": 0.9, "max_tokens": 60, "logprobs": true,
                "response_format": { "type": "regex", "regex": "[a-z]{100}" }
            })
        };
        let (pieces, finish) = answer(&llama, &input("begin"), 5, &[]).unwrap();
        assert!(finish.usage.accepted_tokens < finish.usage.drafted_tokens);
        let longer = format!("begin{}", text(&pieces));
        let made = answer(&llama, &input(&longer), 6, &[]).unwrap();
        assert_eq!(made.1.usage.cached_tokens, 64);
        assert_eq!(uncached(made), uncached(answer(&plain, &input(&longer), 6, &[]).unwrap()));
    }
}

#[test]
fn what_was_drafted_is_told() {
    let pair = Pair::new();
    let llama = pair.load(Draft::Itself, always(4));
    let input = json!({ "prompt": "x", "max_tokens": 21, "ignore_eos": true, "temperature": 0.9 });
    let (_, finish) = answer(&llama, &input, 1, &[]).unwrap();
    // One step for the prompt, then four steps of five tokens.
    let Usage { output_tokens, drafted_tokens, accepted_tokens, .. } = finish.usage;
    assert_eq!((output_tokens, drafted_tokens, accepted_tokens), (21, 16, 16));
    assert_eq!(measure(&llama, "engine_steps"), 5.0);
    assert_eq!(measure(&llama, "speculation_drafted_tokens"), 16.0);
    assert_eq!(measure(&llama, "speculation_accepted_tokens"), 16.0);
    assert_eq!(measure(&llama, "speculation_wasted_tokens"), 0.0);
    let places: Vec<f64> = AsyncHandler::measures(&*llama)
        .iter()
        .filter(|measure| measure.name == "speculation_accepted_at")
        .map(|measure| measure.value)
        .collect();
    assert_eq!(places, [4.0; 4]);
}

#[track_caller]
fn check_sentence(loaded: Result<Arc<Llama>>, words: &[&str]) {
    let Err(error) = loaded else { panic!("it was loaded") };
    let error = error.to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn a_draft_that_cannot_be_is_refused_in_one_sentence() {
    let pair = Pair::new();
    let refused = |options: Options, models: Models, words: &[&str]| {
        check_sentence(testing::load(options, models), words);
    };
    let with = |draft: &Tiny| pair.target.load_with_draft(draft, Options::default());
    let options = Options::default;
    check_sentence(with(&Tiny::literate()), &["draft's vocabulary", "291", "258"]);
    let other = Tiny::new();
    let path = other.path().join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&path).unwrap();
    let swapped = tokenizer.replace("\"a\":97", "\"a\":98").replace("\"b\":98", "\"b\":97");
    assert_ne!(tokenizer, swapped);
    std::fs::write(path, swapped).unwrap();
    check_sentence(with(&other), &["draft's vocabulary", "from token 97 on"]);
    let models = || pair.models(Draft::Itself);
    let named = Options { speculative_draft_model: Some("small".to_owned()), ..options() };
    refused(named.clone(), models(), &["`small`", "[models]"]);
    let both = Options { speculative_ngram: Some(3), ..named };
    refused(both, models(), &["speculative_draft_model", "speculative_ngram"]);
    let long = Options { speculative_length: Some(17), ..options() };
    refused(long, models(), &["speculative_length", "17", "0 to 16"]);
    let none = Options { speculative_ngram: Some(0), ..options() };
    refused(none, models(), &["speculative_ngram"]);
}
