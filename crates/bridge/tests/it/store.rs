//! Models from a bucket and from folders, with and without faults.

mod faults;
mod push;
mod weights;

use std::path::Path;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_types::SdkConfig;
use aws_types::region::Region;
use nsbridge::StoreConfig;
use nsbridge::store::{Location, Push, Pushed, Store};
use nsbridge_testkit::s3::S3Server;
use safetensors::tensor::{Dtype, TensorView};

const BUCKET: &str = "models";

/// Dimensions of the large test matrices. Two of them in f32 span three chunks of 16 MiB.
const ROWS: usize = 2400;
const COLUMNS: usize = 2048;

/// Opens a store on this server with short timeouts.
fn store_on(server: &S3Server, change: impl FnOnce(&mut StoreConfig)) -> Store {
    let mut config =
        StoreConfig { stall_s: 0.4, patience_s: 8.0, in_flight: 4, ..StoreConfig::default() };
    change(&mut config);
    Store::open(&config).unwrap().with_aws(&aws(server)).unwrap()
}

fn aws(server: &S3Server) -> SdkConfig {
    let keys = Credentials::new(server.access_key(), server.secret_key(), None, None, "test");
    SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .credentials_provider(SharedCredentialsProvider::new(keys))
        .region(Region::new("us-east-1"))
        .endpoint_url(server.endpoint())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build()
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
    Push {
        from: dir.to_owned(),
        to: top(),
        model: "tale".to_owned(),
        revision: Some("r1".to_owned()),
        alias: Some("current".to_owned()),
        force: false,
        follow_links: false,
    }
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
