//! `nsbridge import-djl` and `import-vllm`: the files that they write, and workers that start with them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::TempDir;

use crate::place::{Place, Process, model, nsbridge, output};

/// Model with a `load` that reads the options that DJLServing hands to a model.
const MODEL: &str = "\
options = {}

def load(models, given):
    options.update(given)

def handle(input):
    return options['greeting'] + ' ' + input
";

struct Folder(TempDir);

impl Folder {
    fn with(properties: impl AsRef<[u8]>) -> Self {
        let folder = Self(TempDir::new().unwrap());
        fs::write(folder.path("serving.properties"), properties).unwrap();
        folder
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Runs the command, which must fail with one sentence.
#[track_caller]
fn check_refused(arguments: &[&str], parts: &[&str]) {
    let (ended, out, err) = output(&[&["import-djl"], arguments].concat());
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(out.is_empty(), "{out}");
    let errors: Vec<_> = err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{err}");
    for part in parts {
        assert!(errors[0].contains(part), "`{part}` is missing in: {err}");
    }
}

#[test]
fn an_imported_model_in_python_answers() {
    let place = Place::new();
    let folder = place.path("greeter");
    fs::create_dir(&folder).unwrap();
    fs::write(place.path("greeter/model.py"), MODEL).unwrap();
    let text =
        "engine=Python\nminWorkers=2\nmaxWorkers=2\nretry_threshold=0\noption.greeting=hello\n";
    fs::write(place.path("greeter/serving.properties"), text).unwrap();
    let out = place.path("worker.toml");
    let import =
        ["import-djl", &folder, "--model", &place.model, "--out", &out, "--force", "--strict"];
    let (ended, printed, err) = output(&import);
    assert!(ended.status.success() && printed.is_empty(), "{printed}{err}");
    assert!(
        err.contains("5 options: 4 carried over, 1 not needed, 0 not carried over, 0 unknown"),
        "{err}"
    );
    let _worker = place.worker_in(&[("NSBRIDGE_BROKER__URL", place.url.clone())]);
    let mut asked = Process(place.ask(&["--input", "\"bear\""]).spawn().unwrap());
    let lines: Vec<_> = asked.lines().map(Result::unwrap).collect();
    assert_eq!((lines, asked.code()), (vec!["\"hello bear\"".to_owned()], Some(0)));
}

#[test]
fn an_imported_language_model_answers() {
    let place = Place::new();
    let properties = format!(
        "engine=Python\noption.model_id={}\noption.rolling_batch=auto\noption.max_rolling_batch_size=2\n",
        fs::canonicalize(model()).unwrap().display()
    );
    fs::write(place.path("serving.properties"), properties).unwrap();
    let (file, out) = (place.path("serving.properties"), place.path("worker.toml"));
    let import = ["import-djl", &file, "--model", &place.model, "--out", &out, "--force"];
    let (ended, _, err) = output(&import);
    assert!(ended.status.success(), "{err}");
    assert!(!err.contains("to do:"), "{err}");
    let _worker = place.worker_in(&[("NSBRIDGE_BROKER__URL", place.url.clone())]);
    let asked = place.ask(&["--max-tokens", "4", "Once a bear"]).output().unwrap();
    assert!(asked.status.success() && !asked.stdout.is_empty(), "{asked:?}");
}

#[test]
fn the_file_goes_to_stdout_and_the_report_to_stderr() {
    let folder = Folder::with("option.model_id=s3://b/bear\noption.trust_remote_code=true\n");
    let (ended, out, err) = output(&["import-djl", &folder.path("serving.properties")]);
    assert!(ended.status.success());
    let table: toml::Table = out.parse().unwrap();
    assert_eq!(table["models"]["target"].as_str(), Some("s3://b/bear"));
    assert_eq!(table["worker"]["model"].as_str(), Some("bear"));
    let lines: Vec<_> = err.lines().collect();
    assert!(lines[0].starts_with("carried over option.model_id (line 1): "), "{err}");
    assert!(lines[1].starts_with("NOT CARRIED  option.trust_remote_code (line 2): "), "{err}");
    assert_eq!(lines[2], "2 options: 1 carried over, 0 not needed, 1 not carried over, 0 unknown");
}

#[test]
fn a_file_that_is_there_is_overwritten_by_force_alone() {
    let folder = Folder::with("option.model_id=s3://b/bear\n");
    let (file, out) = (folder.path("serving.properties"), folder.path("worker.toml"));
    let (ended, _, err) = output(&["import-djl", &file, "--out", &out]);
    assert!(ended.status.success(), "{err}");
    let mode = fs::metadata(&out).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a person adds the broker's password");
    fs::write(&out, "mine").unwrap();
    check_refused(&[&file, "--out", &out], &["worker.toml is there already", "--force"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
    let (ended, _, err) = output(&["import-djl", &file, "--out", &out, "--force"]);
    assert!(ended.status.success(), "{err}");
    assert!(fs::read_to_string(&out).unwrap().contains("s3://b/bear"));
    check_refused(
        &[&file, "--out", "/nowhere/worker.toml"],
        &["cannot write /nowhere/worker.toml"],
    );
}

#[test]
fn a_strict_import_of_an_option_that_is_lost_writes_nothing() {
    for lost in ["option.trust_remote_code=true", "option.no_such_thing=1"] {
        let folder = Folder::with(format!("option.model_id=s3://b/bear\n{lost}\n"));
        let (file, out) = (folder.path("serving.properties"), folder.path("worker.toml"));
        check_refused(&[&file, "--out", &out, "--strict"], &["1 options are not carried over"]);
        assert!(!Path::new(&out).exists());
        check_refused(&[&file, "--strict"], &["nothing was written"]);
    }
}

#[test]
fn variables_come_from_a_file_or_from_the_environment() {
    let folder = Folder::with("option.model_id=s3://b/bear\n");
    fs::write(folder.path("container.env"), "OPTION_N_POSITIONS=128\n").unwrap();
    let (file, env) = (folder.path("serving.properties"), folder.path("container.env"));
    let run = |arguments: &[&str]| {
        let mut command = nsbridge(&[&["import-djl"], arguments].concat());
        command.env("OPTION_N_POSITIONS", "64").env("OPTION_MAX_NUM_SEQS", "2");
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().parse::<toml::Table>().unwrap()
    };
    let none = run(&[&file]);
    assert!(none["handler"].as_table().unwrap().is_empty());
    let both = run(&[&file, "--env", &env, "--environment"]);
    assert_eq!(both["handler"]["n_positions"].as_integer(), Some(128));
    assert_eq!(both["handler"]["max_rolling_batch_size"].as_integer(), Some(2));
    let alone = run(&["--env", &env]);
    assert_eq!(alone["models"]["target"].as_str(), Some("missing://model"));
}

#[test]
fn a_file_that_is_none_is_refused_in_one_sentence() {
    let folder = Folder::with([b'a', b'=', 0, 1]);
    let file = folder.path("serving.properties");
    check_refused(&[&file], &["cannot use ", "serving.properties", "byte 2 is 0x00"]);
    fs::write(&file, "a=b\nc=\\u00\n").unwrap();
    check_refused(&[&file], &["serving.properties", "line 2", "four hexadecimal digits"]);
    for empty in ["", "\n# nothing\n  \n"] {
        fs::write(&file, empty).unwrap();
        check_refused(&[&file], &["serving.properties sets no option", "no model.py"]);
    }
    check_refused(&[&folder.path("absent")], &["cannot read", "absent", "No such file"]);
    let place = TempDir::new().unwrap();
    check_refused(&[place.path().to_str().unwrap()], &["is a folder without serving.properties"]);
    fs::write(&file, "option.model_id=s3://b/bear\n").unwrap();
    check_refused(&[&file, "--env", &folder.path("absent")], &["cannot read", "absent"]);
    fs::write(folder.path("bad.env"), "A=1\nno variable\n").unwrap();
    check_refused(&[&file, "--env", &folder.path("bad.env")], &["bad.env", "line 2"]);
    let (ended, _, _) = output(&["import-djl"]);
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn a_command_of_vllm_becomes_a_file_with_a_report() {
    let place = TempDir::new().unwrap();
    let out = place.path().join("worker.toml");
    let command =
        ["--", "vllm", "serve", "s3://b/bear", "-tp", "2", "--port=9000", "--api-key", "canary"];
    let arguments =
        [&["import-vllm", "--strict", "--out", out.to_str().unwrap()], &command[..]].concat();
    let (ended, printed, err) = output(&arguments);
    assert!(ended.status.success() && printed.is_empty(), "{printed}{err}");
    assert!(
        err.contains(
            "4 options: 2 carried over, 0 not needed, 2 at the gateway, 0 not carried over"
        ),
        "{err}"
    );
    let text = fs::read_to_string(&out).unwrap();
    assert!(!text.contains("canary") && !err.contains("canary"), "{text}{err}");
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["handler"]["engine"].as_str(), Some("vllm"));
    assert_eq!(table["handler"]["options"]["tensor_parallel_size"].as_integer(), Some(2));
    let (ended, _, err) =
        output(&["import-vllm", "--strict", "--", "vllm", "serve", "m", "--not-a-flag"]);
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(err.contains("UNKNOWN      --not-a-flag (command line)"), "{err}");
    let (ended, _, _) = output(&["import-vllm"]);
    assert_eq!(ended.status.code(), Some(2));
}
