//! A request that panics, or that the model refuses, ends alone.

use std::sync::Arc;

use futures_executor::block_on;
use nsbridge_handler::{Error, Finish, FinishReason, Refused, Result, Stop, TextPiece};

use super::{Engine, EngineRequest, Outlet, Policy, SequenceGroup};
use crate::config::Config;
use crate::network::{Model, Setup};
use crate::reply::Reply;
use crate::request::RequestParameters;
use crate::schedule::Limits;
use crate::tokenizer::ChatTokenizer;
use crate::weights::Weights;

/// Consumer that panics at its first piece, or takes all.
struct Taker {
    panics: bool,
}

impl Outlet for Taker {
    fn check(&self) -> Result<(), Stop> {
        Ok(())
    }

    fn offer(&self, _: &TextPiece) -> Result<(), Refused> {
        assert!(!self.panics, "the canary of a prompt");
        Ok(())
    }

    fn on_change(&self, _: Box<dyn Fn() + Send + Sync>) {}
}

struct Stage {
    engine: Engine,
    words: Arc<ChatTokenizer>,
}

impl Stage {
    fn new() -> Self {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-1m");
        let files = nsbridge_handler::Model::in_dir(dir);
        let (config, weights) = (Config::read(&files).unwrap(), Weights::read(&files).unwrap());
        let model = Model::new(&config, 64, &weights, &Setup::default()).unwrap();
        let words = ChatTokenizer::read(&files, config.vocab_size, false).unwrap();
        let limits = Limits { tokens: 64, prompts: 64, places: 8 };
        let max_step = std::time::Duration::from_secs(1);
        let policy = Policy { limit: None, caching: true, limits, max_step };
        Self { engine: Engine::start(model, policy, None).unwrap(), words: Arc::new(words) }
    }

    /// Begins a reply of four tokens to these tokens, as if the embedding had `rows` rows.
    fn begin(&self, tokens: &[u32], rows: usize, panics: bool) -> super::Pending {
        let parameters =
            Arc::new(RequestParameters { max_tokens: 4, ..RequestParameters::nothing() });
        let reply =
            Reply::new(self.words.clone(), rows, 64, tokens.to_vec(), parameters, 7).unwrap();
        let group = SequenceGroup::new(vec![reply], 1);
        let (scope, account) = ("scope".into(), "account".into());
        let arrived = std::time::Instant::now();
        let request = EngineRequest { group, scope, account, priority: 0, arrived };
        self.engine.begin(request, Box::new(Taker { panics })).unwrap()
    }

    /// Checks that a request beside others still gets its reply.
    #[track_caller]
    fn serves(&self, result: Result<Finish>) {
        assert_eq!(result.unwrap().reason, FinishReason::Length);
        assert_eq!(self.engine.failure(), None);
    }
}

#[test]
fn a_request_whose_work_panics_fails_alone() {
    let stage = Stage::new();
    let (good, bad) = (stage.begin(&[5, 7], 3000, false), stage.begin(&[5, 7], 3000, true));
    let failed = block_on(bad.finish()).unwrap_err();
    assert!(matches!(&failed, Error::Failed(_)), "{failed:?}");
    assert!(!failed.to_string().contains("canary"), "{failed}");
    stage.serves(block_on(good.finish()));
    stage.serves(block_on(stage.begin(&[5, 7], 3000, false).finish()));
}

#[test]
fn a_request_with_tokens_that_the_model_refuses_fails_alone() {
    let stage = Stage::new();
    let good = stage.begin(&[5, 7], 3000, false);
    let bad = stage.begin(&[5, u32::MAX], usize::MAX, false);
    let refused = block_on(bad.finish()).unwrap_err();
    assert!(matches!(&refused, Error::BadInput(_)), "{refused:?}");
    stage.serves(block_on(good.finish()));
    stage.serves(block_on(stage.begin(&[5, 7], 3000, false).finish()));
}
