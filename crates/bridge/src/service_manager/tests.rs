//! Notices that arrive at a socket, as at that of systemd.

use std::ffi::OsString;
use std::future::pending;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::{ServiceManager, ServiceState};

const LOADING: (bool, bool, &str) = (true, false, "loading");
const SERVING: (bool, bool, &str) = (true, true, "serving");
const DEAD: (bool, bool, &str) = (false, false, "waiting for the broker");

fn variables(set: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    set.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Service that changes its state, and the manager's socket.
struct Scene {
    socket: UnixDatagram,
    state: Mutex<(bool, bool, &'static str)>,
    stop: Notify,
}

impl Scene {
    fn new(socket: UnixDatagram) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self { socket, state: Mutex::new(LOADING), stop: Notify::new() }
    }

    fn at(path: &Path) -> Self {
        Self::new(UnixDatagram::bind(path).unwrap())
    }

    fn set(&self, state: (bool, bool, &'static str)) {
        *self.state.lock() = state;
    }

    /// Returns the notices that have arrived since the last call.
    fn seen(&self) -> Vec<String> {
        let mut notice = [0; 256];
        let next = || self.socket.recv(&mut notice).ok().map(|size| notice[..size].to_vec());
        std::iter::from_fn(next).map(|bytes| String::from_utf8(bytes).unwrap()).collect()
    }

    /// Follows the service for this time.
    async fn follow_for(&self, manager: &ServiceManager, time: Duration) {
        let state = || {
            let (alive, ready, status) = *self.state.lock();
            ServiceState::new(alive, ready, status)
        };
        let stopping = async {
            self.stop.notified().await;
            Duration::from_secs(35)
        };
        let _ = timeout(time, manager.follow(state, stopping)).await;
    }
}

/// Returns a scene, the manager that it is connected to, and the folder of its socket.
fn scene() -> (TempDir, Scene, ServiceManager) {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let scene = Scene::at(&path);
    let manager = ServiceManager::new(variables(&[("NOTIFY_SOCKET", path.to_str().unwrap())]));
    (home, scene, manager)
}

fn count(seen: &[String], notice: &str) -> usize {
    seen.iter().filter(|seen| *seen == notice).count()
}

#[tokio::test(start_paused = true)]
async fn a_service_is_ready_after_its_load_and_stops_with_its_own_time_limit() {
    let (_home, scene, manager) = scene();
    let change = async {
        sleep(Duration::from_secs(25)).await;
        let seen = scene.seen();
        assert_eq!(seen[..2], ["STATUS=loading", "EXTEND_TIMEOUT_USEC=60000000"], "{seen:?}");
        assert_eq!(count(&seen, "EXTEND_TIMEOUT_USEC=60000000"), 3, "{seen:?}");
        assert_eq!(seen.len(), 4, "{seen:?}");
        scene.set(SERVING);
        sleep(Duration::from_secs(100)).await;
        assert_eq!(scene.seen(), ["STATUS=serving", "READY=1"]);
        scene.stop.notify_one();
        scene.set((true, false, "draining 2 replies"));
        sleep(Duration::from_secs(5)).await;
        let stopping = "STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000";
        assert_eq!(scene.seen(), [stopping, "STATUS=draining 2 replies"]);
    };
    tokio::join!(scene.follow_for(&manager, Duration::from_secs(200)), change);
    assert_eq!(scene.seen(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_stops_while_it_loads_is_not_told_ready() {
    let (_home, scene, manager) = scene();
    scene.stop.notify_one();
    scene.set(SERVING);
    scene.follow_for(&manager, Duration::from_secs(60)).await;
    let seen = scene.seen();
    assert!(seen[0].starts_with("STOPPING=1"), "{seen:?}");
    assert!(!seen.iter().any(|notice| notice.contains("READY")), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_is_pinged_twice_in_its_time_while_the_service_is_alive() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let scene = Scene::at(&path);
    let process = std::process::id().to_string();
    let manager = ServiceManager::new(variables(&[
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "30000000"),
        ("WATCHDOG_PID", &process),
    ]));
    let change = async {
        scene.set(SERVING);
        sleep(Duration::from_secs(50)).await;
        assert_eq!(count(&scene.seen(), "WATCHDOG=1"), 4, "at 0, 15, 30 and 45 s");
        scene.set(DEAD);
        sleep(Duration::from_secs(100)).await;
        assert_eq!(scene.seen(), ["STATUS=waiting for the broker"]);
        scene.set(SERVING);
        sleep(Duration::from_secs(20)).await;
        assert!(count(&scene.seen(), "WATCHDOG=1") > 0);
    };
    tokio::join!(scene.follow_for(&manager, Duration::from_secs(200)), change);
}

#[tokio::test(start_paused = true)]
async fn a_start_is_not_extended_once_the_service_is_dead() {
    let (_home, scene, manager) = scene();
    scene.set(DEAD);
    scene.follow_for(&manager, Duration::from_secs(100)).await;
    assert_eq!(scene.seen(), ["STATUS=waiting for the broker"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_is_extended_for_an_hour() {
    let (_home, scene, manager) = scene();
    let minute = Duration::from_secs(60);
    let mut extended_in = Vec::new();
    let read = async {
        for number in 1..120 {
            sleep(minute).await;
            if count(&scene.seen(), "EXTEND_TIMEOUT_USEC=60000000") > 0 {
                extended_in.push(number);
            }
        }
    };
    tokio::join!(scene.follow_for(&manager, 120 * minute), read);
    assert_eq!(extended_in.first(), Some(&1));
    assert!(matches!(extended_in.last(), Some(60 | 61)), "{extended_in:?}");
}

#[tokio::test(start_paused = true)]
async fn another_process_or_no_limit_has_no_watchdog() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let scene = Scene::at(&path);
    let socket = ("NOTIFY_SOCKET", path.to_str().unwrap());
    for others in [
        &[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")][..],
        &[("WATCHDOG_USEC", "0")],
        &[("WATCHDOG_USEC", "soon")],
        &[("WATCHDOG_PID", "1")],
    ] {
        let manager = ServiceManager::new(variables(&[&[socket], others].concat()));
        scene.follow_for(&manager, Duration::from_secs(10)).await;
        assert_eq!(count(&scene.seen(), "WATCHDOG=1"), 0, "{others:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn an_abstract_socket_is_reached_by_its_name() {
    let name = format!("nsbridge-test-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let scene = Scene::new(UnixDatagram::bind_addr(&address).unwrap());
    let manager = ServiceManager::new(variables(&[("NOTIFY_SOCKET", &format!("@{name}"))]));
    scene.set(SERVING);
    scene.follow_for(&manager, Duration::from_secs(1)).await;
    assert_eq!(scene.seen(), ["STATUS=serving", "READY=1"]);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_was_away_is_told_again_that_the_service_is_ready_and_stops() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let manager = ServiceManager::new(variables(&[("NOTIFY_SOCKET", path.to_str().unwrap())]));
    let state = || ServiceState::new(true, true, "serving");
    let stop = async {
        sleep(Duration::from_secs(30)).await;
        Duration::from_secs(35)
    };
    let arrives = async {
        sleep(Duration::from_secs(10)).await;
        let scene = Scene::at(&path);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.seen(), ["STATUS=serving", "READY=1"]);
        drop(scene);
        std::fs::remove_file(&path).unwrap();
        sleep(Duration::from_secs(20)).await;
        let scene = Scene::at(&path);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.seen(), ["STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000"]);
    };
    tokio::select! {
        never = manager.follow(state, stop) => match never {},
        () = arrives => {}
    }
}

/// A full socket would block a writer that waits.
#[tokio::test(start_paused = true)]
async fn a_manager_that_reads_nothing_does_not_hold_up_the_service() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let scene = Scene::at(&path);
    let manager = ServiceManager::new(variables(&[
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "2000"),
    ]));
    let began = Instant::now();
    scene.follow_for(&manager, Duration::from_secs(30)).await;
    assert_eq!(began.elapsed().as_secs(), 30);
    assert!(scene.seen().len() > 5, "the socket was not full");
}

#[tokio::test(start_paused = true)]
async fn without_a_manager_nothing_is_read_or_sent() {
    for set in [&[][..], &[("NOTIFY_SOCKET", "")], &[("NOTIFY_SOCKET", "vsock:2:1234")]] {
        let manager = ServiceManager::new(variables(set));
        let state = || panic!("the state was read");
        let followed = manager.follow(state, pending());
        assert!(timeout(Duration::from_secs(60), followed).await.is_err());
    }
}
