//! Keys that are late, refused, or changed while requests flow.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nsbridge_crypto::{
    AwsCredentials, ByProvider, Entry, Key, KeyProvider, Keyring, KmsProvider, Reread, State,
    WatchedKeyring,
};
use nsbridge_handler::Models;
use nsbridge_protocol::topology::{dead_queue, header, model_queue};
use nsbridge_protocol::{ErrorCode, KeyId};
use nsbridge_queue::{Broker, Delivery};
use nsbridge_testkit::http::{Answer, Server};
use nsbridge_testkit::system::client::{Client, Event, Reply};
use nsbridge_testkit::system::{Running, Setup};
use tokio::time::timeout;

use crate::script::{Script, Scripted, ask, fresh_seed, runs, said, until};
use crate::stories;

stories! {
    r3_while_kms_throttles_requests_wait_and_then_run_once,
    r3_a_request_that_waits_for_kms_bears_no_blame,
    r2_a_request_that_kms_denies_is_a_dead_letter,
    a_worker_opens_with_a_keyring_and_with_kms,
    keys_are_rotated_while_requests_flow,
    what_may_be_shared_is_told_by_the_key_as_well,
}

const ALIAS: &str = "alias/nsbridge";

/// KMS stand-in with one data key. It unwraps the key unless `refusal` returns an error.
struct Kms {
    server: Server,
    /// Times of the unwrap requests.
    asked: Arc<Mutex<Vec<Instant>>>,
}

impl Kms {
    /// Starts the server. `refusal` returns the error for the nth unwrap request, counted from 0.
    async fn start(
        refusal: impl Fn(usize) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::<Mutex<Vec<Instant>>>::default();
        let log = asked.clone();
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let answer = format!("{{\"Plaintext\":\"{key}\",\"CiphertextBlob\":\"AAAA\"}}");
        let server = Server::start(move |seen| {
            if seen.header("x-amz-target") == Some("TrentService.Decrypt") {
                let mut log = log.lock().unwrap();
                log.push(Instant::now());
                if let Some(code) = refusal(log.len() - 1) {
                    return Answer::new(400, &format!("{{\"__type\":\"{code}\"}}"));
                }
            }
            Answer::new(200, &answer)
        });
        Self { server: server.await.unwrap(), asked }
    }

    async fn keys(&self) -> Arc<dyn KeyProvider> {
        let provider = KmsProvider::builder([ALIAS.parse().unwrap()])
            .region("eu-central-1")
            .endpoint_url(self.server.url(""))
            .credentials(AwsCredentials::new("test", "test"));
        Arc::new(provider.build().await.unwrap())
    }
}

async fn worker(setup: &Setup, broker: Arc<dyn Broker>, keys: Arc<dyn KeyProvider>) -> Running {
    let builder = setup.builder_with_keys(broker, keys);
    let worker = builder.start::<Scripted>((), Models::default()).await.unwrap();
    Running::start(worker).await.unwrap()
}

async fn client(broker: Arc<dyn Broker>, keys: Arc<dyn KeyProvider>) -> Client {
    Client::builder().broker(broker).keys(keys).name("test client").connect().await.unwrap()
}

async fn submit(client: &Client, setup: &Setup, seed: u64) -> Reply<String> {
    let mut asked = ask(setup, Script::Say { pieces: 3, every_ms: 0 }, seed);
    asked.timeout = Duration::from_secs(30);
    client.submit(asked).await.unwrap()
}

/// Returns the value of the series with this name and label.
fn value(setup: &Setup, name: &str, label: &str) -> f64 {
    let text = setup.observability.metrics.text();
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(label)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

async fn r3_while_kms_throttles_requests_wait_and_then_run_once(broker: Arc<dyn Broker>) {
    // The AWS client retries each request once by itself, so each attempt makes two calls.
    let kms = Kms::start(|n| (n < 6).then_some("ThrottlingException")).await;
    let setup = Setup::new().unwrap();
    let _worker = worker(&setup, broker.clone(), kms.keys().await).await;
    let client = client(broker.clone(), kms.keys().await).await;
    let seeds: Vec<u64> = (0..5).map(|_| fresh_seed()).collect();
    let mut replies = Vec::new();
    for seed in &seeds {
        replies.push((*seed, submit(&client, &setup, *seed).await));
    }
    for (seed, reply) in replies {
        assert_eq!(reply.collect().await.unwrap().0, said(seed, 3));
        assert_eq!(runs(seed).len(), 1);
    }
    let asked = kms.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 7, "five requests under one key ask together, and keep the key");
    let [first, second, third] = [1, 3, 5].map(|n| asked[n + 1] - asked[n]);
    let rested = |pause: Duration, seconds: f64| pause.as_secs_f64() >= 0.5 * seconds;
    assert!(rested(first, 1.0) && rested(second, 2.0) && rested(third, 4.0), "{asked:?}");
    assert!(value(&setup, "nsbridge_key_pauses_total", "") >= 3.0);
    assert_eq!(value(&setup, "nsbridge_dead_letters_total", "\"poison\""), 0.0);
    let rival = broker.connect("rival").await.unwrap();
    assert_eq!(rival.depth(&dead_queue(&setup.model)).await.unwrap().messages, 0);
}

async fn take(broker: &Arc<dyn Broker>, queue: &str) -> Delivery {
    let connection = broker.connect("rival").await.unwrap();
    let mut taken = connection.consume(queue, 1).await.unwrap();
    timeout(Duration::from_secs(8), taken.recv()).await.expect("nothing came").unwrap()
}

async fn r3_a_request_that_waits_for_kms_bears_no_blame(broker: Arc<dyn Broker>) {
    let kms = Kms::start(|_| Some("KMSInternalException")).await;
    let setup = Setup::new().unwrap();
    let client = client(broker.clone(), kms.keys().await).await;
    let first = worker(&setup, broker.clone(), kms.keys().await).await;
    let _reply = submit(&client, &setup, 7).await;
    let pauses = || value(&setup, "nsbridge_key_pauses_total", "");
    until("two pauses", async || pauses() >= 2.0).await;
    // A request taken during the pause goes back without a counted delivery or try.
    first.stop().await.unwrap();
    let waiting = take(&broker, &model_queue(&setup.model)).await;
    assert_eq!(waiting.earlier_deliveries, 0, "no delivery counts towards its poison");
    let properties = &waiting.message.properties;
    assert_eq!(properties.int(header::TRIES), None, "nor does it count as a try of the model");
    assert_eq!(properties.int(header::EPOCH), Some(2));
    waiting.ack().await.unwrap();
    assert_eq!(value(&setup, "nsbridge_dead_letters_total", "\"key-denied\""), 0.0);
}

async fn r2_a_request_that_kms_denies_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let kms = Kms::start(|n| (n == 0).then_some("AccessDeniedException")).await;
    let setup = Setup::new().unwrap();
    let _worker = worker(&setup, broker.clone(), kms.keys().await).await;
    let client = client(broker.clone(), kms.keys().await).await;
    let seed = fresh_seed();
    let mut denied = submit(&client, &setup, seed).await;
    assert_eq!(denied.next().await.unwrap().unwrap(), Event::Hint(ErrorCode::KeyDenied));
    let letter = take(&broker, &dead_queue(&setup.model)).await;
    assert_eq!(letter.message.properties.text(header::REASON), Some("key-denied"));
    letter.ack().await.unwrap();
    assert!(runs(seed).is_empty());
    let next = submit(&client, &setup, 7).await;
    assert_eq!(next.collect().await.unwrap().0, said(7, 3), "a refusal is not remembered");
}

async fn a_worker_opens_with_a_keyring_and_with_kms(broker: Arc<dyn Broker>) {
    let kms = Kms::start(|_| None).await;
    let setup = Setup::new().unwrap();
    let keyring: Arc<dyn KeyProvider> = setup.keys.clone();
    let both = ByProvider::new(Some(keyring.clone()), Some(kms.keys().await));
    let _worker = worker(&setup, broker.clone(), Arc::new(both)).await;
    for keys in [keyring, kms.keys().await] {
        let client = client(broker.clone(), keys).await;
        let reply = submit(&client, &setup, 7).await;
        assert_eq!(reply.collect().await.unwrap().0, said(7, 3));
    }
}

/// Keyring file, as `nsbridge keys rotate` writes it.
struct RingFile {
    path: PathBuf,
    keys: Vec<(KeyId, Key)>,
}

impl RingFile {
    /// Writes a keyring of `count` keys: the one at `primary` seals, the one at `disabled` does
    /// nothing.
    fn write(&self, count: usize, primary: usize, disabled: Option<usize>) {
        let state = |i| match i {
            i if Some(i) == disabled => State::Disabled,
            i if i == primary => State::Primary,
            _ => State::Decrypt,
        };
        let entries = self.keys[..count].iter().enumerate();
        let entries = entries.map(|(i, (id, key))| Entry::new(id.clone(), key.clone(), state(i)));
        let ring = Keyring::of(entries.collect()).unwrap();
        self.replace(&ring.to_json());
    }

    /// Replaces the file at once, so that it is reloaded once.
    fn replace(&self, text: &str) {
        let beside = self.path.with_extension("new");
        write_private(&beside, text);
        std::fs::rename(beside, &self.path).unwrap();
    }

    fn watch(&self) -> Watched {
        let reloads = Arc::<AtomicUsize>::default();
        let count = reloads.clone();
        let tell = move |_: Reread<'_>| {
            count.fetch_add(1, Ordering::SeqCst);
        };
        let ring = WatchedKeyring::open(&self.path, Duration::from_millis(20), tell).unwrap();
        Watched { ring: Arc::new(ring), reloads }
    }
}

/// Keyring that is reloaded when its file changes.
struct Watched {
    ring: Arc<WatchedKeyring>,
    /// Number of reloads, including those that were refused.
    reloads: Arc<AtomicUsize>,
}

impl Watched {
    /// Waits until the file was reloaded this number of times.
    async fn until_reloaded(&self, times: usize) {
        let reloaded = async || {
            // The file is checked when a key is requested.
            drop(self.ring.ring());
            self.reloads.load(Ordering::SeqCst) >= times
        };
        until("a reload", reloaded).await;
    }
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

async fn keys_are_rotated_while_requests_flow(broker: Arc<dyn Broker>) {
    let home = tempfile::tempdir().unwrap();
    let key = |id: &str| (id.parse().unwrap(), Key::generate().unwrap());
    let keys = vec![key("old"), key("new")];
    let ring = |name: &str| RingFile { path: home.path().join(name), keys: keys.clone() };
    let (workers, clients) = (ring("workers.json"), ring("clients.json"));
    workers.write(1, 0, None);
    clients.write(1, 0, None);
    let setup = Setup::new().unwrap();
    let (at_worker, at_client) = (workers.watch(), clients.watch());
    let _worker = worker(&setup, broker.clone(), at_worker.ring.clone()).await;
    let client = client(broker, at_client.ring.clone()).await;
    // Each step with the number of reloads of the worker and of the client after it.
    let steps: [(&dyn Fn(), [usize; 2]); 4] = [
        (&|| workers.write(2, 0, None), [1, 0]),
        (&|| clients.write(2, 1, None), [1, 1]),
        (&|| workers.replace("half a ring"), [2, 1]),
        (&|| workers.write(2, 1, Some(0)), [3, 1]),
    ];
    for (step, reloads) in steps {
        let before = [submit(&client, &setup, 7).await, submit(&client, &setup, 7).await];
        step();
        for reply in before {
            assert_eq!(reply.collect().await.unwrap().0, said(7, 3));
        }
        at_worker.until_reloaded(reloads[0]).await;
        at_client.until_reloaded(reloads[1]).await;
        let after = submit(&client, &setup, 7).await;
        assert_eq!(after.collect().await.unwrap().0, said(7, 3));
    }
    for refused in ["\"retried\"", "\"unknown-key\"", "\"key-denied\""] {
        assert_eq!(value(&setup, "nsbridge_requests_ended_total", refused), 0.0, "{refused}");
    }
}

async fn what_may_be_shared_is_told_by_the_key_as_well(broker: Arc<dyn Broker>) {
    let home = tempfile::tempdir().unwrap();
    let key = |id: &str| (id.parse().unwrap(), Key::generate().unwrap());
    let keys = vec![key("one"), key("other")];
    let ring = |primary: usize| {
        let path = home.path().join(format!("{primary}.json"));
        let ring = RingFile { path, keys: keys.clone() };
        ring.write(2, primary, None);
        ring.watch().ring
    };
    let setup = Setup::new().unwrap();
    let _worker = worker(&setup, broker.clone(), ring(0)).await;
    let mut scopes = Vec::new();
    for primary in [0, 1, 0] {
        let client = client(broker.clone(), ring(primary)).await;
        let asked = ask(&setup, Script::Scope, 7);
        let reply: Reply<String> = client.submit(asked).await.unwrap();
        scopes.push(reply.collect().await.unwrap().0);
    }
    assert_eq!(scopes[0], scopes[2]);
    assert_ne!(scopes[0], scopes[1], "one tenant, but two keys");
}
