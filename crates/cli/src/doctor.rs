//! `nsbridge doctor`: looks at everything a worker needs, and says what to do.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nsbridge::Config;
use nsbridge::store::Store;
use nsbridge_crypto::State;
use nsbridge_handler::{Handler, Models};
use nsbridge_llama::Llama;
use nsbridge_protocol::topology::{dead_queue, model_queue};
use nsbridge_queue::{AmqpBroker, Broker, Error};
use serde_json::json;

/// Checks configuration, keys, broker and model of a worker, and says what to do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge doctor --config examples/worker.toml")]
pub(crate) struct Arguments {
    /// The worker's configuration.
    #[arg(long, value_name = "FILE", default_value = "worker.toml")]
    config: PathBuf,
    /// One JSON object per check.
    #[arg(long)]
    json: bool,
}

/// What one look found: a remark, or what is wrong.
type Finding = Result<String>;

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let config = Config::read(&arguments.config, std::env::vars());
    let mut findings: Vec<(&str, Finding)> = Vec::new();
    match config {
        Ok(config) => {
            let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
            let serves = format!("serves {}", config.worker.model);
            findings.push(("configuration", Ok(serves)));
            findings.push(("keys", keys(&config)));
            findings.push(("broker", runtime.block_on(broker(&config))));
            findings.push(("model", runtime.block_on(model(&config))));
        }
        Err(error) => findings.push(("configuration", Err(error.into()))),
    }
    let healthy = findings.iter().all(|(_, finding)| finding.is_ok());
    for (what, finding) in &findings {
        print(what, finding, arguments.json);
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn keys(config: &Config) -> Finding {
    let kms = config.keys.kms_keys.len();
    let Some(ring) = config.keys.load()? else {
        return Ok(format!("no keyring; {kms} named on `kms_keys`, and AWS KMS was not asked"));
    };
    let primary = ring.entries().iter().find(|entry| entry.state == State::Primary);
    let primary = primary.context("no key is primary")?;
    let count = ring.entries().len();
    Ok(format!("{count} in the ring, {} seals, check value {}", primary.id, primary.check_value()))
}

async fn broker(config: &Config) -> Finding {
    let url = config.broker.read_url()?;
    let connection = AmqpBroker::new(&url)?.connect("nsbridge doctor").await?;
    let (queue, dead) = (model_queue(&config.worker.model), dead_queue(&config.worker.model));
    let found = match connection.depth(&queue).await {
        Ok(depth) => {
            let dead = connection.depth(&dead).await.map_or(0, |depth| depth.messages);
            format!(
                "reached; {queue} has {} waiting, {} consumers, {dead} dead letters",
                depth.messages, depth.consumers
            )
        }
        Err(Error::NoQueue { .. }) => format!("reached; {queue} comes with its first worker"),
        Err(error) => return Err(error.into()),
    };
    connection.close().await;
    Ok(found)
}

async fn model(config: &Config) -> Finding {
    let options = toml_to(&config.handler)?;
    let store = Store::open(&config.store)?;
    let mut models = Vec::new();
    for (name, model) in &config.models {
        models.push((name.clone(), store.model(model.wanted()).await?.model));
    }
    let models: Models = models.into_iter().collect();
    let place = models.get("target").map_err(|error| anyhow!("{error}"))?.place();
    let started = std::time::Instant::now();
    let loading = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(async {
            let llama = Llama::load(options, models).await?;
            Handler::warm_up(&llama).await
        })
    });
    match tokio::time::timeout(Duration::from_secs(600), loading).await {
        Ok(loaded) => loaded?.map_err(|error| anyhow!("{error}"))?,
        Err(_) => bail!("{place} did not load within 10 minutes"),
    }
    let took = started.elapsed().as_secs_f64();
    Ok(format!("{place} loads and makes a token in {took:.1} s"))
}

fn toml_to(table: &toml::Table) -> Result<nsbridge_llama::Options> {
    table.clone().try_into().map_err(|error| anyhow!("[handler] {}", error.message()))
}

#[expect(clippy::print_stdout, reason = "the findings are this command's result")]
fn print(what: &str, finding: &Finding, as_json: bool) {
    let (ok, said) = match finding {
        Ok(said) => (true, said.clone()),
        Err(error) => (false, nsbridge::chain(error.as_ref())),
    };
    if as_json {
        println!("{}", json!({ "check": what, "ok": ok, "said": said }));
    } else {
        println!("{} {what}: {said}", if ok { "ok  " } else { "FAIL" });
    }
}
