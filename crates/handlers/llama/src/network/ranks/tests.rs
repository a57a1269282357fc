//! Tests of failing ranks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Part, Rank, Ranks, Setup, Shard, Step};
use crate::config::Config;
use crate::kv::{BlockTable, KvCacheManager};
use crate::network::{Chunk, Model};
use crate::rope::RopeTable;
use crate::weights::{Cut, Weights};
use nsbridge_kernels::Format;
use nsbridge_kernels::collectives::{Communicator, RankGroup, RankLost};

const LONG_TIME: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Panics,
    Hangs,
}

/// Works correctly for a number of sums, then fails.
#[derive(Debug)]
struct Faulty {
    comm: Box<dyn Communicator>,
    fault: Fault,
    left: usize,
}

impl Communicator for Faulty {
    fn ranks(&self) -> usize {
        self.comm.ranks()
    }

    fn all_reduce(&mut self, numbers: &mut Vec<f32>, len: usize) -> Result<(), RankLost> {
        match (self.left, self.fault) {
            (0, Fault::Panics) => panic!("as it was told to"),
            (0, Fault::Hangs) => loop {
                std::thread::park();
            },
            _ => self.left -= 1,
        }
        self.comm.all_reduce(numbers, len)
    }

    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RankLost> {
        self.comm.gather(numbers, len, show)
    }
}

/// Loads two ranks of the bundled model, one of which fails after `left` sums.
fn ranks(patience: Duration, faulty: usize, fault: Fault, left: usize) -> Ranks {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-7m");
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files).unwrap();
    let weights = Weights::for_ranks(&files, 2).unwrap();
    let setup = Setup { ranks: 2, blocks: 2, ..Setup::default() };
    let group = Arc::new(RankGroup::new(2, patience));
    let shard = |(rank, handle)| {
        let mut comm: Box<dyn Communicator> = Box::new(handle);
        if rank == faulty {
            comm = Box::new(Faulty { comm, fault, left });
        }
        let rope = Arc::new(RopeTable::new(&config.rope, config.head_dim, 64));
        let shard = Shard::load(&config, rope, &weights, &setup, (Part { rank, of: 2 }, comm));
        Box::new(shard.unwrap()) as Box<dyn Rank>
    };
    Ranks::start(group.handles().into_iter().enumerate().map(shard).collect(), group).unwrap()
}

/// Makes a step of one token.
fn step(table: &mut BlockTable) -> Step {
    Step::new(&[Chunk { table, tokens: &[5], logits: 1 }], Vec::new())
}

/// Runs steps until a rank is lost. Returns the number of steps before that, and the error.
fn run(ranks: &mut Ranks) -> (usize, RankLost) {
    let (mut cache, mut table) =
        (KvCacheManager::<std::hash::RandomState>::new(2).unwrap(), BlockTable::default());
    assert!(cache.reserve(&mut table, 60));
    for steps in 0..60 {
        match ranks.run(step(&mut table)) {
            Ok(_) => table.grow(1),
            Err(lost) => {
                // A second call fails before the first rendezvous, so it waits for no rank.
                let meetings = ranks.watch().meetings();
                assert_eq!(ranks.run(step(&mut table)).err(), Some(lost.clone()));
                assert_eq!(ranks.watch().meetings(), meetings);
                return (steps, lost);
            }
        }
    }
    panic!("nobody was lost");
}

/// Sums in a step: one for the embedding, two for each of the eight layers.
const SUMS: usize = 17;

#[test]
fn a_rank_that_panics_is_named_at_once_wherever_it_is_in_its_step() {
    for left in [0, 1, SUMS - 1, 3 * SUMS + 5] {
        let mut ranks = ranks(LONG_TIME, 1, Fault::Panics, left);
        let (steps, lost) = run(&mut ranks);
        assert_eq!((steps, lost.to_string().as_str()), (left / SUMS, "rank 1 of 2 panicked"));
    }
}

#[test]
fn a_rank_that_hangs_is_named_in_time_and_left_behind() {
    let mut ranks = ranks(Duration::from_millis(1500), 1, Fault::Hangs, SUMS + 4);
    let (steps, lost) = run(&mut ranks);
    assert_eq!((steps, lost.to_string().as_str()), (1, "rank 1 of 2 did not answer within 1.5 s"));
    let (sender, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(ranks);
        sender.send(())
    });
    dropped.recv_timeout(Duration::from_secs(60)).expect("the rank is waited for");
}

#[test]
fn a_first_rank_that_hangs_is_seen_by_who_watches() {
    let mut ranks = ranks(Duration::from_millis(1500), 0, Fault::Hangs, SUMS + 4);
    let watch = ranks.watch();
    // This thread never ends.
    std::thread::spawn(move || run(&mut ranks));
    let begun = Instant::now();
    let lost = loop {
        if let Some(lost) = watch.lost() {
            break lost;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(lost, "rank 0 of 2 did not answer within 1.5 s");
}

#[test]
fn where_one_rank_cannot_be_loaded_the_others_do_not_go_on() {
    // The last token's embedding, on the second rank, holds a number too large for a Q8_0 scale.
    let dir = tempfile::tempdir().unwrap();
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-7m");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{from}/{name}"), dir.path().join(name)).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + head]).unwrap();
    let end = header["model.embed_tokens.weight"]["data_offsets"][1].as_u64().unwrap() as usize;
    bytes[8 + head + end - 2..8 + head + end].copy_from_slice(&0x7f80_u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let files = nsbridge_handler::Model::in_dir(dir.path());
    let config = Config::read(&files).unwrap();
    let weights = Weights::for_ranks(&files, 2).unwrap();
    let setup = Setup { ranks: 2, blocks: 2, format: Some(Format::Q8_0), ..Setup::default() };
    let why = Model::new(&config, 64, &weights, &setup).unwrap_err().to_string();
    assert!(why.contains("of model.embed_tokens.weight"), "{why}");
    let shape = [config.hidden_size];
    let refused = weights.take("model.norm.weight", &shape, &Cut::Rows(0..config.hidden_size));
    assert!(refused.unwrap_err().to_string().contains("another rank"));
}

#[test]
fn a_first_rank_that_panics_frees_the_others() {
    let mut ranks = ranks(LONG_TIME, 0, Fault::Panics, 6);
    let panic = catch_unwind(AssertUnwindSafe(|| run(&mut ranks))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"as it was told to"));
    // The other rank has finished its step, so its thread can be joined.
    let others = &mut ranks.others;
    others.steps.clear();
    others.threads.drain(..).for_each(|thread| thread.join().unwrap());
}
