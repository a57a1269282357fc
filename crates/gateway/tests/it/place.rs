//! Gateway with a worker and API keys.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use nsbridge_client::{Keyring, ModelName};
use nsbridge_gateway::access::{self, ApiKey, Entry, Limits, Priority};
use nsbridge_gateway::{Config, Gateway, GatewayBroker, Model};
use nsbridge_handler::{BatchOptions, Batched};
use nsbridge_queue::{Broker, MemoryBroker};
use nsbridge_telemetry::Spans;
use nsbridge_testkit::system::{Running, Setup};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::handler::Words;
use crate::http::{Answer, Connection, TEST_TIMEOUT, request};
use crate::judge::Judge;
use crate::snapshots::script::{Script, Vectors};

/// Running gateway whose model is `words`.
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    /// Key without limits.
    pub(crate) key: String,
    /// Key of another tenant, with the limits of the place.
    pub(crate) other: String,
    pub(crate) disabled: String,
    /// Key of a third tenant, for bulk requests.
    pub(crate) bulk: String,
    pub(crate) drain: CancellationToken,
    pub(crate) gateway: JoinHandle<()>,
    ground: Arc<Ground>,
}

/// Worker and API keys of one or more gateways.
struct Ground {
    setup: Setup,
    broker: Arc<dyn Broker>,
    memory: Arc<MemoryBroker>,
    workers: Vec<Running>,
    folder: TempDir,
    keys: [String; 4],
}

impl Ground {
    async fn new(limits: Limits) -> Arc<Self> {
        Self::of(Setup::new().unwrap(), limits).await
    }

    async fn of(setup: Setup, limits: Limits) -> Arc<Self> {
        let memory = Arc::new(MemoryBroker::new());
        let broker: Arc<dyn Broker> = memory.clone();
        let ground = Self::without_workers(setup, broker.clone(), limits);
        let setup = &ground.setup;
        let words = setup.worker::<Words>(broker.clone(), ()).await.unwrap();
        let judge = Setup { model: "judge".parse().unwrap(), ..setup.clone() };
        let judge = judge.worker_async::<Batched<Judge>>(broker, BatchOptions::default());
        let workers = vec![words, judge.await.unwrap()];
        Arc::new(Self { memory, workers, ..ground })
    }

    fn without_workers(setup: Setup, broker: Arc<dyn Broker>, limits: Limits) -> Self {
        log();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("api-keys.json");
        let keys = ["one", "two", "three", "four"].map(|tenant| {
            let key = ApiKey::generate().unwrap();
            let mut entry = Entry::new(&key, tenant.parse().unwrap());
            entry.disabled = tenant == "three";
            if tenant == "four" {
                entry.priority = Priority::Bulk;
            }
            entry.limits = if tenant == "two" { limits } else { Limits::default() };
            access::add(&file, entry).unwrap();
            key.reveal().to_owned()
        });
        Self { setup, broker, memory: Arc::default(), workers: Vec::new(), folder, keys }
    }

    fn write_store_key(&self) {
        let path = self.folder.path().join("store.key");
        let mut options = std::fs::File::options();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path).unwrap();
        writeln!(file, "{}=", "A".repeat(43)).unwrap();
    }

    async fn replica(self: &Arc<Self>) -> Place {
        self.place("", "[store]\nshared = \"shared\"\nkey_file = \"store.key\"\n").await
    }

    /// Starts a gateway with these lines of `[server]`, and these tables.
    async fn place(self: &Arc<Self>, server: &str, tables: &str) -> Place {
        self.place_with(self.setup.keys.clone(), server, tables).await
    }

    /// Starts a gateway with these keys.
    async fn place_with(self: &Arc<Self>, keys: Arc<Keyring>, server: &str, tables: &str) -> Place {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n{server}\n\
             [broker]\nurl = \"amqp://unused\"\n[keys]\nkeyring = \"unused\"\n\
             [access]\nfile = \"api-keys.json\"\n[models.words]\nqueue = \"{}\"\ncontext = 512\n{tables}",
            self.setup.model
        );
        let path = self.folder.path().join("gateway.toml");
        std::fs::write(&path, text).unwrap();
        let config = Config::read(&path, []).unwrap();
        let broker = self.broker.clone();
        let gateway = Gateway::on(config, broker, keys).await.unwrap();
        let (address, drain) = (gateway.address(), gateway.drain());
        let metrics = gateway.metrics_address().unwrap();
        let gateway = tokio::spawn(gateway.run());
        let [key, other, disabled, bulk] = self.keys.clone();
        let ground = self.clone();
        Place { address, metrics, key, other, disabled, bulk, drain, gateway, ground }
    }
}

impl Place {
    pub(crate) async fn new() -> Self {
        Self::with("", Limits::default()).await
    }

    /// Starts a gateway with these lines of `[server]`, and these limits of the other key.
    pub(crate) async fn with(server: &str, limits: Limits) -> Self {
        Ground::new(limits).await.place(server, "").await
    }

    /// Starts a gateway with a store, with these lines of `[batches]`, and these limits of the other
    /// key. It has a second model, `absent`, without a worker.
    pub(crate) async fn stored(batches: &str, limits: Limits) -> Self {
        let tables = format!(
            "[models.absent]\n[store]\npath = \"gateway.redb\"\nkey_file = \"gateway.key\"\n\
             [batches]\n{batches}\n"
        );
        Ground::new(limits).await.place("grace_s = 1", &tables).await
    }

    /// Starts a gateway whose model `judge` has these thresholds.
    pub(crate) async fn judging(thresholds: &str) -> Self {
        let tables = format!(
            "[models.judge]\ntask = \"judge\"\naliases = [\"omni-moderation-latest\"]\n{thresholds}\n\
             [store]\npath = \"gateway.redb\"\nkey_file = \"gateway.key\"\n"
        );
        let limits = Limits { requests_per_minute: Some(3), ..Limits::default() };
        Ground::new(limits).await.place("grace_s = 1", &tables).await
    }

    /// Starts a gateway with these lines of `[server]`, these tables, and these limits of the other key.
    /// It has the models `script` and `vectors`, too.
    pub(crate) async fn scripted(server: &str, tables: &str, limits: Limits) -> Self {
        let mut ground = Ground::new(limits).await;
        ground.write_store_key();
        let of = |model: &str| Setup { model: model.parse().unwrap(), ..ground.setup.clone() };
        let broker = &ground.broker;
        let script = of("script").worker::<Script>(broker.clone(), ()).await.unwrap();
        let vectors = of("vectors").worker::<Vectors>(broker.clone(), ()).await.unwrap();
        Arc::get_mut(&mut ground).unwrap().workers.extend([script, vectors]);
        ground.place(server, tables).await
    }

    /// Starts a gateway on this broker, with these lines of `[server]`. Its model has queues and no worker,
    /// and a first worker takes 30 s to start.
    pub(crate) async fn without_workers(broker: Arc<dyn Broker>, server: &str) -> Self {
        let ground = Ground::without_workers(Setup::new().unwrap(), broker, Limits::default());
        Arc::new(ground).place(server, "start_s = 30\n").await
    }

    /// Starts a worker of the model on this broker.
    pub(crate) async fn start_worker(&self, broker: Arc<dyn Broker>) -> Running {
        self.ground.setup.worker::<Words>(broker, ()).await.unwrap()
    }

    /// Returns the queue of the model.
    pub(crate) fn model(&self) -> &ModelName {
        &self.ground.setup.model
    }

    /// Starts a gateway and workers that send their spans to these collectors.
    pub(crate) async fn traced(gateway: &str, workers: &str) -> Self {
        let mut setup = Setup::new().unwrap();
        let named = ("service.name", "nsbridge-worker".to_owned());
        setup.observability.spans = Spans::to(workers, [named]).unwrap();
        let tables = format!("[telemetry]\notlp = \"{gateway}\"\n");
        Ground::of(setup, Limits::default()).await.place("", &tables).await
    }

    /// Ends the gateway, and sends the spans of the workers that are not sent yet.
    pub(crate) async fn flush(self) {
        self.drain.cancel();
        self.gateway.await.unwrap();
        self.ground.setup.observability.spans.close().await;
    }

    /// Starts a gateway that passes sealed requests on. It has no key of the worker's keyring.
    pub(crate) async fn sealed(limits: Limits) -> Self {
        let entry = nsbridge_crypto::Entry::new(
            "foreign".parse().unwrap(),
            nsbridge_crypto::Key::generate().unwrap(),
            nsbridge_crypto::State::Primary,
        );
        let foreign = Arc::new(Keyring::of(vec![entry]).unwrap());
        Ground::new(limits).await.place_with(foreign, "sealed = true", "").await
    }

    /// Starts a proxy of this gateway, which it reaches at this address with this API key. It has the
    /// worker's keyring.
    pub(crate) async fn proxy(
        &self,
        gateway: SocketAddr,
        key: &str,
        tenant: &str,
    ) -> Result<Self, nsbridge_gateway::Error> {
        let broker = GatewayBroker::new(&format!("http://{gateway}"), key).unwrap();
        let setup = &self.ground.setup;
        let words = Model { queue: Some(setup.model.clone()), ..Model::default() };
        let models = [("words".to_owned(), words), ("absent".to_owned(), Model::default())].into();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config::local(listen, tenant.parse().unwrap(), models);
        let gateway = Gateway::on(config, Arc::new(broker), setup.keys.clone()).await?;
        let (address, drain) = (gateway.address(), gateway.drain());
        let gateway = tokio::spawn(gateway.run());
        let [key, other, disabled, bulk] = self.ground.keys.clone();
        let (metrics, ground) = (address, self.ground.clone());
        Ok(Self { address, metrics, key, other, disabled, bulk, drain, gateway, ground })
    }

    /// Starts two replicas that share a store.
    pub(crate) async fn pair() -> [Self; 2] {
        let ground = Ground::new(Limits::default()).await;
        ground.write_store_key();
        [ground.replica().await, ground.replica().await]
    }

    /// Replaces the file of the API keys by a text that is none.
    pub(crate) fn damage_api_keys(&self) {
        std::fs::write(self.ground.folder.path().join("api-keys.json"), "{").unwrap();
    }

    /// Returns the folder of the store that replicas share.
    pub(crate) fn shared(&self) -> PathBuf {
        self.ground.folder.path().join("shared")
    }

    /// Ends the gateway, and starts another one on its store.
    pub(crate) async fn restart(&mut self) {
        self.drain.cancel();
        (&mut self.gateway).await.unwrap();
        let started = Instant::now();
        let gateway = loop {
            let config = Config::read(&self.ground.folder.path().join("gateway.toml"), []).unwrap();
            let keys = self.ground.setup.keys.clone();
            // The store is free when the last reply of the first gateway has ended.
            match Gateway::on(config, self.ground.broker.clone(), keys).await {
                Ok(gateway) => break gateway,
                Err(error) => assert!(started.elapsed() < TEST_TIMEOUT, "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        };
        (self.address, self.drain) = (gateway.address(), gateway.drain());
        self.gateway = tokio::spawn(gateway.run());
    }

    /// Sends a request under the first key and returns the response.
    pub(crate) async fn post(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        self.open(path, body, headers).await.rest().await
    }

    /// Sends a request under the first key.
    pub(crate) async fn open(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Connection {
        let mut connection = self.connect().await;
        connection.send(&request("POST", path, &self.key, &body.to_string(), headers)).await;
        connection
    }

    /// Returns the broker, to disturb it.
    pub(crate) fn broker(&self) -> &MemoryBroker {
        &self.ground.memory
    }

    /// Declares the queues of the model `absent`, which has no worker.
    pub(crate) async fn declare_absent(&self) -> Arc<dyn nsbridge_queue::Connection> {
        let connection = self.ground.broker.connect("test").await.unwrap();
        connection.declare_model(&"absent".parse().unwrap()).await.unwrap();
        connection
    }

    /// Sends a request under another key and returns the response.
    pub(crate) async fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.raw(&request("POST", path, key, &body.to_string(), &[])).await
    }

    pub(crate) async fn get_as(&self, key: &str, path: &str) -> Answer {
        self.raw(&request("GET", path, key, "", &[])).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_as(&self.key, path).await
    }

    /// Returns the metrics.
    pub(crate) async fn measured(&self) -> String {
        let mut connection = Connection::to(self.metrics).await;
        connection.send(&request("GET", "/metrics", "", "", &[])).await;
        let answer = connection.rest().await;
        assert_eq!(answer.status, 200);
        answer.body
    }

    /// Sends these bytes and returns the response.
    pub(crate) async fn raw(&self, request: &str) -> Answer {
        let mut connection = self.connect().await;
        connection.send(request).await;
        connection.rest().await
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::to(self.address).await
    }
}

/// Returns the secret part of an API key, which may have underscores.
pub(crate) fn secret(key: &str) -> &str {
    key.splitn(3, '_').nth(2).unwrap()
}

/// Polls until the condition holds, for at most this time.
pub(crate) async fn within(limit: Duration, what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < limit, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Log of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Keeps the log of this process from now on.
fn log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log);
        log.with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG).init();
    });
}

/// Returns the log of this process so far.
pub(crate) fn logged() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}
