//! Files that packages install beside the program: completions, manual pages, bundled models; and `--version`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{nsbridge, output};

/// Returns what a command prints.
#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let (done, out, err) = output(arguments);
    assert!(done.status.success() && err.is_empty(), "{arguments:?}: {err}");
    out
}

/// Returns the names of the subcommands in a help text.
fn subcommands(help: &str) -> Vec<&str> {
    let (_, list) = help.split_once("Commands:\n").unwrap_or_default();
    let list = list.split("\n\n").next().unwrap_or_default();
    let lines = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

#[test]
fn bash_accepts_its_completion_and_completes_with_it() {
    let script = printed(&["completions", "bash"]);
    let check = "bash -n /dev/stdin";
    let mut bash = Command::new("bash").args(["-c", check]).stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
    let asked = format!(
        "{script}\nCOMP_WORDS=(nsbridge wor); COMP_CWORD=1; _nsbridge nsbridge wor nsbridge; echo \"${{COMPREPLY[@]}}\""
    );
    let done = Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "worker");
}

#[test]
fn each_shell_has_a_completion_with_each_command() {
    let help = printed(&["--help"]);
    let commands = subcommands(&help);
    assert!(commands.contains(&"worker") && commands.len() > 10, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (odd, _, err) = output(&["completions", "csh"]);
    assert!(odd.status.code() == Some(2) && err.contains("csh"), "{err}");
}

/// Writes the pages into a folder of its own, and returns them by name.
fn pages(dir: &Path) -> Vec<(String, String)> {
    let out = dir.join("man1");
    printed(&["man", "--out", out.to_str().unwrap()]);
    let files = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = files
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    pages.sort();
    pages
}

#[test]
fn each_command_has_a_page_with_its_examples_and_the_pages_are_always_the_same() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let all = pages(one.path());
    assert_eq!(all, pages(two.path()));
    let page = |name: &str| {
        let found = all.iter().find(|(file, _)| *file == format!("{name}.1"));
        &found.unwrap_or_else(|| panic!("{name} has no page")).1
    };
    let mut wanted: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(command) = wanted.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = printed(&[&words[..], &["--help"]].concat());
        let page = page(&[&["nsbridge"], &words[..]].concat().join("-"));
        let title = page.lines().next().unwrap();
        assert!(title.ends_with(" 1 \"\" \"nsbridge 0.1.0\" nsbridge"), "{title}");
        if let Some((_, example)) = help.split_once("Example") {
            let example = example.lines().find_map(|line| line.split_once("nsbridge ")).unwrap().1;
            let rendered = page.replace("\\-", "-").replace("\\(aq", "'").replace("\\*(Aq", "'");
            assert!(rendered.contains(&format!("nsbridge {example}")), "{command:?}: {example}");
        }
        let below = subcommands(&help).into_iter();
        wanted.extend(below.map(|name| [&command[..], &[name.to_owned()]].concat()));
    }
    assert!(all.len() > 25, "{}", all.len());
}

#[test]
fn the_version_is_short_or_tells_the_build_and_the_machine() {
    assert_eq!(printed(&["-V"]), "nsbridge 0.1.0\n");
    let long = printed(&["--version"]);
    let field = |name: &str| {
        let line = long.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing in: {long}")).trim().to_owned()
    };
    assert!(long.starts_with("nsbridge 0.1.0\n"), "{long}");
    let commit = field("commit ");
    let hexadecimal = commit.bytes().take_while(u8::is_ascii_hexdigit).count();
    assert!(hexadecimal == 40 || commit == "unknown", "{commit}");
    assert!(field("features ").contains("kms") && field("target ").contains('-'), "{long}");
    assert!(
        ["portable", "avx2", "avx512-vnni", "avx512-bf16", "amx"].contains(&&*field("CPU tier ")),
        "{long}"
    );
}

#[test]
fn the_options_of_ask_stand_under_what_they_are_about() {
    let help = printed(&["ask", "--help"]);
    let (general, rest) = help.split_once("Broker and keys:").unwrap();
    let (keys, text) = rest.split_once("Text models:").unwrap();
    for (part, options) in [
        (general, ["--input", "--tenant", "--timeout", "--json"]),
        (keys, ["--broker", "--keyring", "--kms-key", "--kms-key"]),
        (text, ["--seed", "--temperature", "--chat", "--regex"]),
    ] {
        let has = |option: &&str| part.lines().any(|line| line.trim_start().starts_with(option));
        assert!(options.iter().all(has), "{options:?}: {part}");
    }
}

#[test]
fn the_first_help_of_each_command_has_an_example() {
    let help = printed(&["--help"]);
    for command in subcommands(&help) {
        let help = printed(&[command, "--help"]);
        assert!(
            help.contains("nsbridge ") && help.matches(&format!("nsbridge {command}")).count() > 1,
            "{help}"
        );
    }
}

#[test]
fn an_installed_program_takes_the_models_beside_it() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (bin, models) = (dir.path().join("bin"), dir.path().join("share/nsbridge/models"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(models.join("tale-7m")).unwrap();
    fs::create_dir_all(models.join("tale-1m")).unwrap();
    let program = bin.join("nsbridge");
    fs::hard_link(env!("CARGO_BIN_EXE_nsbridge"), &program).unwrap();
    let done = Command::new(program).args(["demo"]).current_dir(dir.path()).output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    // These folders are empty: the sentence tells which was taken.
    let canonical = models.canonicalize().unwrap().join("tale-7m").display().to_string();
    assert!(!done.status.success() && err.contains(&canonical), "{err}");
}

#[test]
fn a_command_that_does_not_exist_is_one_sentence() {
    for (wrong, near) in [("wroker", "did you mean `worker`?"), ("frobnicate", "--help")] {
        let done = nsbridge(&[wrong]).output().unwrap();
        let err = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2));
        assert!(err.contains(wrong) && err.contains(near), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let done = nsbridge(&["keys", "generat"]).output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert!(err.contains("did you mean `generate`?") && err.lines().count() == 1, "{err}");
}

#[test]
fn a_full_disk_is_one_sentence() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let done = nsbridge(&["completions", "bash"]).stdout(full).output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(err.starts_with("error: writing to standard output: No space left"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}
