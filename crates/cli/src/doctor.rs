//! `nsbridge doctor`: checks everything that a worker needs and suggests remedies.

mod deep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hyper::Uri;
use nsbridge::worker::Config;
use nsbridge_crypto::State;
use nsbridge_handler::source::LoadProgress;
use nsbridge_handler::{AsyncHandler, Models};
use nsbridge_judged::{Judge as _, JudgeOptions, Judged, JudgedOptions, Rules, RulesOptions};
use nsbridge_llama::{Embedder, Llama, NativeSpeed};
use nsbridge_openai::{OpenAi, OpenAiEmbedder};
use nsbridge_protocol::topology::{
    LARGEST_BODY, PROBE_KEY, REPLY_EXCHANGE, bulk_queue, control_queue, dead_queue, model_queue,
    reply_queue, run_record,
};
use nsbridge_protocol::{ModelName, Uuid};
use nsbridge_python::{EmbeddingTask, Engine, JudgeTask, Python};
use nsbridge_queue::{AmqpBroker, Broker, Connection, Error, Message};
use nsbridge_store::Store;
use nsbridge_top::management_address;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use toml::Value;

use crate::place;
use crate::progress::{Display, Shown};
use crate::terminal::{counted, print_line};
use crate::worker::images::WithImages;
use crate::worker::{Kind, Task, engine_options, server_options, within};

/// Time limit for loading a model, after which the load is taken to hang.
const LONGEST_LOAD: Duration = Duration::from_secs(600);

/// Time limit of a server that the worker does not start, in seconds. A worker waits longer for it.
const SERVER_LIMIT_S: i64 = 5;

/// Time limit of the checks on an open connection to the broker.
const BROKER_LIMIT: Duration = Duration::from_secs(20);

/// Polling interval of the broker's alarms.
const BLOCKED_POLL: Duration = Duration::from_millis(100);

/// Checks a worker's configuration, keys, broker and model, and suggests remedies.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge doctor --config examples/worker.toml")]
pub(crate) struct Arguments {
    /// Configuration file of the worker.
    #[arg(long, value_name = "FILE", default_value = "worker.toml")]
    config: PathBuf,
    /// Also asks AWS KMS whether the worker may decrypt, and compares the arguments of the model's queues
    /// by the broker's management API.
    #[arg(long)]
    deep: bool,
    /// Management API of the broker, for --deep [default: at the broker's host]
    #[arg(long, value_name = "URL", value_parser = management_address, requires = "deep")]
    management: Option<Uri>,
    /// Prints one JSON object per check.
    #[arg(long)]
    json: bool,
}

/// Message size of 17 MiB: more than RabbitMQ 4 accepts by default (16 MiB), and more than twice
/// what the protocol needs.
const TOO_LARGE: usize = 17 << 20;

/// Result of one check: a remark, or the problem.
type Finding = Result<String>;

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Each result is printed at once, because the next check may take minutes.
    let tell = |what, finding: Finding| {
        print(what, &finding, arguments.json)?;
        anyhow::Ok(finding.is_ok())
    };
    let config = match Config::read(&arguments.config, nsbridge_base::config::variables()) {
        Ok(mut config) => {
            within(&mut config, arguments.config.parent().unwrap_or(Path::new("")));
            config
        }
        Err(error) => {
            tell("configuration", Err(error.into()))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut looks = vec![
        tell("configuration", Ok(format!("serves {}", config.worker.model)))?,
        tell("keys", keys(&config))?,
    ];
    if arguments.deep {
        looks.push(tell("kms", place::wait_for(deep::kms(&config)))?);
    }
    looks.push(tell("broker", place::wait_for(broker(&config)))?);
    if arguments.deep {
        let management = arguments.management.as_ref();
        looks.push(tell("queues", place::wait_for(deep::queues(&config, management)))?);
    }
    looks.push(tell("model", place::wait_for(model(&config, Display::unless(arguments.json))))?);
    let healthy = looks.into_iter().all(|well| well);
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn keys(config: &Config) -> Finding {
    let Some(ring) = config.keys.load()? else {
        let kms = counted(config.keys.kms_keys.len() as u64, "key", "keys");
        return Ok(format!("no keyring; --deep tests the {kms} of `kms_keys`"));
    };
    let primary = ring.entries().iter().find(|entry| entry.state == State::Primary);
    let primary = primary.context("no key is primary")?;
    let keys = counted(ring.entries().len() as u64, "key", "keys");
    Ok(format!("{keys}; the primary key is {}, check value {}", primary.id, primary.check_value()))
}

/// Checks the broker within [`BROKER_LIMIT`].
async fn broker(config: &Config) -> Finding {
    let url = config.broker.read_url()?;
    let broker = AmqpBroker::new(&url)?;
    let connection = broker.connect("nsbridge doctor").await.context(
        "start the broker, or mend `[broker]` url, user and permissions (docs/broker.md)",
    )?;
    let found = tokio::select! {
        found = use_broker(config, &broker, &*connection) => found?,
        () = blocked(&*connection) => bail!(
            "the broker takes no messages, because it is low on memory or disk: \
             `rabbitmq-diagnostics alarms` names the node; free its memory or disk"
        ),
        () = sleep(BROKER_LIMIT) => bail!(
            "the broker accepts connections and did not answer within {} s: see its log",
            BROKER_LIMIT.as_secs()
        ),
    };
    connection.close().await;
    Ok(found)
}

/// Waits until the broker blocks publishers. It notifies a connection that publishes.
async fn blocked(connection: &dyn Connection) {
    while !connection.is_blocked() {
        sleep(BLOCKED_POLL).await;
    }
}

/// Does what a worker does: declares the model's queues and a control queue, keeps a run record, and
/// publishes on a second connection.
async fn use_broker(config: &Config, broker: &AmqpBroker, connection: &dyn Connection) -> Finding {
    let model = &config.worker.model;
    let second = broker.connect("nsbridge doctor publish").await;
    let second = second.context("a worker needs two connections, and the second one failed")?;
    let found = depths(config, connection).await?;
    connection.declare_model(model).await?;
    let control = control_queue(Uuid::now_v7().as_u128());
    connection.declare_control_queue(&control, model, None).await?;
    keep_a_record(connection, model).await?;
    can_reply(connection).await?;
    let large = takes_large(connection).await?;
    second.close().await;
    Ok(found + large)
}

/// Publishes to a client that does not exist, as a worker does before it takes requests.
async fn can_reply(connection: &dyn Connection) -> Result<()> {
    let reply = async {
        let publisher = connection.publisher().await?;
        let message = Message::new(Vec::new());
        publisher.publish(REPLY_EXCHANGE, PROBE_KEY, message).await?.await
    };
    reply.await.map(drop).context(
        "the broker's user cannot publish replies: allow it to write to `nsbridge.reply` \
         (docs/broker.md, Broker users)",
    )
}

/// Reads the depth of the model's queues, before they are declared.
async fn depths(config: &Config, connection: &dyn Connection) -> Finding {
    let (queue, dead) = (model_queue(&config.worker.model), dead_queue(&config.worker.model));
    Ok(match connection.depth(&queue).await {
        Ok(depth) => {
            let dead = connection.depth(&dead).await.map_or(0, |depth| depth.messages);
            let bulk = bulk_queue(&config.worker.model);
            let bulk = connection.depth(&bulk).await.map_or(0, |depth| depth.messages);
            let alone = depth.messages > 0 && depth.consumers == 0;
            let alone = if alone { "; no worker takes them: start one" } else { "" };
            format!(
                "reached; {queue} has {} waiting, {}, {} waiting, {}{alone}",
                depth.messages,
                counted(u64::from(depth.consumers), "consumer", "consumers"),
                counted(u64::from(bulk), "bulk request", "bulk requests"),
                counted(u64::from(dead), "dead letter", "dead letters"),
            )
        }
        Err(Error::NoQueue { .. }) => format!("reached; {queue} is new"),
        Err(error) => return Err(error.into()),
    })
}

/// Finds out whether the broker accepts large messages. They are sent to a client that does not
/// exist, so the broker returns them.
async fn takes_large(connection: &dyn Connection) -> Result<&'static str> {
    let nobody = reply_queue(Uuid::now_v7().as_u128());
    let takes = async |bytes| {
        let message = Message::new(vec![0; bytes]);
        let publisher = connection.publisher().await?;
        // A message that is too large closes its channel. The default exchange is always there; the
        // exchange of replies comes with the first worker.
        match publisher.publish("", &nobody, message).await {
            Ok(confirm) => Ok(confirm.await.is_ok()),
            Err(Error::Lost { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    if !takes(LARGEST_BODY).await? {
        bail!(
            "the broker refuses a message of {LARGEST_BODY} bytes, which a request or a resume may \
             have: set its max_message_size to 16777216"
        );
    }
    Ok(if takes(TOO_LARGE).await? {
        "; it takes messages of 17 MiB and more, of no use but to fill its disk: set its \
         max_message_size to 16777216"
    } else {
        ""
    })
}

/// Creates and removes a run record, as a worker does for a redelivered message. The permission for
/// it is easily forgotten.
async fn keep_a_record(connection: &dyn Connection, model: &ModelName) -> Result<()> {
    let queue = run_record(model, Uuid::now_v7().as_u128());
    let kept = async {
        connection.declare_run_record(&queue).await?;
        connection.strike_run_record(&queue).await
    };
    kept.await.context(
        "the broker's user cannot keep run records: allow it to configure and read \
         `nsbridge.<model>.runs.*` (docs/broker.md, Broker users)",
    )
}

async fn model(config: &Config, display: Display) -> Finding {
    let kind = Kind::of(config);
    if kind == Kind::Judge {
        let rules = toml_to(config.judge.clone().unwrap_or_default(), "judge")?;
        Rules::load(rules, &Models::default()).map_err(|error| anyhow!("{error}"))?;
        return Ok("none; the rules of [judge] can be used".to_owned());
    }
    let store = Store::open(&config.store)?;
    let progress = LoadProgress::default();
    let mut models = Vec::new();
    for (name, model) in &config.models {
        models.push((name.clone(), store.model(model.wanted()).await?.model.tracked(&progress)));
    }
    let models: Models = models.into_iter().collect();
    let _shown = Shown::of_load("loading the model", display, progress);
    if kind == Kind::Python {
        return python(config, models).await;
    }
    if let Kind::Server(task) = kind {
        let place = config.handler.get("url").and_then(Value::as_str).unwrap_or_default();
        let took = loads(place, LONGEST_LOAD, server_load(config, task, models)?).await?;
        return Ok(format!("the server at {place} can be used; it took {took:.1} s"));
    }
    let place = models.require("target").map_err(|error| anyhow!("{error}"))?.place();
    if let Kind::Engine(task) = kind {
        let took = loads(&place, LONGEST_LOAD, engine_load(config, task, models)?).await?;
        return Ok(format!("the engine loads {place} in {took:.1} s"));
    }
    let options = toml_to(config.handler.clone(), "handler")?;
    let judge: Option<JudgeOptions<RulesOptions>> = match (kind, &config.judge) {
        (Kind::JudgedText, Some(table)) => Some(toml_to(table.clone(), "judge")?),
        _ => None,
    };
    let load = move || {
        Handle::current().block_on(async {
            if kind == Kind::Embeddings {
                return Embedder::load(options, models).await?.warm_up().await;
            }
            let options = JudgedOptions { judge, own: options };
            Judged::<Llama>::load(options, models).await?.warm_up().await
        })
    };
    let took = loads(&place, LONGEST_LOAD, load).await?;
    let native = native(&config.handler)?;
    Ok(format!("{place} loads and makes a token in {took:.1} s{native}"))
}

/// Returns a remark on the native arithmetic, where a worker could use it and does not.
fn native(options: &toml::Table) -> Result<String> {
    let is_on_cpu = options.get("device").and_then(Value::as_str).is_none_or(|name| name == "cpu");
    let is_native = options.get("arithmetic").and_then(Value::as_str) == Some("native");
    let speed =
        NativeSpeed::measure()?.filter(|speed| is_on_cpu && !is_native && speed.ratio > 1.0);
    Ok(speed.map_or_else(String::new, |NativeSpeed { tier, ratio, .. }| {
        format!(
            "; if it is in bf16, arithmetic = \"native\" would make its prompts' products {ratio:.1} \
             times as fast ({tier}), with replies of its own"
        )
    }))
}

/// Returns the load of a model by an engine.
fn engine_load(config: &Config, task: Task, models: Models) -> Result<Load> {
    let options = engine_options(config, task)?;
    match task {
        Task::Text | Task::JudgedText => load_of::<WithImages<Engine>>(options, models),
        Task::Embeddings => load_of::<Engine<EmbeddingTask>>(options, models),
        Task::Judge => load_of::<Engine<JudgeTask>>(options, models),
    }
}

/// Load of a model, which may block.
type Load = Box<dyn FnOnce() -> nsbridge_handler::Result<()> + Send>;

/// Returns the load of a model by a handler.
fn load_of<H: AsyncHandler>(options: toml::Table, models: Models) -> Result<Load> {
    let options: H::Options = toml_to(options, "handler")?;
    Ok(Box::new(move || Handle::current().block_on(H::load(options, models)).map(drop)))
}

/// Returns the load of a worker in front of a server.
fn server_load(config: &Config, task: Task, models: Models) -> Result<Load> {
    let mut options = server_options(config, task)?;
    if !options.contains_key("command") {
        options.insert("load_timeout_s".to_owned(), Value::Integer(SERVER_LIMIT_S));
    }
    match task {
        Task::Embeddings => load_of::<OpenAiEmbedder>(options, models),
        _ => load_of::<WithImages<OpenAi>>(options, models),
    }
}

async fn python(config: &Config, models: Models) -> Finding {
    let options: nsbridge_python::Options = toml_to(config.handler.clone(), "handler")?;
    let place = options.entry_point.display().to_string();
    let load = move || Handle::current().block_on(Python::load(options, models));
    let took = loads(&place, LONGEST_LOAD, move || load().map(drop)).await?;
    Ok(format!("{place} loads in {took:.1} s"))
}

/// Loads a model on a blocking thread, which is abandoned if the load hangs. Returns the seconds that
/// it took.
async fn loads(
    place: &str,
    longest: Duration,
    load: impl FnOnce() -> nsbridge_handler::Result<()> + Send + 'static,
) -> Result<f64> {
    let started = Instant::now();
    match timeout(longest, tokio::task::spawn_blocking(load)).await {
        Ok(loaded) => loaded?.map_err(|error| anyhow!("{error}"))?,
        Err(_) => bail!("{place} did not load within {} s", longest.as_secs()),
    }
    Ok(started.elapsed().as_secs_f64())
}

fn toml_to<T: DeserializeOwned>(table: toml::Table, section: &str) -> Result<T> {
    table.try_into().map_err(|error| anyhow!("[{section}] {}", error.message()))
}

fn print(what: &str, finding: &Finding, as_json: bool) -> std::io::Result<()> {
    let (ok, said) = match finding {
        Ok(said) => (true, said.clone()),
        Err(error) => (false, nsbridge_base::chain(error.as_ref())),
    };
    if as_json {
        print_line(&json!({ "check": what, "ok": ok, "said": said }).to_string())
    } else {
        print_line(&format!("{} {what}: {said}", if ok { "ok  " } else { "FAIL" }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::loads;
    use crate::place::wait_for;

    #[test]
    fn a_load_that_hangs_is_told_and_not_waited_for() {
        let ended = Arc::new(AtomicBool::new(false));
        let load = {
            let ended = ended.clone();
            move || {
                // Long enough to count as hanging, but finite for a mutant that waits for it.
                std::thread::sleep(Duration::from_secs(20));
                ended.store(true, Ordering::Relaxed);
                Ok(())
            }
        };
        let found = wait_for(loads("./tale-7m", Duration::from_millis(10), load));
        assert!(found.unwrap_err().to_string().contains("./tale-7m did not load within"));
        assert!(!ended.load(Ordering::Relaxed), "the load was waited for");
    }
}
