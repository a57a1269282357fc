//! Models in a bucket, from the command line to the client's reply.

use std::net::SocketAddr;
use std::process::Output;

use nsbridge_testkit::s3::{Fault, Faults, Rule, S3Server};
use serde_json::Value;

use crate::place::{Place, Process, model, nsbridge};

pub(crate) const PLACE: &str = "s3://models/tale-7m";

/// Bucket for models.
pub(crate) struct Bucket(S3Server);

impl Bucket {
    pub(crate) fn new() -> Self {
        let server = S3Server::start().unwrap();
        server.bucket("models");
        Self(server)
    }

    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", self.0.endpoint()),
            ("AWS_ACCESS_KEY_ID", self.0.access_key().to_owned()),
            ("AWS_SECRET_ACCESS_KEY", self.0.secret_key().to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = nsbridge(&[&["model"], arguments].concat());
        command.envs(self.environment()).output().unwrap()
    }

    /// Runs a command that must succeed and returns its JSON output.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a command that must fail with one sentence that contains this reason.
    #[track_caller]
    fn refuses(&self, arguments: &[&str], reason: &str) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let last = said.trim_end().lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains(reason), "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
    }

    pub(crate) fn push(&self, revision: &str) -> Value {
        self.push_folder(model().to_str().unwrap(), revision)
    }

    pub(crate) fn push_folder(&self, folder: &str, revision: &str) -> Value {
        self.json(&["push", folder, PLACE, "--revision", revision])
    }
}

#[test]
fn a_pushed_model_is_served_from_the_bucket_and_its_revision_is_told() {
    let bucket = Bucket::new();
    let pushed = bucket.push("r1");
    let place = Place::new();
    let local = {
        let _worker = place.worker();
        story(&place, &[])
    };
    assert!(local["revision"].is_null());
    let addr = free_port();
    let mut environment = bucket.environment().to_vec();
    environment.extend([
        ("NSBRIDGE_MODELS__TARGET", PLACE.to_owned()),
        ("NSBRIDGE_STORE__CACHE", place.path("cache")),
        ("NSBRIDGE_HEALTH__LISTEN", addr.to_string()),
    ]);
    let _worker = place.worker_in(&environment);
    let remote = story(&place, &["--revision", "r1"]);
    assert_eq!(remote["text"], local["text"]);
    assert_eq!(remote["revision"], "r1");
    let ready = get(addr, "/readyz");
    assert!(ready.contains("r1"), "{ready}");
    let metrics = get(addr, "/metrics");
    for series in ["revision=\"r1\"", "nsbridge_load_phase_seconds", "phase=\"find\""] {
        assert!(metrics.contains(series), "{series} is not in\n{metrics}");
    }
    let size = std::fs::metadata(model().join("model.safetensors")).unwrap().len();
    let line = metrics.lines().find(|line| {
        line.starts_with("nsbridge_model_bytes_total") && line.contains("from=\"store\"")
    });
    let bytes: u64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((size..size + (2 << 20)).contains(&bytes), "{bytes}");
    // A configuration that pins another manifest is refused before the worker takes a request.
    let manifest = pushed["manifest"].as_str().unwrap().replace(|c| c != 'a', "a");
    let toml = format!("target = {{ source = \"{PLACE}\", manifest = \"{manifest}\" }}");
    let config = std::fs::read_to_string(place.path("worker.toml")).unwrap();
    let target = config.lines().find(|line| line.starts_with("target")).unwrap();
    std::fs::write(place.path("worker.toml"), config.replace(target, &toml)).unwrap();
    let mut pinned = nsbridge(&["worker", "--config", &place.path("worker.toml")]);
    let output = pinned.envs(bucket.environment()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("its BLAKE3 must be aaaa"), "{said}");
}

/// Returns the last line of an `ask` for a short story.
fn story(place: &Place, more: &[&str]) -> Value {
    let asked = ["--seed", "7", "--max-tokens", "40", "--json", "Once a bear went to the sea"];
    let mut asking = Process(place.ask(&[&asked[..], more].concat()).spawn().unwrap());
    let last = asking.lines().last().expect("ask printed nothing").unwrap();
    assert_eq!(asking.code(), Some(0), "{last}");
    serde_json::from_str(&last).unwrap()
}

#[test]
fn a_model_is_pulled_verified_and_inspected() {
    let bucket = Bucket::new();
    let pushed = bucket.push("r1");
    assert_eq!(pushed["place"], "s3://models/tale-7m/r1");
    assert_eq!(bucket.push("r1")["was_there"], true);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let copy = copy.to_str().unwrap();
    let size = bucket.json(&["pull", PLACE, copy])["fetched"].as_u64().unwrap();
    assert_eq!(bucket.json(&["pull", PLACE, copy])["fetched"], 0);
    for place in [PLACE, copy] {
        assert_eq!(bucket.json(&["verify", place])["bytes"], size);
        let inspected = bucket.json(&["inspect", place]);
        assert_eq!(inspected["revision"], "r1");
        assert_eq!(inspected["parameters"], 7_344_384);
    }
    let weights = format!("{copy}/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    bytes[1_000_000] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    bucket.refuses(&["verify", copy], "chunk 0 of");
    bucket.json(&["pull", PLACE, copy]);
    bucket.json(&["verify", copy]);
    let words = bucket.run(&["inspect", PLACE, "--tensors"]);
    let words = String::from_utf8(words.stdout).unwrap();
    for part in ["7.34 M parameters in 74 tensors", "model.norm.weight", "degree 8  "] {
        assert!(words.contains(part), "{words}");
    }
    let other = format!("{}/../tale-1m", model().display());
    bucket.refuses(&["push", &other, PLACE, "--revision", "r1"], "holds another model");
}

#[test]
fn a_quantized_model_is_inspected_and_one_in_sixteen_bits_tells_the_same_story() {
    let bucket = Bucket::new();
    let folder = tempfile::tempdir().unwrap();
    let to = |dtype: &str| folder.path().join(dtype).to_str().unwrap().to_owned();
    let from = model().to_str().unwrap().to_owned();
    let quantized = |dtype: &str| bucket.json(&["quantize", &from, &to(dtype), "--dtype", dtype]);
    let made = quantized("q4_k_m");
    assert!(made["file"].as_str().unwrap().ends_with("model-q4_k_m.gguf"), "{made}");
    let inspected = bucket.json(&["inspect", &to("q4_k_m")]);
    assert_eq!(inspected["parameters"], 7_344_384);
    assert_eq!(inspected["dtypes"]["Q6_K"]["tensors"], 9, "{inspected}");
    let again = ["quantize", &to("q4_k_m"), &to("other"), "--dtype", "q8_0"];
    bucket.refuses(&again, "quantize the model that it was made of");
    let again = ["quantize", &from, &to("q4_k_m"), "--dtype", "q8_0"];
    bucket.refuses(&again, "give a folder of its own");

    quantized("f16");
    let place = Place::new();
    let right = {
        let _worker = place.worker();
        story(&place, &[])
    };
    let _worker = place.worker_in(&[("NSBRIDGE_MODELS__TARGET", to("f16"))]);
    assert_eq!(story(&place, &[])["text"], right["text"]);
}

#[test]
fn a_config_alone_says_what_each_rank_would_need() {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
        "vocab_size": 32000, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let inspect = |more: &[&str]| {
        let mut command = nsbridge(&["model", "inspect"]);
        command.arg(folder.path()).args(more).output().unwrap()
    };
    let words = String::from_utf8(inspect(&["--tokens", "32768"]).stdout).unwrap();
    for part in ["68.98 B parameters", "no weights", "32768 tokens", "degree 8  "] {
        assert!(words.contains(part), "{words}");
    }
    let told = inspect(&["--json", "--dtype", "q8_0", "--tokens", "1000"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let degrees = told["tensor_parallel_degrees"].as_array().unwrap();
    let of = |at: usize, field: &str| degrees[at][field].as_u64().unwrap();
    // The norms, 161 vectors of 8192 elements, stay in f32.
    let norms = 161 * 8192;
    let right = (68_976_648_192 - norms) * 34 / 32 + norms * 4;
    assert!(of(0, "weights_per_rank").abs_diff(right) < 1000, "{told}");
    assert_eq!([of(0, "kv_per_rank"), of(3, "kv_per_rank")], [327_680_000, 40_960_000]);
    // Of the value and down projections of the 80 layers, half have six bits. The other value
    // projections have five.
    let mixed = inspect(&["--json", "--dtype", "q4_k_m"]);
    let mixed: Value = serde_json::from_slice(&mixed.stdout).unwrap();
    let bytes = mixed["tensor_parallel_degrees"][0]["weights_per_rank"].as_f64().unwrap();
    let width = bytes / 68_976_648_192.0;
    assert!(width > 0.60 && width < 0.64, "{width}");
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let refused = inspect(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("config.json: missing field"));
}

#[test]
fn a_bad_place_is_named_in_one_sentence() {
    let bucket = Bucket::new();
    bucket.push("r1");
    bucket.refuses(&["inspect", "s3://models/tale-8m"], "s3://models/tale-8m");
    bucket.refuses(&["inspect", "s3://models/tale-7m@r9"], "s3://models/tale-7m/r9");
    bucket.refuses(&["inspect", "s3://nowhere/tale-7m"], "the bucket does not exist");
    bucket.refuses(&["inspect", "/nowhere/tale-7m"], "folder /nowhere/tale-7m");
    bucket.refuses(&["push", "/nowhere/tale-7m", PLACE], "/nowhere/tale-7m");
    bucket.refuses(&["point", PLACE], "@revision");
    bucket.refuses(&["verify", model().to_str().unwrap()], "nsb-manifest.json");
    bucket.0.faults(Faults::none().with(Rule::new(Fault::Refuse(403, "AccessDenied"))));
    bucket.refuses(&["verify", "s3://models/tale-7m@r1"], "AccessDenied");
    let wrong = nsbridge(&["model", "inspect", "gs://x/y"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("`gs://` is not known"));
}

fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Fetches a page over plain HTTP.
fn get(addr: SocketAddr, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
