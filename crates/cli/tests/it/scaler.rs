//! `nsbridge scaler` on a real broker, with workers' pages, and with CloudWatch and ECS as moto serves them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use nsbridge_queue::{AmqpBroker, Broker as _, Connection, Consumer, Message};
use nsbridge_testkit::http::{Answer, Server};
use nsbridge_testkit::{Moto, Rabbit};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::place::{Process, nsbridge, output, until};

/// Metrics page of a worker whose replies have 150 tokens each.
const PAGE: &str = "nsbridge_slots{model=\"tale\"} 8\n";

/// Returns an address that was free a moment ago.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Node with the management API, a scaler's configuration for it, and scalers.
struct Fleet {
    rabbit: Rabbit,
    url: String,
    api: String,
    dir: TempDir,
}

impl Fleet {
    fn new() -> Self {
        let (rabbit, api) = Rabbit::with_management().unwrap();
        // The user of docs/scaling.md.
        let tale = r"tale(\.(bulk|dead|(bulk\.)?retry\.(1s|10s|60s)))?";
        let configure = format!(r"^(nsbridge-scaler\.tale|nsbridge\.(control|reply|{tale}))$");
        let of_queues = format!(r"^nsbridge\.{tale}$");
        let write = r"^amq\.default$";
        let rights = ["set_permissions", "-p", "/", "scaler", &configure, write, &of_queues];
        for arguments in [
            &["add_user", "scaler", "canary"][..],
            &["set_user_tags", "scaler", "management"],
            &rights,
        ] {
            rabbit.ctl(arguments).unwrap();
        }
        let url = rabbit.url().replace("guest:guest", "scaler:canary");
        Self { rabbit, url, api, dir: TempDir::new().unwrap() }
    }

    /// Writes a configuration with `more` at the end of the model's table, and returns its path.
    fn config(&self, name: &str, more: &str) -> String {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[management]\nurl = \"{}\"\n\
             [decisions]\ninterval_s = 1\n[models.tale]\n{more}\n[models.tale.policy]\nmax = 9\n\
             rule = {{ kind = \"backlog-seconds\", worker_tokens_per_s = 100.0 }}\n",
            self.api
        );
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Starts a scaler and returns it with the address of its pages.
    fn scaler(&self, config: &str, arguments: &[&str], moto: Option<&Moto>) -> (Process, String) {
        let log = format!("{config}-{}.log", arguments.len());
        let mut command = nsbridge(&["scaler", "--config", config]);
        command.args(arguments).env("NSBRIDGE_BROKER__URL", &self.url);
        if let Some(moto) = moto {
            command.env("AWS_ENDPOINT_URL", moto.url()).env("AWS_REGION", "eu-central-1");
            command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
        }
        let process = start(command, &log);
        let address = || {
            let log = fs::read_to_string(&log).unwrap();
            let (_, rest) = log.split_once("listening at ")?;
            rest.split_once('\n').map(|(address, _)| address.to_owned())
        };
        until(|| address().is_some());
        (process, address().unwrap())
    }
}

fn start(mut command: Command, log: &str) -> Process {
    let decisions = fs::File::create(Path::new(log).with_extension("jsonl")).unwrap();
    let child = command.stdout(decisions).stderr(fs::File::create(log).unwrap()).spawn().unwrap();
    Process(child)
}

/// Returns the status and the JSON of a page. Asks at a pace that leaves the processor to the broker.
fn page(address: &str, path: &str) -> (u16, Value) {
    std::thread::sleep(std::time::Duration::from_millis(100));
    let output = Command::new("curl")
        .args(["-s", "-w", "\n%{http_code}", &format!("http://{address}{path}")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

fn metrics(address: &str) -> String {
    let output = Command::new("curl").args(["-s", &format!("http://{address}/metrics")]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn desired(address: &str) -> Option<u64> {
    page(address, "/v1/desired/tale").1["desired"].as_u64()
}

/// Client of the fleet's broker, with a runtime of its own.
struct Client {
    runtime: tokio::runtime::Runtime,
    connection: std::sync::Arc<dyn Connection>,
}

impl Client {
    fn new(url: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let connection = runtime.block_on(AmqpBroker::new(url).unwrap().connect("a test")).unwrap();
        Self { runtime, connection }
    }

    fn publish(&self, queue: &str, count: usize) {
        self.runtime.block_on(async {
            let publisher = self.connection.publisher().await.unwrap();
            for _ in 0..count {
                let message = Message::new(b"sealed".to_vec());
                publisher.publish("", queue, message).await.unwrap().await.unwrap();
            }
        });
    }

    fn consume(&self, queue: &str) -> Consumer {
        self.runtime.block_on(self.connection.consume(queue, 8)).unwrap()
    }
}

#[test]
fn the_number_follows_the_queue_and_is_told_to_cloudwatch_and_ecs() {
    let (fleet, moto) = (Fleet::new(), Moto::start().unwrap());
    let ecs = |action: &str, body: Value| {
        let action = format!("AmazonEC2ContainerServiceV20141113.{action}");
        moto.call("ecs", &action, &body.to_string()).unwrap()
    };
    ecs("CreateCluster", json!({ "clusterName": "fleet" }));
    let container = json!({ "name": "worker", "image": "nsbridge", "memory": 64 });
    ecs(
        "RegisterTaskDefinition",
        json!({ "family": "worker", "containerDefinitions": [container] }),
    );
    let service = json!({
        "cluster": "fleet", "serviceName": "spot", "taskDefinition": "worker", "desiredCount": 0,
    });
    ecs("CreateService", service);

    // Two replies of 150 tokens between two readings of the page.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let readings = std::sync::atomic::AtomicU64::new(0);
    let workers = runtime.block_on(Server::start(move |_| {
        let number = readings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let usage = "nsbridge_token_usage";
        let (replies, tokens) = (number * 2, number * 300);
        Answer::new(200, &format!(
            "{PAGE}{usage}_count{{type=\"output\"}} {replies}\n{usage}_sum{{type=\"output\"}} {tokens}\n"
        ))
    }));
    let workers = workers.unwrap();
    let address = workers.url("").replace("http://", "");
    let more = format!(
        "workers = [\"{address}\"]\necs = {{ cluster = \"fleet\", service = \"spot\", \
         other_workers = 1 }}\n"
    );
    let config = fleet.config("scaler.toml", &more);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("[cloudwatch]\n{text}")).unwrap();
    let (mut scaler, address) = fleet.scaler(&config, &[], Some(&moto));

    // The scaler has declared the queue: a request waits before any worker has run.
    until(|| desired(&address) == Some(0));
    let client = Client::new(&fleet.rabbit.url());
    client.publish("nsbridge.tale", 30);
    // 30 requests of 150 tokens, worked off in 15 s at 100 tokens/s, and what arrives.
    until(|| desired(&address) >= Some(3));
    until(|| {
        let told = page(&address, "/v1/desired/tale").1;
        let seen = &told["observation"];
        seen["tokens_per_request"] == 150.0 && seen["running"] == 0 && told["backlog_s"] == 45.0
    });
    assert_eq!(page(&address, "/readyz").0, 200);
    assert_eq!(page(&address, "/v1/desired/other").0, 404);

    // A worker comes.
    let _consumer = client.consume("nsbridge.tale");
    until(|| page(&address, "/v1/desired/tale").1["observation"]["running"] == 1);
    let shown = json!({ "cluster": "fleet", "services": ["spot"] });
    let tasks = |answer: &str| {
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        body["services"][0]["desiredCount"].as_u64()
    };
    // Between two decisions both say the same.
    until(|| {
        let wanted = desired(&address).map(|number| number.saturating_sub(1));
        tasks(&ecs("DescribeServices", shown.clone())) == wanted
    });
    let listed = moto
        .query("monitoring", "Action=ListMetrics&Version=2010-08-01&Namespace=nsbridge")
        .unwrap();
    for part in ["DesiredWorkers", "BacklogSeconds", "<Name>Model</Name>", "<Value>tale</Value>"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let text = metrics(&address);
    for line in [
        "nsbridge_scaler_running_workers{model=\"tale\"} 1\n",
        "nsbridge_scaler_leads{model=\"tale\"} 1\n",
        "nsbridge_scaler_failures_total{task=\"ecs\"} 0\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    scaler.signal("-TERM");
    assert_eq!(scaler.code(), Some(0));
    let log = fs::read_to_string(format!("{config}-0.log")).unwrap();
    assert!(!log.contains("WARN") && !log.contains("canary"), "{log}");

    // The log leads to the same decisions, and under another policy to others.
    let log = Path::new(&format!("{config}-0.log")).with_extension("jsonl");
    let log = log.to_str().unwrap();
    let lines = fs::read_to_string(log).unwrap().lines().count();
    assert!(lines > 3);
    let (ended, out, err) = output(&["scaler", "--config", &config, "--replay", log]);
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    assert_eq!(out, format!("{lines} decisions, 0 of them different\n"));
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("max = 9", "max = 2")).unwrap();
    let (ended, out, _) = output(&["scaler", "--config", &config, "--replay", log]);
    assert_eq!(ended.status.code(), Some(1), "{out}");
    assert!(out.contains("replayed: 2 workers: the load needs"), "{out}");
}

#[test]
fn one_of_two_scalers_decides_and_the_other_takes_over() {
    let fleet = Fleet::new();
    let config = fleet.config("scaler.toml", "");
    let (mut first, one) = fleet.scaler(&config, &[], None);
    until(|| desired(&one) == Some(0));
    let (_second, other) = fleet.scaler(&config, &["--dry-run"], None);
    until(|| {
        page(&other, "/readyz").1["models"]["tale"] == "another scaler decides for this model"
    });
    assert_eq!(page(&other, "/v1/desired/tale").0, 503);
    assert_eq!(page(&other, "/livez").0, 200);
    first.signal("-KILL");
    first.code();
    until(|| desired(&other) == Some(0));
}

#[test]
fn a_broker_that_cannot_be_read_is_said_once_and_no_number_is_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("scaler.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[management]\nurl = \"http://{}\"\n\
         [decisions]\ninterval_s = 1\n[models.tale]\n\
         policy = {{ max = 2, rule = {{ kind = \"fixed\", workers = 2 }} }}\n",
        free()
    );
    fs::write(&path, &text).unwrap();
    let path = path.to_str().unwrap();
    let log = format!("{path}.log");
    let mut command = nsbridge(&["scaler", "--config", path]);
    command.env("NSBRIDGE_BROKER__URL", nsbridge_testkit::amqp_url());
    let mut scaler = start(command, &log);
    let said = || fs::read_to_string(&log).unwrap();
    until(|| said().contains("cannot connect: Connection refused"));
    let address = said().split("listening at ").nth(1).unwrap().lines().next().unwrap().to_owned();
    until(|| {
        let failures = metrics(&address);
        let failures = failures.lines().find_map(|line| {
            line.strip_prefix("nsbridge_scaler_failures_total{task=\"management\"} ")
        });
        failures.unwrap().parse::<u32>().unwrap() > 2
    });
    assert_eq!(said().matches("Connection refused").count(), 1, "{}", said());
    scaler.signal("-INT");
    assert_eq!(scaler.code(), Some(0), "{}", said());
    assert_eq!(fs::read_to_string(Path::new(&log).with_extension("jsonl")).unwrap(), "");
}

#[test]
fn a_configuration_that_cannot_be_used_is_one_sentence() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("scaler.toml");
    let path = path.to_str().unwrap();
    let good = "[broker]\nurl = \"amqp://localhost\"\n[management]\nurl = \"http://localhost:15672\"\n\
        [models.tale]\npolicy = { max = 2, rule = { kind = \"fixed\", workers = 2 } }\n";
    for (from, to, expected) in [
        ("max = 2", "max = 1", "rule.workers is 2: set it to a number from min to max, 0 to 1"),
        ("\"fixed\"", "\"fixd\"", "unknown variant `fixd`"),
        ("[models.tale]", "[models.\"a b\"]", "a b"),
        ("url = \"amqp://localhost\"", "", "[broker] needs exactly one of `url`, `urls`"),
        ("[models.tale]", "[cloudwatch]\n[models.tale]", "no region is set: set AWS_REGION"),
    ] {
        fs::write(path, good.replace(from, to)).unwrap();
        let mut command = nsbridge(&["scaler", "--config", path]);
        command.env("AWS_EC2_METADATA_DISABLED", "true").env_remove("AWS_REGION");
        let ended = command.output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{err}");
        assert!(err.contains(expected) && err.contains("error: "), "{err}");
    }
    let (ended, _, err) = output(&["scaler", "--config", "/no/such.toml"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(err.contains("cannot read /no/such.toml"), "{err}");
}
