//! Helpers that open and run a network directly.

use std::path::Path;

use nsbridge_llama::{BlockTable, Chunk, Config, Model, Setup, Weights};

pub(crate) fn open(dir: &Path, setup: &Setup) -> Model {
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files).unwrap();
    let weights = Weights::for_ranks(&files, setup.ranks).unwrap();
    Model::new(&config, config.context, &weights, setup).unwrap()
}

/// Returns the logits after each token, run in chunks of `chunk` tokens.
pub(crate) fn logits(model: &mut Model, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut table = BlockTable::default();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        assert!(model.cache().reserve(&mut table, tokens.len()));
        let mut chunks = [Chunk { table: &mut table, tokens, logits: tokens.len() }];
        all.extend(model.forward(&mut chunks).unwrap().rows().map(<[f32]>::to_vec));
    }
    assert_eq!((table.len(), all.len()), (tokens.len(), tokens.len()));
    model.cache().release(table);
    all
}

/// Returns the root mean square of the differences, relative to that of the logits.
pub(crate) fn distance<'a>(
    right: impl IntoIterator<Item = &'a f32>,
    found: impl IntoIterator<Item = &'a f32>,
) -> f64 {
    let (mut apart, mut all) = (0.0, 0.0);
    let mut found = found.into_iter();
    for right in right {
        apart += f64::from(right - found.next().unwrap()).powi(2);
        all += f64::from(*right).powi(2);
    }
    assert_eq!(found.next(), None);
    f64::sqrt(apart / all)
}
