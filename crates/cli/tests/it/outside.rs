//! Packages that `docs/handlers.md` prints, built and run outside of the repository as they are printed.

use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::place::{Process, nsbridge};

/// Page that prints the packages.
const PAGE: &str = include_str!("../../../../docs/handlers.md");

/// Files that the page prints.
const FILES: [&str; 6] = [
    "parrot/Cargo.toml",
    "parrot/src/main.rs",
    "parrot/src/tests.rs",
    "parrot/worker.toml",
    "caller/Cargo.toml",
    "caller/src/main.rs",
];

/// Maximum number of lines of the client program.
const CALLER_LINES: usize = 15;

/// Returns the block of code that the page prints under the name of a file.
#[track_caller]
fn printed(file: &str) -> &'static str {
    let named = format!("`{file}`:\n\n```");
    let after = PAGE.split_once(&named).unwrap_or_else(|| panic!("the page has no {file}")).1;
    let block = after.split_once('\n').and_then(|(_, rest)| rest.split_once("```"));
    block.expect("a block of code ends").0
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Writes the packages beside a link to the repository, and returns their folder. The folder is the
/// same in each run, because cargo builds a crate at another path again.
fn packages() -> PathBuf {
    let id = BuildHasherDefault::<DefaultHasher>::default().hash_one(root());
    let dir = std::env::temp_dir().join(format!("nsbridge-outside-{id:016x}"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
    let of = |path: &Path| fs::metadata(path).unwrap();
    assert_eq!(of(&dir).uid(), of(Path::new("/proc/self")).uid(), "{}", dir.display());
    for file in FILES {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, printed(file)).unwrap();
    }
    let link = dir.join("nsbridge");
    let _ = fs::remove_file(&link);
    symlink(root(), link).unwrap();
    // One build for both packages, with the versions that the repository tests.
    let workspace = "[workspace]\nmembers = [\"parrot\", \"caller\"]\nexclude = [\"nsbridge\"]\nresolver = \"3\"\n";
    fs::write(dir.join("Cargo.toml"), workspace).unwrap();
    fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    dir
}

/// Runs a command of cargo on the packages, and returns the folder of their binaries.
#[track_caller]
fn cargo(dir: &Path, arguments: &[&str]) -> PathBuf {
    let ours = Path::new(env!("CARGO_BIN_EXE_nsbridge"));
    let target = ours.ancestors().nth(2).unwrap().join("outside");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).arg("--offline").current_dir(dir).env("CARGO_TARGET_DIR", &target);
    // Built quickly, because they run for a moment.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    let done = cargo.output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
    target.join("debug")
}

/// Starts the printed worker and waits until it takes requests.
fn start(binaries: &Path, place: &Path, url: &str) -> Process {
    let log = place.join("parrot.log");
    let mut worker = Command::new(binaries.join("parrot"));
    worker.args(["--config", "worker.toml"]).current_dir(place).env("NSBRIDGE_BROKER__URL", url);
    worker.stdin(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let worker = Process(worker.spawn().unwrap());
    let started = Instant::now();
    loop {
        let said = fs::read_to_string(&log).unwrap();
        if said.contains("taking requests") {
            return worker;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_worker_and_the_client_of_the_handlers_page_work_outside_of_the_repository() {
    let caller = printed("caller/src/main.rs").lines().count();
    assert!(caller <= CALLER_LINES, "the client program has {caller} lines");
    let dir = packages();
    cargo(&dir, &["test", "--package", "parrot"]);
    let binaries = cargo(&dir, &["build"]);
    let place = dir.join("parrot");
    let _ = fs::remove_file(place.join("keys.json"));
    let keys = place.join("keys.json").display().to_string();
    assert!(nsbridge(&["keys", "generate", "--out", &keys]).status().unwrap().success());
    let url = nsbridge_testkit::amqp_url();
    let mut worker = start(&binaries, &place, &url);
    let caller = Command::new(binaries.join("caller"))
        .current_dir(&place)
        .env("AMQP_URL", &url)
        .output()
        .unwrap();
    assert!(caller.status.success(), "{}", String::from_utf8_lossy(&caller.stderr));
    assert_eq!(String::from_utf8_lossy(&caller.stdout), "hello hello ");
    worker.signal("-TERM");
    assert_eq!(worker.code(), Some(0));
}
