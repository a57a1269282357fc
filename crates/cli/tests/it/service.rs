//! Services of systemd: what a worker and a gateway tell the socket of their service manager.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nsbridge_testkit::Proxy;

use crate::door::Door;
use crate::model::{Bucket, PLACE};
use crate::place::{Place, Process, model, nsbridge, until};

/// Time limit of the watchdog in these tests.
const WATCHDOG: Duration = Duration::from_secs(1);

const PING: &str = "WATCHDOG=1";

/// Socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(place: &Place) -> Self {
        let path = place.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { socket, path }
    }

    fn environment(&self) -> [(&'static str, String); 2] {
        let limit = WATCHDOG.as_micros().to_string();
        [("NOTIFY_SOCKET", self.path.clone()), ("WATCHDOG_USEC", limit)]
    }

    /// Returns the next notice.
    #[track_caller]
    fn next(&self) -> String {
        let mut notice = [0; 512];
        let size = self.socket.recv(&mut notice).expect("no notice came");
        String::from_utf8(notice[..size].to_vec()).unwrap()
    }

    /// Returns all notices up to one that contains this text.
    #[track_caller]
    fn up_to(&self, text: &str) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        let begun = Instant::now();
        while seen.last().is_none_or(|last| !last.contains(text)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no {text} in {seen:?}");
            seen.push(self.next());
        }
        seen
    }

    /// Reads what has arrived, and returns true if another ping comes within this time.
    fn is_pinged_within(&self, time: Duration) -> bool {
        let mut notice = [0; 512];
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut notice).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
        self.socket.set_read_timeout(Some(time)).unwrap();
        let begun = Instant::now();
        let mut pinged = false;
        while !pinged && begun.elapsed() < time {
            pinged =
                self.socket.recv(&mut notice).is_ok_and(|size| notice[..size] == *b"WATCHDOG=1");
        }
        self.socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        pinged
    }
}

/// Returns the state of a process, such as `T` for a stopped one.
fn process_state(process: &Process) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.0.id())).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

#[test]
fn a_worker_is_ready_after_its_load_and_tells_that_it_drains() {
    let place = Place::new();
    let manager = Manager::new(&place);
    let mut worker = place.worker_in(&manager.environment());
    let seen = manager.up_to("READY=1");
    let first = |text: &str| seen.iter().position(|notice| notice.starts_with(text));
    let extended = first("EXTEND_TIMEOUT_USEC=").unwrap();
    let (loading, ready) = (first("STATUS=loading").unwrap(), first("READY=1").unwrap());
    assert!(loading < ready && extended < ready, "{seen:?}");
    assert!(first("STOPPING").is_none(), "{seen:?}");
    assert_eq!(seen[ready - 1], format!("STATUS=serving {}", place.model));
    worker.signal("-TERM");
    let seen = manager.up_to("STOPPING=1");
    // The grace period of one second, and 15 s for the rest.
    let limit = seen.last().unwrap().strip_prefix("STOPPING=1\nEXTEND_TIMEOUT_USEC=").unwrap();
    let limit = Duration::from_micros(limit.parse().unwrap()).as_secs_f64();
    assert!((15.0..=16.0).contains(&limit), "{limit}");
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn a_worker_that_loads_tells_how_far_it_is() {
    let (bucket, place) = (Bucket::new(), Place::new());
    // 29 MB in two chunks. The first is read with the header, before the size of the load is known.
    let (small, large) = (model().display().to_string(), place.path("large"));
    let made = nsbridge(&["model", "quantize", &small, &large, "--dtype", "f32"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    bucket.push_folder(&large, "r1");
    let manager = Manager::new(&place);
    let mut environment = bucket.environment().to_vec();
    environment.extend(manager.environment());
    environment.extend([
        ("NSBRIDGE_MODELS__TARGET", PLACE.to_owned()),
        // The second chunk takes about 3 s.
        ("NSBRIDGE_STORE__BANDWIDTH_MB_S", "4".to_owned()),
    ]);
    let mut worker = nsbridge(&["worker", "--config", &place.path("worker.toml")]);
    let worker = worker.envs(environment).stderr(Stdio::null());
    let _worker = Process(worker.spawn().unwrap());
    // The socket has room for some notices only, so they are read from the start.
    let seen = manager.up_to("READY=1");
    let percent = |notice: &String| -> Option<u64> {
        notice.strip_prefix("STATUS=loading ")?.strip_suffix(" %")?.parse().ok()
    };
    let steps: Vec<u64> = seen.iter().filter_map(percent).collect();
    assert!(steps.is_sorted() && steps.iter().any(|step| (1..100).contains(step)), "{seen:?}");
}

#[test]
fn a_stopped_process_does_not_ping_the_watchdog() {
    let place = Place::new();
    let manager = Manager::new(&place);
    let worker = place.worker_in(&manager.environment());
    assert!(manager.is_pinged_within(WATCHDOG));
    worker.signal("-STOP");
    until(|| process_state(&worker) == 'T');
    assert!(!manager.is_pinged_within(2 * WATCHDOG));
    worker.signal("-CONT");
    manager.up_to(PING);
}

#[test]
fn a_worker_that_is_not_alive_does_not_ping_the_watchdog() {
    let mut place = Place::new();
    let server = place.url.clone();
    let at = server.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let proxy = Proxy::to(at.parse().unwrap()).unwrap();
    place.url = server.replace(&at, &proxy.addr().to_string());
    place.configure("[health]\ndead_after_s = 2\n");
    let manager = Manager::new(&place);
    let _worker = place.worker_in(&manager.environment());
    manager.up_to("READY=1");
    proxy.refuse();
    proxy.cut();
    manager.up_to("STATUS=waiting for the broker");
    // The time until the worker counts as dead is not over yet.
    manager.up_to(PING);
    let begun = Instant::now();
    while manager.is_pinged_within(2 * WATCHDOG) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the pings go on");
    }
    proxy.accept();
    manager.up_to(PING);
}

#[test]
fn a_model_in_python_does_not_inherit_the_socket() {
    let place = Place::new();
    let model = "import os\n\ndef handle(input, job):\n    \
        yield [name for name in os.environ if name in input]\n";
    fs::write(place.path("model.py"), model).unwrap();
    place.configure("[handler]\nentry_point = \"model.py\"\n");
    let manager = Manager::new(&place);
    let environment = [&manager.environment()[..], &[("SEEN", "yes".to_owned())]].concat();
    let _worker = place.worker_in(&environment);
    let names = "[\"NOTIFY_SOCKET\", \"WATCHDOG_USEC\", \"SEEN\"]";
    let asked = place.ask(&["--input", names]).output().unwrap();
    assert_eq!(String::from_utf8(asked.stdout).unwrap().trim(), "[\"SEEN\"]");
}

/// Sends a request for a long reply and returns the connection after the first bytes of the reply.
fn long_reply(address: &str, head: &str) -> TcpStream {
    let body = r#"{"model": "tale", "prompt": "Once a bear", "max_tokens": 900, "stream": true}"#;
    let mut client = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\n{head}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    client.write_all(request.as_bytes()).unwrap();
    let mut begin = [0; 12];
    client.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    client
}

#[test]
fn a_gateway_is_ready_when_it_listens_and_tells_what_it_waits_for() {
    let door = Door::new();
    let config = door.place.path("gateway.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("grace_s = 1\n", "grace_s = 30\n")).unwrap();
    let manager = Manager::new(&door.place);
    let worker = door.place.worker();
    let [socket, limit] = &manager.environment();
    let mut gateway = door.open_in(&[(socket.0, &socket.1), (limit.0, &limit.1)]);
    let seen = manager.up_to("READY=1");
    assert!(
        seen.iter().any(|notice| notice.starts_with("STATUS=serving at 127.0.0.1:")),
        "{seen:?}"
    );
    manager.up_to(PING);
    let head = format!("authorization: Bearer {}\r\n", door.key);
    let client = long_reply(&format!("127.0.0.1:{}", door.port), &head);
    // The reply does not end.
    worker.signal("-STOP");
    gateway.signal("-INT");
    let seen = manager.up_to("STATUS=draining 1 reply");
    assert!(seen.contains(&"STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000".to_owned()), "{seen:?}");
    // A gateway that drains is alive.
    manager.up_to(PING);
    gateway.signal("-INT");
    assert_eq!(gateway.code(), Some(1));
    let log = fs::read_to_string(door.place.path("gateway.log")).unwrap();
    let told = log.find("finishing 1 reply; Ctrl-C again leaves at once\n").expect(&log);
    let left = log.find("a second signal came: leaving at once\n").expect(&log);
    assert!(told < left, "{log}");
    drop(client);
}

#[test]
fn a_gateway_without_replies_ends_at_once_and_without_a_word() {
    let door = Door::new();
    let mut gateway = door.open();
    gateway.signal("-INT");
    assert_eq!(gateway.code(), Some(0));
    let log = fs::read_to_string(door.place.path("gateway.log")).unwrap();
    assert!(!log.contains("finishing") && !log.contains("Ctrl-C"), "{log}");
}
