//! Commands whose standard output is a terminal.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::place::{nsbridge, output};

/// Runs a command with a terminal as its standard output, and returns what the terminal received.
#[track_caller]
fn seen(arguments: &[&str]) -> String {
    let (mut person, end) = terminal();
    let mut command = nsbridge(arguments);
    command.stdout(end.try_clone().unwrap()).spawn().unwrap().wait().unwrap();
    // Without its last writer, the terminal ends with an error after what was written.
    drop((command, end));
    let mut bytes = Vec::new();
    let _ = person.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

/// Runs a command with a terminal as its output and its errors, and returns what that received.
#[track_caller]
fn seen_in_color(arguments: &[&str], no_color: &str) -> String {
    let (mut person, end) = terminal();
    let mut command = nsbridge(arguments);
    command.env("TERM", "xterm-256color").env("NO_COLOR", no_color);
    command.env_remove("CLICOLOR").env_remove("CLICOLOR_FORCE");
    command.stdout(end.try_clone().unwrap()).stderr(end.try_clone().unwrap());
    command.spawn().unwrap().wait().unwrap();
    drop((command, end));
    let mut bytes = Vec::new();
    let _ = person.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn help_errors_and_log_have_colors_unless_no_color_is_set_or_there_is_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("worker.toml");
    let text = "[worker]\nmodel = \"m\"\nshow_errors = true\n[broker]\nurl = \"amqp://localhost\"\n\
                [keys]\nkeyring = \"none.json\"\n";
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    // The log warns of `show_errors` before the worker misses its keyring.
    let commands: [(&[&str], &str); 3] = [
        (&["worker", "--help"], "Usage:"),
        (&["worker", "--frobnicate"], "unexpected argument"),
        (&["worker", "--config", config], "show_errors is set"),
    ];
    for (command, part) in commands {
        let (colored, plain) = (seen_in_color(command, ""), seen_in_color(command, "1"));
        assert!(colored.contains('\u{1b}'), "{command:?}: {colored:?}");
        assert!(plain.contains(part) && !plain.contains('\u{1b}'), "{command:?}: {plain:?}");
        let (_, out, err) = output(command);
        let piped = format!("{out}{err}");
        assert!(piped.contains(part) && !piped.contains('\u{1b}'), "{command:?}: {piped:?}");
    }
}

/// Text that turns a terminal's output red and reverses its direction.
const HOSTILE: &str = "\u{9b}31m\u{202e}";
const ESCAPED: &str = "\\u{9b}31m\\u{202e}";

#[test]
fn l6_what_a_command_quotes_reaches_a_terminal_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("worker.toml");
    fs::write(&config, format!("[worker]\nmodel = \"m\"\n\"{HOSTILE}\" = 1\n")).unwrap();
    let model = dir.path().join(HOSTILE);
    fs::create_dir(&model).unwrap();
    let bundled = crate::place::model().join("config.json");
    fs::copy(bundled, model.join("config.json")).unwrap();
    let (config, model) = (config.to_str().unwrap(), model.to_str().unwrap());
    let commands: [&[&str]; 4] = [
        &["doctor", "--config", config],
        &["doctor", "--config", config, "--json"],
        &["model", "inspect", model],
        &["model", "inspect", model, "--json"],
    ];
    for command in commands {
        let seen = seen(command);
        assert!(seen.contains(ESCAPED) && !seen.contains(HOSTILE), "{command:?}: {seen:?}");
        let (_, piped, _) = output(command);
        assert!(piped.contains(HOSTILE), "{command:?}: {piped:?}");
    }
}

#[test]
fn l6_no_command_writes_to_stdout_in_another_way() {
    fn check(folder: &Path) {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path);
            } else if !path.ends_with("terminal.rs") {
                let text = fs::read_to_string(&path).unwrap();
                for way in ["stdout()", "print!(", "println!("] {
                    assert!(!text.contains(way), "{}: {way}", path.display());
                }
            }
        }
    }
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}

#[test]
fn a_reader_that_left_ends_a_command_without_a_word() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let bundled = crate::place::model();
    let mut command = nsbridge(&["model", "inspect", bundled.to_str().unwrap()]);
    let ended = command.stdout(writer).output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(141) && !err.contains("error"), "{err}");
}

/// Opens a terminal; returns the end of the person and the end of the command.
pub(crate) fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = OpenOptions::new().read(true).write(true).open(name).unwrap();
    (File::from(master), slave)
}

#[test]
fn a_demo_in_a_terminal_keeps_a_conversation() {
    let (mut person, end) = terminal();
    let mut command = nsbridge(&["demo", "--chat", "--max-tokens", "8", "--temperature", "0"]);
    command.stdin(end.try_clone().unwrap()).stdout(end.try_clone().unwrap());
    let mut demo = command.stderr(Stdio::piped()).spawn().unwrap();
    person.write_all(b"Once a bear\n/what\nOnce a bear\n/new\nOnce a bear\n/exit\n").unwrap();
    assert!(demo.wait().unwrap().success());
    drop((command, end));
    let (mut seen, mut notes) = (Vec::new(), String::new());
    let _ = person.read_to_end(&mut seen);
    demo.stderr.take().unwrap().read_to_string(&mut notes).unwrap();
    let seen = String::from_utf8(seen).unwrap().replace('\r', "");
    // The terminal echoes the input before the first prompt.
    let said: Vec<_> = seen.split("> ").skip(1).map(str::trim).collect();
    let [first, help, second, new, third, end] = said[..] else { panic!("{seen}") };
    assert!(!first.is_empty() && !second.is_empty(), "{seen}");
    assert_eq!([help, new, end], [""; 3], "{seen}");
    // After /new the message is the first again.
    assert_eq!(first, third, "{seen}");
    assert!(notes.contains("/new begins a new conversation"), "{notes}");
    assert_eq!(notes.matches("tokens/s").count(), 3, "{notes}");
}
