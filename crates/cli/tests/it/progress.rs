//! Progress of long work, on a terminal and without one.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use crate::model::{Bucket, PLACE};
use crate::place::nsbridge;
use crate::terminal::terminal;

/// Returns a bucket with the bundled model, which has 15 MB.
fn bucket() -> Bucket {
    let bucket = Bucket::new();
    bucket.push("r1");
    bucket
}

/// Returns a command about models in a bucket.
fn command(bucket: &Bucket, arguments: &[&str]) -> Command {
    let mut command = nsbridge(&[&["model"], arguments].concat());
    command.envs(bucket.environment());
    command
}

/// Returns a command that reads 15 MB with 2 MB a second.
fn slow_pull(bucket: &Bucket, to: &Path) -> Command {
    command(bucket, &["pull", PLACE, to.to_str().unwrap(), "--bandwidth", "2"])
}

/// Runs a command with a terminal as its stderr and returns what the terminal received.
#[track_caller]
fn on_terminal(mut command: Command, kind: &str) -> String {
    let (mut person, end): (File, File) = terminal();
    let mut running = command.env("TERM", kind).stderr(end.try_clone().unwrap()).spawn().unwrap();
    drop((command, end));
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Without its last writer, the terminal ends with an error.
        let _ = person.read_to_end(&mut bytes);
        bytes
    });
    assert!(running.wait().unwrap().success());
    String::from_utf8(reader.join().unwrap()).unwrap()
}

/// Returns the lines of progress of a pull.
fn lines(said: &str) -> Vec<&str> {
    said.lines().map(str::trim_end).filter(|line| line.starts_with("pulling: ")).collect()
}

#[track_caller]
fn check_lines(said: &str) {
    let lines = lines(said);
    // After 2 s and after 7 s of about 7.5 s.
    assert!((1..=2).contains(&lines.len()), "{said:?}");
    for line in &lines {
        assert!(line.contains(" of 15 MB, 2 MB/s, ") && line.ends_with(" s left"), "{said:?}");
    }
    assert!(!said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn without_a_terminal_a_line_tells_bytes_rate_and_time_left() {
    let (bucket, home) = (bucket(), tempfile::tempdir().unwrap());
    let pulled = slow_pull(&bucket, &home.path().join("a")).output().unwrap();
    assert!(pulled.status.success());
    check_lines(&String::from_utf8(pulled.stderr).unwrap());
    check_lines(&on_terminal(slow_pull(&bucket, &home.path().join("b")), "dumb"));
}

#[test]
fn a_terminal_has_a_bar_with_rate_and_time_left() {
    let (bucket, home) = (bucket(), tempfile::tempdir().unwrap());
    let said = on_terminal(slow_pull(&bucket, &home.path().join("a")), "xterm");
    assert!(lines(&said).is_empty(), "{said:?}");
    assert!(said.contains("pulling ") && said.contains('█'), "{said:?}");
    assert!(
        said.contains("MB/s") && said.contains("14.98 MB") && said.contains("\u{1b}["),
        "{said:?}"
    );
    // The bar is gone at the end, and the result stands alone.
    let last = said.rsplit("\u{1b}[").next().unwrap();
    assert!(last.contains("fetched") && !last.contains('█'), "{said:?}");
}

#[test]
fn json_and_short_work_show_no_progress() {
    let (bucket, home) = (bucket(), tempfile::tempdir().unwrap());
    let mut pull = slow_pull(&bucket, &home.path().join("a"));
    pull.arg("--json");
    let said = on_terminal(pull, "xterm");
    assert!(!said.contains("pulling"), "{said:?}");
    let short = command(&bucket, &["verify", PLACE]);
    let said = on_terminal(short, "xterm");
    assert!(!said.contains("reading") && said.contains("what its manifest says"), "{said:?}");
}
