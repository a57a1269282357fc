//! Models from a bucket and from folders, with and without faults.

mod faults;
mod push;
mod weights;

use std::path::Path;
use std::time::Duration;

use nsbridge_store::{Credentials, Location, Push, Pushed, Store, StoreConfig};
use nsbridge_testkit::s3::S3Server;
use safetensors::tensor::{Dtype, TensorView};

const BUCKET: &str = "models";

/// Dimensions of the large test matrices. Two of them in f32 span three chunks of 16 MiB.
const ROWS: usize = 2400;
const COLUMNS: usize = 2048;

/// Opens a store on this server with short timeouts.
fn store_on(server: &S3Server, change: impl FnOnce(&mut StoreConfig)) -> Store {
    let mut config = StoreConfig::default();
    (config.stall_s, config.patience_s, config.in_flight) = (0.4, 8.0, 4);
    config.region = Some("us-east-1".to_owned());
    config.endpoint_url = Some(server.endpoint());
    change(&mut config);
    let keys = Credentials::new(server.access_key(), server.secret_key());
    Store::open(&config).unwrap().with_credentials(keys)
}

/// Writes a model of two shards, of which the first takes three chunks.
fn write_model(dir: &Path) {
    let draw = |seed: u64| move |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let shard = |name: &str, tensors: &[(&str, Vec<usize>, u64)]| {
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
            .iter()
            .map(|(name, shape, seed)| {
                let count = shape.iter().product::<usize>() as u64;
                let words = (0..count * 2).map(draw(*seed)).flat_map(|n| (n as u16).to_le_bytes());
                ((*name).to_owned(), shape.clone(), words.collect())
            })
            .collect();
        let views = bytes.iter().map(|(name, shape, bytes)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        let file = dir.join(name);
        safetensors::serialize_to_file(views, None, &file).unwrap();
    };
    shard(
        "model-00001-of-00002.safetensors",
        &[
            ("layers.0.weight", vec![ROWS, COLUMNS], 1),
            ("layers.1.weight", vec![COLUMNS, ROWS], 2),
            ("layers.10.bias", vec![ROWS], 3),
        ],
    );
    shard("model-00002-of-00002.safetensors", &[("layers.2.weight", vec![64, 32], 4)]);
    let map = serde_json::json!({ "metadata": {}, "weight_map": {
        "layers.0.weight": "model-00001-of-00002.safetensors",
        "layers.1.weight": "model-00001-of-00002.safetensors",
        "layers.10.bias": "model-00001-of-00002.safetensors",
        "layers.2.weight": "model-00002-of-00002.safetensors",
    }});
    std::fs::write(dir.join("model.safetensors.index.json"), map.to_string()).unwrap();
    std::fs::write(dir.join("config.json"), "{\"hidden_size\": 2048}").unwrap();
    std::fs::create_dir(dir.join("extra")).unwrap();
    std::fs::write(dir.join("extra/empty.txt"), "").unwrap();
}

/// Model in a folder, and as its first revision in a bucket.
struct Fixture {
    server: S3Server,
    dir: tempfile::TempDir,
    pushed: Pushed,
}

fn top() -> Location {
    "s3://models/tale".parse().unwrap()
}

fn push_of(dir: &Path) -> Push {
    let mut push = Push::new(dir, top(), "tale");
    push.revision = Some("r1".to_owned());
    push.alias = Some("current".to_owned());
    push
}

/// Returns a push with some parameters changed.
fn changed(mut push: Push, change: impl FnOnce(&mut Push)) -> Push {
    change(&mut push);
    push
}

impl Fixture {
    async fn new() -> Self {
        let server = S3Server::start().unwrap();
        server.bucket(BUCKET);
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path());
        let pushed = store_on(&server, |_| ()).push(push_of(dir.path()), |_| ()).await.unwrap();
        server.reset_counts();
        Self { server, dir, pushed }
    }

    fn file(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(path)).unwrap()
    }
}

/// Runs blocking work on another thread, like a handler's thread.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::time::timeout(Duration::from_secs(120), tokio::task::spawn_blocking(work))
        .await
        .expect("it ends")
        .expect("it does not panic")
}
