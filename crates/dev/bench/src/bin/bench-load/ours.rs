//! The worker's loading path: the model store, and weights as a handler reads them.

use std::thread;

use anyhow::{Result, anyhow};
use nsbridge::store::{Credentials, Location, Store};
use nsbridge::worker::StoreConfig;
use nsbridge_checkpoint::{Checkpoint, Order, Weight, Weights};

use crate::serve::{BUCKET, PREFIX, Place};

/// Part of a tensor that a rank holds: the memory in which it arrived, or copied columns.
pub(crate) enum Piece {
    Here(Weight),
    Copied(Vec<u8>),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Here(weight) => weight.runs().next().unwrap_or_default(),
            Self::Copied(bytes) => bytes,
        }
    }
}

/// Loads every tensor of the checkpoint for `degree` ranks of this host.
pub(crate) fn load(place: &Place, degree: usize) -> Result<Vec<Piece>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut config = StoreConfig::default();
    config.region = Some("us-east-1".to_owned());
    config.endpoint_url = Some(place.endpoint.clone());
    let keys = Credentials::new(&place.access_key, &place.secret_key);
    let store = Store::open(&config)?.with_credentials(keys);
    let location: Location = format!("s3://{BUCKET}/{}", PREFIX.trim_end_matches('/'))
        .parse()
        .map_err(|why: String| anyhow!(why))?;
    let model = runtime.block_on(store.model(&location.into()))?.model;
    let read = || {
        let weights = Checkpoint::open(&model)?.load(&Order::everything().for_ranks(degree))?;
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..degree)
                .map(|rank| {
                    let weights = weights.clone();
                    scope.spawn(move || share(&weights, rank))
                })
                .collect();
            let shares = ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic"));
            shares.collect::<nsbridge_handler::Result<Vec<_>>>()
        })
    };
    let pieces = read().map_err(|error| anyhow!("{error}"))?;
    Ok(pieces.into_iter().flatten().collect())
}

/// Returns the shards of one rank, cut as for a tensor-parallel Llama.
fn share(weights: &Weights, rank: usize) -> nsbridge_handler::Result<Vec<Piece>> {
    let piece = |name: &str| {
        let columns = name.contains("o_proj") || name.contains("down_proj");
        if weights.ranks() == 1 {
            return Ok(Some(Piece::Here(weights.tensor(name)?)));
        }
        if name.contains("norm") {
            // Norm weights are replicated on each rank and counted once.
            return Ok(Some(weights.tensor(name)?).filter(|_| rank == 0).map(Piece::Here));
        }
        let share = weights.shard(name, usize::from(columns), rank)?;
        let copied = || Piece::Copied(share.contiguous().into_owned());
        Ok(Some(if columns { copied() } else { Piece::Here(share) }))
    };
    let tensors = weights.checkpoint().tensors().iter();
    tensors.filter_map(|tensor| piece(&tensor.name).transpose()).collect()
}
