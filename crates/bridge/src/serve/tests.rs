//! A worker as its configuration says, from the keyring's file to the handler.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_handler::{Finish, Handler, Job, Models, Result};
use nsbridge_protocol::topology::model_queue;
use nsbridge_queue::{AmqpBroker, Broker as _};
use tokio::time::{sleep, timeout};

use super::run_until_signal;
use crate::config::Config;
use crate::service_manager::ServiceManager;

/// Number of calls of `forget`.
static FORGOTTEN: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Handler for Counting {
    type Options = ();
    type Input = String;
    type Output = String;

    fn load((): (), _: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, _: String, _: &mut Job<String>) -> Result<Finish> {
        Ok(Finish::STOP)
    }

    fn forget(&self) {
        FORGOTTEN.fetch_add(1, Ordering::SeqCst);
    }
}

/// Writes a keyring of two keys beside the file and renames it, so that no half of it is read.
fn write(path: &Path, keys: &[Key; 2], second: State) {
    let entry = |id: &str, key: &Key, state| Entry::new(id.parse().unwrap(), key.clone(), state);
    let entries = vec![entry("one", &keys[0], State::Primary), entry("other", &keys[1], second)];
    let beside = path.with_extension("new");
    std::fs::write(&beside, &*Keyring::of(entries).unwrap().to_json()).unwrap();
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(beside, path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_key_has_the_handler_forget_what_it_keeps() {
    let home = tempfile::tempdir().unwrap();
    let (ring, file) = (home.path().join("keys.json"), home.path().join("worker.toml"));
    let keys = [(); 2].map(|()| Key::generate().unwrap());
    write(&ring, &keys, State::Decrypt);
    let (url, model) = (nsbridge_testkit::amqp_url(), format!("forget-{}", std::process::id()));
    let text = format!(
        "[worker]\nmodel = \"{model}\"\n[broker]\nurl = \"{url}\"\n[keys]\nkeyring = \"keys.json\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::read(&file, []).unwrap();
    let queue = model_queue(&config.worker.model);
    let withdrawn = async {
        let connection = AmqpBroker::new(&url).unwrap().connect("a test").await.unwrap();
        while connection.depth(&queue).await.map_or(0, |depth| depth.consumers) == 0 {
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(FORGOTTEN.load(Ordering::SeqCst), 0, "no key was withdrawn");
        write(&ring, &keys, State::Disabled);
        while FORGOTTEN.load(Ordering::SeqCst) == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let manager = ServiceManager::default();
    tokio::select! {
        ended = run_until_signal::<Counting, _>(config, &manager) => panic!("the worker ended: {ended:?}"),
        seen = timeout(Duration::from_secs(30), withdrawn) => {
            seen.expect("the handler was not told");
        }
    }
    assert_eq!(FORGOTTEN.load(Ordering::SeqCst), 1, "once for each change");
}
