//! Gateways of a round, and the callers that read streams from them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nsbridge_chaos::http::send;
use nsbridge_testkit::s3::S3Server;
use serde_json::Value;

use super::start::{part_command, unread_pipe};
use super::supervised_process::SupervisedProcess;
use super::{KEYRING, STEP_TIMEOUT, Stage};
use crate::follow::serves;
use crate::gate::Gate;
use crate::http_caller::{HttpCaller, Known, Manner};
use crate::journal::{Line, What};

/// File of the key that the gateways of a round share.
const STORE_KEY: &str = "store.key";

/// Time for streams of a gateway that is told to leave, in seconds.
const GRACE_S: u32 = 5;

/// Storage of the replies of a gateway.
pub(crate) enum Storage<'a> {
    /// Database of the gateway's own.
    Own,
    /// Bucket that all gateways use, and a prefix of it.
    Shared(&'a S3Server, &'static str),
}

impl Stage {
    /// Starts gateways, which are restarted whenever their processes end, and sends callers to them.
    pub(crate) fn start_gateways(&mut self, names: &[&str], storage: &Storage<'_>) -> Result<()> {
        let key = self.dir.join(STORE_KEY);
        if matches!(storage, Storage::Shared(..)) && !key.exists() {
            write_key(&key)?;
        }
        for name in names {
            let (path, environment) = self.write_gateway(name, storage)?;
            let (dir, log_is_not_read) = (self.dir.clone(), self.settings.log_is_not_read);
            let command = move |name: &str| {
                let mut command = part_command(&dir, name, "gateway", &path)?;
                if log_is_not_read {
                    command.stderr(unread_pipe()?);
                }
                command.envs(environment.iter().map(|(name, value)| (name, value)));
                Ok(command)
            };
            let gateway = SupervisedProcess::start(name, &self.journal, true, command)?;
            self.workers.insert((*name).to_owned(), gateway);
        }
        self.balance(names)
    }

    fn write_gateway(
        &self,
        name: &str,
        storage: &Storage<'_>,
    ) -> Result<(PathBuf, Vec<(&'static str, String)>)> {
        let (store, environment) = match storage {
            Storage::Own => (format!("path = \"{name}.redb\""), Vec::new()),
            Storage::Shared(bucket, at) => (
                format!(
                    "shared = \"s3://{at}\"\nendpoint_url = \"{}\"\nregion = \"us-east-1\"",
                    bucket.endpoint()
                ),
                vec![
                    ("AWS_ACCESS_KEY_ID", bucket.access_key().to_owned()),
                    ("AWS_SECRET_ACCESS_KEY", bucket.secret_key().to_owned()),
                ],
            ),
        };
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\ngrace_s = {GRACE_S}\n\
             [broker]\nurl = \"{}\"\n[keys]\nkeyring = \"{KEYRING}\"\n\
             [access]\nopen_to = \"chaos\"\n[store]\n{store}\nkey_file = \"{STORE_KEY}\"\n\
             [models.chaos]\nqueue = \"{}\"\ncontext = 512\n",
            self.addresses.text(""),
            self.model
        );
        let path = self.dir.join(format!("{name}.toml"));
        fs::write(&path, config)?;
        Ok((path, environment))
    }

    /// Waits until the current processes of these gateways take requests, and sends callers to them
    /// alone.
    pub(crate) fn balance(&mut self, names: &[&str]) -> Result<()> {
        let mut addresses = Vec::new();
        for name in names {
            let gateway = self.workers.get(*name).with_context(|| format!("no gateway {name}"))?;
            let serving = |lines: &[Line]| serves(lines, gateway.pid()?);
            let what = format!("{name} to take requests");
            addresses.push(self.follow.wait(&what, STEP_TIMEOUT, serving)?);
        }
        self.balanced.set(addresses);
        Ok(())
    }

    /// Sends callers nowhere: they wait.
    pub(crate) fn balance_to_none(&self) {
        self.balanced.set(Vec::new());
    }

    /// Lets the callers read that wait for the gate.
    pub(crate) fn open_gate(&self) -> Result<()> {
        Ok(Gate::in_dir(&self.dir).open()?)
    }

    /// Sends one request to a gateway, and returns the object of the response.
    pub(crate) fn ask_gateway(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let gateway = self.balanced.pick(0).context("no gateway takes requests")?;
        let answer = async {
            let response = send(gateway, method, path, "", &body.to_string()).await?;
            anyhow::Ok(serde_json::from_str(&response.whole().await?)?)
        };
        self.runtime.block_on(answer)
    }

    /// Starts the callers of all requests of the plan; `manners` has one for each.
    pub(crate) fn start_callers(&mut self, manners: Vec<Manner>) -> Result<()> {
        self.plan.rules.through_gateways = true;
        self.journal.note(What::Plan(self.plan.clone()))?;
        for (n, manner) in manners.into_iter().enumerate() {
            self.start_caller(n, manner);
        }
        Ok(())
    }

    /// Starts the caller of request `n` of a plan that is in the journal.
    pub(crate) fn start_caller(&self, n: usize, manner: Manner) {
        let caller = HttpCaller {
            journal: Arc::clone(&self.journal),
            balanced: self.balanced.clone(),
            ask: self.plan.asks[n].clone(),
            manner,
            gate: Gate::in_dir(&self.dir),
            known: Known::default(),
        };
        self.runtime.spawn(caller.run());
    }
}

/// Writes a random key that only its owner can read.
fn write_key(path: &Path) -> Result<()> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(writeln!(file, "{}", STANDARD.encode(key))?)
}
