//! Gateway with an API key, and the official Python clients that call it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Place, Process, nsbridge, output};

/// Official Python client.
#[derive(Clone, Copy)]
pub(crate) enum Official {
    OpenAi,
    Anthropic,
}

impl Official {
    /// Returns the folder of its checks.
    fn folder(self) -> &'static str {
        match self {
            Self::OpenAi => "tests/openai",
            Self::Anthropic => "tests/anthropic",
        }
    }

    /// Returns the Python interpreter that has the client, as set up by `cargo xtask test`.
    #[expect(clippy::disallowed_methods, reason = "the test run says where its Python is")]
    fn python(self) -> Command {
        let variable = match self {
            Self::OpenAi => "NSBRIDGE_TEST_OPENAI",
            Self::Anthropic => "NSBRIDGE_TEST_ANTHROPIC",
        };
        Command::new(std::env::var(variable).unwrap_or_else(|_| "python3".to_owned()))
    }
}

/// Configured gateway with an API key.
pub(crate) struct Door {
    pub(crate) place: Place,
    pub(crate) key: String,
    pub(crate) port: u16,
    official: Official,
}

impl Door {
    /// Creates the configuration of a gateway that OpenAI's client calls.
    pub(crate) fn new() -> Self {
        Self::for_client(Official::OpenAi)
    }

    /// Creates the configuration of a gateway that this client calls.
    pub(crate) fn for_client(official: Official) -> Self {
        let place = Place::new();
        let file = place.path("api-keys.json");
        let (made, key, said) = output(&["gateway", "keys", "add", &file, "--tenant", "t"]);
        assert!(made.status.success(), "{said}");
        // A port that was free a moment ago, so that a second gateway can have it.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (model, url) = (&place.model, &place.url);
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\ngrace_s = 1\n[broker]\nurl = \"{url}\"\n\
             [keys]\nkeyring = \"keys.json\"\n[access]\nfile = \"api-keys.json\"\n\
             [store]\npath = \"gateway.redb\"\nkey_file = \"gateway.key\"\n\
             [models.tale]\nqueue = \"{model}\"\n"
        );
        fs::write(place.path("gateway.toml"), text).unwrap();
        Self { place, key: key.trim().to_owned(), port, official }
    }

    /// Starts the gateway and waits until it listens.
    pub(crate) fn open(&self) -> Process {
        self.open_in(&[])
    }

    /// Starts the gateway with these environment variables and waits until it listens.
    pub(crate) fn open_in(&self, environment: &[(&str, &str)]) -> Process {
        let mut gateway = nsbridge(&["gateway", "--config", &self.place.path("gateway.toml")]);
        gateway.envs(environment.iter().copied());
        let log = self.place.path("gateway.log");
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let process = Process(gateway.stderr(file).spawn().unwrap());
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let said = fs::read_to_string(&log).unwrap();
            assert!(start.elapsed() < Duration::from_secs(30), "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }

    /// Starts a gateway that has no key of the worker's keyring, and a proxy of it, which clients call
    /// from now on. Waits until both listen.
    pub(crate) fn open_proxy(&mut self) -> [Process; 2] {
        let other = self.place.path("other-keys.json");
        let (made, _, said) = output(&["keys", "generate", "--out", &other]);
        assert!(made.status.success(), "{said}");
        let file = self.place.path("gateway.toml");
        let text = fs::read_to_string(&file).unwrap();
        let text = text.replace("\"keys.json\"", "\"other-keys.json\"");
        fs::write(&file, text.replace("[server]\n", "[server]\nsealed = true\n")).unwrap();
        let gateway = self.open();
        let key = self.place.path("api-key");
        fs::write(&key, &self.key).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let at_gateway = format!("http://127.0.0.1:{}", self.port);
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        self.port = free.port();
        let (listen, model) = (free.to_string(), format!("tale={}", self.place.model));
        let keyring = self.place.path("keys.json");
        let mut proxy = nsbridge(&["proxy", "--gateway", &at_gateway, "--api-key-file", &key]);
        proxy.args([
            "--keyring",
            &keyring,
            "--tenant",
            "t",
            "--model",
            &model,
            "--listen",
            &listen,
        ]);
        let log = self.place.path("proxy.log");
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let proxy = Process(proxy.stderr(file).spawn().unwrap());
        let start = Instant::now();
        while std::net::TcpStream::connect(free).is_err() {
            let said = fs::read_to_string(&log).unwrap();
            assert!(start.elapsed() < Duration::from_secs(30), "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        [gateway, proxy]
    }

    /// Returns the official client with a check.
    pub(crate) fn client(&self, check: &str, more: &[&str]) -> Command {
        self.client_of("client.py", check, more)
    }

    /// Returns the official client with a check of a script.
    fn client_of(&self, script: &str, check: &str, more: &[&str]) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.official.folder());
        let mut client = self.official.python();
        client.arg(folder.join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
        client.args([&format!("http://127.0.0.1:{}", self.port), &self.key, "tale", check]);
        client.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        client
    }

    /// Runs a check and returns what it printed.
    #[track_caller]
    pub(crate) fn check(&self, check: &str, more: &[&str]) -> Value {
        self.check_of("client.py", check, more)
    }

    /// Runs a check of a script and returns what it printed.
    #[track_caller]
    pub(crate) fn check_of(&self, script: &str, check: &str, more: &[&str]) -> Value {
        let output = self.client_of(script, check, more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let log = fs::read_to_string(self.place.path("gateway.log")).unwrap_or_default();
        assert!(output.status.success(), "{check}: {said}\n{log}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}
