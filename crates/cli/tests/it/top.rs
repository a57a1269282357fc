//! `nsbridge top` on a real broker, with real workers and gateways, and on a real terminal.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nsbridge_queue::{AmqpBroker, Broker as _, Connection, Message};
use nsbridge_testkit::Rabbit;
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::door::Door;
use crate::place::{Place, Process, model, nsbridge, output};
use crate::terminal::terminal;

/// Returns an address that was free a moment ago.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs `nsbridge top --json` with a broker and returns its exit code and the figures.
#[track_caller]
fn top(broker: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = nsbridge(&[&["top", "--json"], arguments].concat());
    let output = command.env("NSBRIDGE_BROKER__URL", broker).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let figures = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(err, "");
    (output.status.code(), figures)
}

/// Runs `work` again and again on a thread until `seen` has returned a result.
fn meanwhile<T>(work: impl Fn() + Sync, mut seen: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // The thread ends even if `seen` panics.
        let _end = End(&ended);
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                work();
            }
        });
        loop {
            if let Some(found) = seen() {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the figures did not come");
        }
    })
}

/// Tells a thread to end when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects to a broker and runs `work` on the connection.
fn on_broker<T>(url: &str, work: impl AsyncFnOnce(&dyn Connection) -> T) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let connection = AmqpBroker::new(url).unwrap().connect("a test").await.unwrap();
        let done = work(&*connection).await;
        connection.close().await;
        done
    })
}

/// Publishes this many messages to a queue.
async fn publish(connection: &dyn Connection, queue: &str, count: usize) {
    let publisher = connection.publisher().await.unwrap();
    for _ in 0..count {
        let message = Message::new(vec![7]);
        publisher.publish("", queue, message).await.unwrap().await.unwrap();
    }
}

#[test]
fn a_worker_and_its_queues_are_read() {
    let place = Place::new();
    let address = free();
    place.configure(&format!("[health]\nlisten = \"{address}\"\n"));
    let draft = model().with_file_name("tale-1m").to_str().unwrap().to_owned();
    let _worker = place.worker_in(&[
        ("NSBRIDGE_MODELS__DRAFT", draft),
        ("NSBRIDGE_HANDLER__SPECULATIVE_ADAPTIVE", "false".to_owned()),
    ]);
    let dead = format!("nsbridge.{}.dead", place.model);
    on_broker(&place.url, async |connection| publish(connection, &dead, 2).await);
    let sources = ["--model", &place.model, "--metrics", &address, "--broker", &place.url];
    let ask = || {
        let asked = place.ask(&["--max-tokens", "40", "--seed", "7", "Once a bear"]).output();
        assert!(asked.unwrap().status.success());
    };
    let figures = meanwhile(ask, || {
        let (code, figures) = top(&place.url, &sources);
        assert_eq!(code, Some(0), "{figures}");
        let has_all = figures["workers"][0]["first_token_p95_s"].is_f64()
            && figures["models"][0]["dead"] == 2;
        has_all.then_some(figures)
    });
    let (model, worker) = (&figures["models"][0], &figures["workers"][0]);
    assert_eq!(figures["problems"], serde_json::json!([]), "{figures}");
    assert_eq!(model["model"], *place.model);
    assert!(model["consumers"].as_u64() >= Some(1), "{figures}");
    for level in ["ready", "bulk", "retry", "dead_new"] {
        assert!(model[level].is_u64(), "{level}: {figures}");
    }
    assert_eq!(worker["address"], *address);
    assert_eq!((&worker["model"], &worker["state"]), (&model["model"], &"ready".into()));
    assert_eq!(worker["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(worker["slots"], 8);
    for figure in ["tokens_per_s", "requests_per_s", "first_token_p50_s", "drafts_accepted"] {
        assert!(worker[figure].as_f64() > Some(0.0), "{figure}: {figures}");
    }
    assert_eq!(worker["errors_per_s"], 0.0);
    assert!(worker["prefix_cache_hits"].is_f64(), "{figures}");
    assert_eq!(figures["total"]["tokens_per_s"], worker["tokens_per_s"]);

    let (output, text, _) = output(&[&["top", "--once"], &sources[..]].concat());
    assert!(output.status.success(), "{text}");
    let version = env!("CARGO_PKG_VERSION");
    for part in ["NO PROBLEMS\n", "MODELS\n", "WORKERS by worker\n", &address, version, "ready"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let login = place.url.split_once("://").unwrap().1.split_once('@').unwrap().0;
    assert!(!text.contains(login) && !text.contains('\u{1b}'), "{text}");
    on_screen(&sources);
}

/// Shows a worker on a terminal, and ends the command in each of its ways.
fn on_screen(sources: &[&str]) {
    let quit =
        |keys: &'static [u8]| move |_: &Process, person: &mut File| person.write_all(keys).unwrap();
    ends_in_good_order(sources, quit(b"q"));
    ends_in_good_order(sources, quit(b"w?p\x1b[B\x1b[C\x03"));
    ends_in_good_order(sources, |top, _| top.signal("-TERM"));
}

#[track_caller]
fn ends_in_good_order(sources: &[&str], end: impl FnOnce(&Process, &mut File)) {
    let (mut person, side) = terminal();
    let size = Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&person, size).unwrap();
    let modes =
        |termios: &Termios| (termios.local_modes, termios.input_modes, termios.output_modes);
    let before = modes(&tcgetattr(&side).unwrap());
    let mut command = nsbridge(&[&["top", "--interval", "0.5"], sources].concat());
    command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap());
    let mut top = Process(command.spawn().unwrap());
    // The command keeps copies of the terminal, which would never end for its reader.
    drop(command);
    let mut seen = String::new();
    let mut part = [0; 4096];
    while !(seen.contains("WORKERS") && seen.contains("ready")) {
        let length = person.read(&mut part).unwrap();
        seen += &String::from_utf8_lossy(&part[..length]);
    }
    let within = modes(&tcgetattr(&side).unwrap());
    assert!(
        !within.0.intersects(LocalModes::ICANON | LocalModes::ECHO),
        "keys are not read at once"
    );
    end(&top, &mut person);
    assert_eq!(top.code(), Some(0));
    assert_eq!(modes(&tcgetattr(&side).unwrap()), before);
    drop(side);
    let mut rest = Vec::new();
    let _ = person.read_to_end(&mut rest);
    seen += &String::from_utf8_lossy(&rest);
    // Both screens of the terminal, and its cursor.
    let (entered, left) = (seen.find("\u{1b}[?1049h"), seen.rfind("\u{1b}[?1049l"));
    assert!(entered.is_some() && left > entered, "{seen:?}");
    assert!(seen.rfind("\u{1b}[?25h") > seen.rfind("\u{1b}[?25l"), "{seen:?}");
}

#[test]
fn a_gateway_is_read() {
    let door = Door::new();
    let address = free();
    let config = door.place.path("gateway.toml");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("[server]\n", &format!("[server]\nmetrics = \"{address}\"\n"));
    fs::write(&config, &text).unwrap();
    let _gateway = door.open();
    let public = text.split_once("listen = \"").unwrap().1.split_once('"').unwrap().0;
    // A request without a key is refused.
    let ask = || {
        let mut stream = TcpStream::connect(public).unwrap();
        stream
            .write_all(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        thread::sleep(Duration::from_millis(50));
    };
    let figures = meanwhile(ask, || {
        let (code, figures) =
            top("amqp://localhost", &["--metrics", &address, "--interval", "0.5"]);
        assert_eq!(code, Some(0), "{figures}");
        (figures["gateways"][0]["refused_per_s"].as_f64() > Some(0.0)).then_some(figures)
    });
    let gateway = &figures["gateways"][0];
    assert_eq!((&gateway["address"], &gateway["state"]), (&(*address).into(), &"serves".into()));
    assert!(gateway["requests_per_s"].as_f64() > Some(0.0), "{figures}");
    for figure in ["failed_per_s", "reattached_per_s"] {
        assert_eq!(gateway[figure], 0.0, "{figures}");
    }
    assert_eq!((&gateway["streams"], &gateway["running"]), (&0.into(), &0.into()));
    assert_eq!((&figures["broker"], &figures["models"]), (&Value::Null, &serde_json::json!([])));
}

#[test]
fn the_management_api_lists_the_queues_of_all_models() {
    let (rabbit, api) = Rabbit::with_management().unwrap();
    let reply = "nsbridge.reply.00000000000000000000000000000007";
    on_broker(&rabbit.url(), async |connection| {
        for model in ["one", "other"] {
            connection.declare_model(&model.parse().unwrap()).await.unwrap();
        }
        connection.declare_reply_queue(reply).await.unwrap();
        publish(connection, "nsbridge.one", 3).await;
        publish(connection, "nsbridge.other.bulk.retry.60s", 1).await;
        publish(connection, reply, 1).await;
    });
    // The path of an address may end with a slash.
    let api = format!("{api}/");
    let read = |url: &str| top(url, &["--management", &api, "--interval", "1"]);
    // The API knows the level of a queue after some seconds.
    let figures = meanwhile(
        || thread::sleep(Duration::from_millis(50)),
        || {
            let figures = read(&rabbit.url()).1;
            (figures["models"][0]["ready"] == 3 && figures["models"][1]["retry"] == 1)
                .then_some(figures)
        },
    );
    let models = figures["models"].as_array().unwrap();
    let names: Vec<_> = models.iter().map(|model| model["model"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "other"]);
    for model in models {
        assert_eq!((&model["consumers"], &model["in_work"]), (&0.into(), &0.into()), "{figures}");
        assert!(model["published_per_s"].is_f64() && model["settled_per_s"].is_f64(), "{figures}");
    }
    let said =
        ["3 requests of one wait and no worker takes them", "no worker takes requests of other"];
    assert_eq!(figures["problems"], serde_json::json!(said));

    let (code, figures) = read(&rabbit.url().replace("guest:guest", "guest:wrong"));
    let problem = figures["problems"][0].as_str().unwrap();
    assert!(code == Some(1) && problem.contains("it refused the login"), "{figures}");
    assert!(!problem.contains("wrong"), "{problem}");
    let (code, figures) = read(&rabbit.url().replace("%2f", "nowhere"));
    let problem = figures["problems"][0].as_str().unwrap();
    assert!(code == Some(1) && problem.contains("cannot be read"), "{figures}");
}

#[test]
fn sources_that_cannot_be_read_are_said_and_fail_the_command() {
    let place = Place::new();
    let (code, figures) = top(&place.url, &["--model", &place.model]);
    let said = format!("{} has no queue: no worker ever served it", place.model);
    assert_eq!((code, &figures["problems"]), (Some(0), &serde_json::json!([said])));

    let (closed, mq) = (free(), free());
    let broker = format!("amqp://me:canary@{mq}/%2f");
    let sources = ["--interval", "0.5", "--model", "m", "--metrics", &closed];
    let mut command = nsbridge(&[&["top", "--once"], &sources[..]].concat());
    let output = command.env("NSBRIDGE_BROKER__URL", &broker).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let said = [
        format!("! the broker amqp://{mq}/%2f cannot be read: "),
        format!("! {closed} cannot be read: cannot connect: Connection refused"),
    ];
    for said in said {
        assert!(text.contains(&said), "{said}: {text}");
    }
    assert!(!text.contains("canary") && !text.contains("next attempt"), "{text}");
}

#[test]
fn a_command_line_without_sources_or_terminal_is_refused() {
    let fail = |arguments: &[&str]| {
        let (output, _, err) = output(&[&["top"], arguments].concat());
        (output.status.code(), err)
    };
    let (code, err) = fail(&[]);
    assert!(code == Some(2) && err.contains("--metrics"), "{err}");
    let (code, err) = fail(&["--management", "http://me:canary@mq:15672"]);
    assert!(code == Some(2) && err.contains("no user and no password"), "{err}");
    let (code, err) = fail(&["--model", "m", "--interval", "0"]);
    assert!(code == Some(2) && err.contains("0.5 to 3600"), "{err}");
    let (code, err) = fail(&["--model", "m"]);
    assert!(code == Some(1) && err.contains("--once"), "{err}");
}
