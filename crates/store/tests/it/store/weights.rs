//! Weights from a bucket, by tensor, by slice and by rank.

use std::thread;
use std::time::{Duration, Instant};

use nsbridge_checkpoint::{CandleWeights, Checkpoint, Order};
use nsbridge_handler::Model;
use nsbridge_store::Location;

use super::{COLUMNS, Fixture, ROWS, on_a_thread, push_of, store_on, top};

/// Reads every tensor of a model.
fn all(model: &Model, order: &Order) -> Vec<(String, Vec<u8>)> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let weights = checkpoint.load(order).unwrap();
    let read = |name: &str| (name.to_owned(), weights.tensor(name).unwrap().contiguous().to_vec());
    checkpoint.tensors().iter().map(|tensor| read(&tensor.name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_and_a_folder_give_the_same_bytes_and_each_is_fetched_once() {
    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |_| ());
    let opened = store.model(&top().into()).await.unwrap();
    assert_eq!(opened.model.revision(), Some("r1"));
    let folder = Model::in_dir(fixture.dir.path());
    let model = opened.model.clone();
    let (far, near) = on_a_thread(move || {
        let order = Order::everything();
        assert_eq!(model.read("config.json").unwrap(), folder.read("config.json").unwrap());
        assert_eq!(model.read("extra/empty.txt").unwrap(), b"");
        for path in model.files() {
            assert_eq!(model.digest(path).unwrap(), folder.digest(path).unwrap(), "{path}");
        }
        (all(&model, &order), all(&folder, &order))
    })
    .await;
    assert!(far == near);
    let names: Vec<_> = far.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["layers.0.weight", "layers.1.weight", "layers.2.weight", "layers.10.bias"]);
    let files = 40 << 20;
    let sent = fixture.server.counts().bytes_sent;
    let manifest = opened.manifest.unwrap();
    assert!(manifest.size() < files && sent > manifest.size());
    let listings = 8 << 10;
    assert!(sent - manifest.size() < listings + manifest.to_json().len() as u64, "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_get_their_slices_and_the_host_fetches_each_byte_once() {
    for ranks in [1, 2, 4, 8] {
        let fixture = Fixture::new().await;
        // The large tensors do not fit into this memory together, so they arrive one after the
        // other.
        let store = store_on(&fixture.server, |config| config.memory_mb = 34);
        let model = store.model(&top().into()).await.unwrap().model;
        let folder = Model::in_dir(fixture.dir.path());
        on_a_thread(move || {
            let checkpoint = Checkpoint::open(&model).unwrap();
            let weights = checkpoint.load(&Order::everything().for_ranks(ranks)).unwrap();
            let whole: Vec<_> = all(&folder, &Order::everything());
            let bytes = |name: &str| &whole.iter().find(|(n, _)| n == name).unwrap().1;
            thread::scope(|scope| {
                for rank in 0..ranks {
                    let weights = weights.clone();
                    scope.spawn(move || {
                        let rows = weights.shard("layers.0.weight", 0, rank).unwrap();
                        assert_eq!(rows.shape(), [ROWS / ranks, COLUMNS]);
                        let share = ROWS * COLUMNS * 4 / ranks;
                        let all = bytes("layers.0.weight");
                        assert!(*rows.contiguous() == all[rank * share..][..share]);
                        let columns = weights.shard("layers.1.weight", 1, rank).unwrap();
                        assert_eq!(columns.shape(), [COLUMNS, ROWS / ranks]);
                        assert_eq!(columns.runs().len(), COLUMNS);
                        let (row, run) = (ROWS * 4, ROWS * 4 / ranks);
                        let all = bytes("layers.1.weight").chunks(row);
                        for (ours, row) in columns.runs().zip(all) {
                            assert!(*ours == row[rank * run..][..run]);
                        }
                        for name in ["layers.2.weight", "layers.10.bias"] {
                            let tensor = weights.tensor(name).unwrap();
                            assert!(*tensor.contiguous() == *bytes(name));
                        }
                    });
                }
            });
        })
        .await;
        let size = fixture.file("model-00001-of-00002.safetensors").len() as u64;
        let key = "tale/r1/model-00001-of-00002.safetensors";
        let counts = fixture.server.counts();
        let sent = counts.of(&format!("models/{key}")).bytes_sent;
        assert_eq!(sent, size, "at {ranks} ranks");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn candle_reads_a_bucket_like_a_folder_and_copies_nothing() {
    use candle_core::{DType, Device};
    use candle_nn::var_builder::Shard;

    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |_| ());
    let model = store.model(&top().into()).await.unwrap().model;
    let folder = Model::in_dir(fixture.dir.path());
    on_a_thread(move || {
        let load = |model: &Model, ranks: usize| {
            let order = Order::everything().for_ranks(ranks);
            CandleWeights::load(&Checkpoint::open(model).unwrap(), &order).unwrap()
        };
        let (far, near) = (load(&model, 1), load(&folder, 1));
        let get = |weights: &CandleWeights| {
            let vb = weights.var_builder(DType::F32, &Device::Cpu).pp("layers.0");
            let tensor = vb.get((ROWS, COLUMNS), "weight").unwrap();
            tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(get(&far)) == bits(get(&near)));
        let vb = far.var_builder(DType::F32, &Device::Cpu);
        let wrong = vb.get((1, 2), "layers.2.weight").unwrap_err().to_string();
        assert!(wrong.contains("layers.2.weight"), "{wrong}");
        assert!(vb.get(1, "layers.3.weight").unwrap_err().to_string().contains("layers.3.weight"));
        let sharded = load(&folder, 2);
        for rank in 0..2 {
            let vb = sharded.sharded(DType::F32, &Device::Cpu);
            let shard = Shard { dim: 1, rank, world_size: 2 };
            let part = vb.get_with_hints((COLUMNS, ROWS), "layers.1.weight", shard).unwrap();
            let whole = near.tensor("layers.1.weight").unwrap();
            let expected = whole.narrow(1, rank * ROWS / 2, ROWS / 2).unwrap();
            let flat =
                |t: candle_core::Tensor| bits(t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
            assert!(flat(part) == flat(expected));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_reads_its_cache_and_a_damaged_chunk_is_fetched_again() {
    let fixture = Fixture::new().await;
    let cache = tempfile::tempdir().unwrap();
    let open = || store_on(&fixture.server, |config| config.cache = Some(cache.path().into()));
    let load = |store: nsbridge_store::Store| async move {
        let model = store.model(&top().into()).await.unwrap().model;
        let tensors = on_a_thread(move || all(&model, &Order::everything())).await;
        store.flushed().await;
        (tensors, store)
    };
    let (first, store) = load(open()).await;
    assert!(store.counts().to_cache.get() >= store.counts().from_store.get() - (1 << 20));
    let (second, store) = load(open()).await;
    assert!(first == second);
    assert_eq!(store.counts().from_store.get(), 0);
    let mut chunks = Vec::new();
    for folder in cache.path().join("chunks").read_dir().unwrap() {
        chunks.extend(folder.unwrap().path().read_dir().unwrap().map(|file| file.unwrap().path()));
    }
    let large = chunks.iter().find(|path| path.metadata().unwrap().len() == 16 << 20).unwrap();
    let mut bytes = std::fs::read(large).unwrap();
    bytes[5_000_000] ^= 1;
    std::fs::write(large, bytes).unwrap();
    let (third, store) = load(open()).await;
    assert!(first == third);
    assert_eq!(store.counts().from_store.get(), 16 << 20);
    assert_eq!(store.counts().wrong_in_cache.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_paths_are_brought_verified_and_mended() {
    let fixture = Fixture::new().await;
    let cache = tempfile::tempdir().unwrap();
    let open = || store_on(&fixture.server, |config| config.cache = Some(cache.path().into()));
    let store = open();
    let model = store.model(&top().into()).await.unwrap().model;
    let (dir, path) = on_a_thread(move || {
        (model.dir().unwrap(), model.file("model-00001-of-00002.safetensors").unwrap())
    })
    .await;
    let right = fixture.file("model-00001-of-00002.safetensors");
    assert!(std::fs::read(&path).unwrap() == right);
    assert_eq!(std::fs::read(dir.join("extra/empty.txt")).unwrap(), b"");
    let mut wrong = right.clone();
    wrong[20_000_000] ^= 4;
    std::fs::write(&path, &wrong[..wrong.len() - 5]).unwrap();
    let model = open().model(&top().into()).await.unwrap().model;
    let store = open();
    let again = store.model(&top().into()).await.unwrap().model;
    on_a_thread(move || again.dir().unwrap()).await;
    drop(model);
    assert!(std::fs::read(&path).unwrap() == right);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_folder_without_a_manifest_stay_as_they_are() {
    use std::os::unix::fs::MetadataExt as _;

    let fixture = Fixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    std::fs::write(&file, "{}").unwrap();
    let before = file.metadata().unwrap();
    let store = store_on(&fixture.server, |_| ());
    let location: Location = folder.path().to_str().unwrap().parse().unwrap();
    let model = store.model(&location.into()).await.unwrap().model;
    let dir = on_a_thread(move || model.dir().unwrap()).await;
    let after = dir.join("config.json").metadata().unwrap();
    assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_manifest_is_held_against_it() {
    let fixture = Fixture::new().await;
    let copy = tempfile::tempdir().unwrap();
    let store = store_on(&fixture.server, |_| ());
    let opened = store.model(&top().into()).await.unwrap();
    store.pull(&opened, copy.path(), |_| ()).await.unwrap();
    std::fs::write(copy.path().join("nsb-manifest.json"), opened.manifest.unwrap().to_json())
        .unwrap();
    let shard = copy.path().join("model-00001-of-00002.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[20_000_000] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let folder = Location::Folder(copy.path().to_owned());
    let opened = store.model(&folder.into()).await.unwrap();
    let model = opened.model.clone();
    let refused = on_a_thread(move || {
        let weights = Checkpoint::open(&model).unwrap().load(&Order::everything()).unwrap();
        weights.tensor("layers.1.weight").unwrap_err().to_string()
    })
    .await;
    assert!(refused.contains("chunk 1 of"), "{refused}");
    assert!(refused.contains("model-00001-of-00002.safetensors"), "{refused}");
    let wrong = store.verify(&opened, |_| ()).await.unwrap();
    assert_eq!(wrong.len(), 1);
}

/// Polls until the condition holds, for at most 20 s.
async fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "no {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_told_when_the_store_goes_away() {
    use nsbridge_testkit::s3::{Fault, Faults, Rule};

    let fixture = Fixture::new().await;
    // The first tensor leaves no memory for the second one, so only the first chunk is fetched ahead.
    let store = store_on(&fixture.server, |config| {
        (config.patience_s, config.memory_mb) = (1000.0, 34);
    });
    let model = store.model(&top().into()).await.unwrap().model;
    let weights =
        on_a_thread(move || Checkpoint::open(&model).unwrap().load(&Order::everything()).unwrap())
            .await;
    until("the first chunk", || store.counts().from_store.get() >= 16 << 20).await;
    let never = Fault::Stall(0, Duration::from_secs(1000));
    fixture.server.faults(Faults::none().with(Rule::new(never)));
    let reader = tokio::task::spawn_blocking(move || {
        weights.tensor("layers.1.weight").map(|_| ()).unwrap_err().to_string()
    });
    until("a request of the reader", || fixture.server.counts().faults > 0).await;
    drop(store);
    let told = tokio::time::timeout(Duration::from_secs(10), reader).await.expect("it is told");
    assert!(told.unwrap().contains("given up"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_runs_no_further_ahead_than_its_memory_and_serves_whoever_waits() {
    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |config| config.memory_mb = 34);
    let model = store.model(&top().into()).await.unwrap().model;
    let counts = store.counts().clone();
    let weights =
        on_a_thread(move || Checkpoint::open(&model).unwrap().load(&Order::everything()).unwrap())
            .await;
    until("the first chunk", || counts.from_store.get() >= 16 << 20).await;
    // Meanwhile, without a reader, another store fetches the whole model.
    let (other, copy) = (store_on(&fixture.server, |_| ()), tempfile::tempdir().unwrap());
    let opened = other.model(&top().into()).await.unwrap();
    other.pull(&opened, copy.path(), |_| ()).await.unwrap();
    // The first tensor spans two chunks. The third chunk holds none of it.
    let ahead = counts.from_store.get();
    assert!(ahead < 34 << 20, "{ahead}");
    on_a_thread(move || {
        for name in ["layers.10.bias", "layers.2.weight", "layers.1.weight", "layers.0.weight"] {
            weights.tensor(name).unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_location_of_a_gguf_file_is_a_model_of_that_file() {
    let fixture = Fixture::new().await;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| std::fs::write(dir.path().join(name), name).unwrap();
    let own = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "tokenizer.json"];
    own.into_iter().chain(["README.md", "b.gguf"]).for_each(write);
    let store = store_on(&fixture.server, |_| ());
    let mut push = push_of(dir.path());
    push.to = "s3://models/ggufs".parse().unwrap();
    store.push(push, |_| ()).await.unwrap();
    let near = dir.path().join(own[0]).display().to_string();
    for location in [&*format!("s3://models/ggufs/{}", own[1]), &near] {
        let location: Location = location.parse().unwrap();
        let opened = store.model(&location.into()).await.unwrap();
        assert_eq!(opened.model.files().collect::<Vec<_>>(), own);
        let model = opened.model.clone();
        on_a_thread(move || assert_eq!(model.read(own[1]).unwrap(), own[1].as_bytes())).await;
        let pulled = tempfile::tempdir().unwrap();
        store.pull(&opened, pulled.path(), |_| ()).await.unwrap();
        assert_eq!(Model::in_dir(pulled.path()).files().collect::<Vec<_>>(), own);
    }
    let missing: Location = "s3://models/ggufs/c.gguf".parse().unwrap();
    let refused = store.model(&missing.into()).await.unwrap_err().to_string();
    assert!(refused.contains("c.gguf"), "{refused}");
}
