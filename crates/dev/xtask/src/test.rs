//! `cargo xtask test`: runs all tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::boards;
use crate::broker::Broker;
use crate::cargo::{Cargo, in_root, root};
use crate::machine::{self, Machine};
use crate::tally::{Report, Runner};

/// Environment variable with the root of the system in which the testkit starts RabbitMQ.
const RABBITMQ_ROOT: &str = "NSBRIDGE_TEST_RABBITMQ_ROOT";

/// Packages whose tests use a broker.
const ON_A_BROKER: [&str; 10] = [
    "-p",
    "nsbridge-testkit",
    "-p",
    "nsbridge-queue",
    "-p",
    "nsbridge",
    "-p",
    "nsbridge-client",
    "-p",
    "nsbridge-cli",
];

/// Runs the tests that use a broker on RabbitMQ 4.
pub(crate) fn run_on_rabbitmq_4(arguments: &[String]) -> Result<()> {
    ensure!(
        !Broker::is_named(),
        "NSBRIDGE_TEST_AMQP_URL names a broker: unset it to test on a RabbitMQ 4 of our own"
    );
    let folder = machine::rabbitmq::four()?;
    let mut arguments = arguments.to_vec();
    if packages(&arguments).is_empty() {
        arguments.splice(0..0, ON_A_BROKER.map(str::to_owned));
    }
    run(&Cargo::here().with(RABBITMQ_ROOT, folder), &arguments)
}

pub(crate) fn run(cargo: &Cargo, arguments: &[String]) -> Result<()> {
    let whole = arguments.is_empty();
    let machine = machine::ready(whole)?;
    let broker = Broker::start(cargo)?;
    let mut report = Report::default();
    let in_system = |mut command: Command| {
        command.env("NSBRIDGE_TEST_PYTHON", &machine.client);
        command.env("NSBRIDGE_TEST_MOTO", &machine.moto);
        command.env("NSBRIDGE_TEST_OPENAI", &machine.openai);
        command.env("NSBRIDGE_TEST_ANTHROPIC", &machine.anthropic);
        command.env("NSBRIDGE_TEST_SCHEMAS", &machine.schemas);
        command.env("NSBRIDGE_TEST_ONNX", &machine.onnx);
        command.env(machine::models::VARIABLE, &machine.smollm2);
        broker.tell(command)
    };
    if cargo.has("nextest") {
        let command = in_system(rust_tests(cargo, &["nextest", "run"], arguments)?);
        report.part("the Rust tests", Runner::Nextest, command)?;
        if whole {
            let command =
                in_system(rust_tests(cargo, &["test", "--doc", "--no-fail-fast"], arguments)?);
            report.part("the examples in the documentation", Runner::Libtest, command)?;
        }
    } else {
        let command = in_system(rust_tests(cargo, &["test", "--no-fail-fast"], arguments)?);
        report.part("the Rust tests", Runner::Libtest, command)?;
    }
    if whole {
        let mut tests = in_system(client(&machine, &["-m", "unittest", "discover", "-s", "tests"]));
        tests.env("NSBRIDGE_TEST_BINARY", cargo.target_dir().join("debug/nsbridge"));
        report.part("the Python client's tests", Runner::Unittest, tests)?;
        python_tests(&mut report, &machine)?;
        installer(&mut report)?;
        templates(&mut report)?;
        alert_rules(&mut report)?;
    }
    drop(broker);
    report.end()
}

/// Folder of the adapters of engines in Python.
const ENGINES: &str = "crates/handlers/python/engines";

fn rust_tests(cargo: &Cargo, runner: &[&str], arguments: &[String]) -> Result<Command> {
    let mut command = cargo.command(runner);
    let named = packages(arguments);
    // `--workspace` would override the packages that the user named.
    if named.is_empty() {
        command.arg("--workspace");
    }
    command.args(["--features", &cargo.features(&named)?]).args(arguments);
    Ok(command)
}

/// Returns the packages named in cargo arguments.
fn packages(arguments: &[String]) -> Vec<&str> {
    let mut named = Vec::new();
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        let value = match argument {
            "-p" | "--package" => arguments.next(),
            _ => argument
                .strip_prefix("--package")
                .or_else(|| argument.strip_prefix("-p"))
                .map(|name| name.trim_start_matches('=')),
        };
        named.extend(value);
    }
    named
}

fn installer(report: &mut Report) -> Result<()> {
    machine::installer()?;
    let python = python(Path::new("python3"), "deploy/tests");
    report.part(
        "the installer's tests",
        Runner::Unittest,
        with(python, &["-m", "unittest", "discover"]),
    )
}

/// Tests the templates of CloudFormation, the IAM documents, the Helm chart and the file of Compose.
fn templates(report: &mut Report) -> Result<()> {
    let python = python(&machine::deploy()?, "deploy/tests/templates");
    report.part("the templates", Runner::Unittest, with(python, &["-m", "unittest", "discover"]))
}

/// Tests the alert rules, and parses the queries of the boards, with Prometheus's own tool.
fn alert_rules(report: &mut Report) -> Result<()> {
    machine::promtool()?;
    let mut tests = in_root("promtool");
    tests.args(["test", "rules", "deploy/prometheus/alerts.test.yaml"]);
    report.part("the alert rules", Runner::Whole, tests)?;
    let mut jobs = in_root("promtool");
    jobs.args(["check", "config"]);
    jobs.args(["example", "ecs"].map(|name| format!("deploy/prometheus/prometheus.{name}.yaml")));
    report.part("the jobs of Prometheus", Runner::Whole, jobs)?;
    let mut queries = in_root("promtool");
    queries.args(["check", "rules"]).arg(boards::rules()?);
    report.part("the queries of the boards", Runner::Whole, queries)
}

/// Returns a command of the Python client's sources and the packages that its tests need.
fn client(machine: &Machine, arguments: &[&str]) -> Command {
    let mut command = with(python(&machine.client, "python"), arguments);
    command.env("PYTHONPATH", "src");
    command
}

fn python_tests(report: &mut Report, machine: &Machine) -> Result<()> {
    report.part(
        "the Python client's types, by mypy",
        Runner::Whole,
        client(machine, &["-m", "mypy"]),
    )?;
    let mut pyright = client(machine, &["-m", "pyright", "--pythonpath"]);
    pyright.arg(&machine.client);
    report.part("the Python client's types, by pyright", Runner::Whole, pyright)?;
    let mut engines = python(&machine.client, ENGINES);
    engines.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "tests"]);
    report.part("the tests of the engines' adapters", Runner::Pytest, engines)?;
    let mut types = python(&machine.client, ENGINES);
    types.args(["-m", "mypy"]);
    report.part("the types of the engines' adapters, by mypy", Runner::Whole, types)?;
    if let Some(trainer) = &machine.trainer {
        let in_trainer = || python(trainer, "examples/train-pair");
        let stories = with(in_trainer(), &["stories.py", "--selftest"]);
        report.part("the trainer's stories", Runner::Whole, stories)?;
        let check = with(in_trainer(), &["train.py", "--check"]);
        report.part("the trainer's quick check", Runner::Whole, check)?;
    }
    Ok(())
}

/// Returns a Python command that runs in a folder of the repository and writes no bytecode there.
fn python(interpreter: &Path, folder: &str) -> Command {
    let mut command = in_root(interpreter);
    command.current_dir(root().join(folder)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn with(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::{packages, rust_tests};
    use crate::cargo::Cargo;

    fn owned(arguments: &[&str]) -> Vec<String> {
        arguments.iter().map(|&text| text.to_owned()).collect()
    }

    #[track_caller]
    fn check(arguments: &[&str], expected: &[&str]) {
        let command = rust_tests(&Cargo::here(), &["test"], &owned(arguments)).unwrap();
        let given: Vec<_> = command.get_args().map(|text| text.to_string_lossy()).collect();
        let of_features = given.iter().position(|argument| argument == "--features").unwrap();
        let (before, after) = (&given[..of_features], &given[of_features + 2..]);
        assert_eq!([before, after].concat(), expected);
    }

    #[test]
    fn a_named_package_replaces_the_workspace() {
        check(&[], &["test", "--workspace"]);
        check(&["a_name"], &["test", "--workspace", "a_name"]);
        check(&["-p", "xtask", "a_name"], &["test", "-p", "xtask", "a_name"]);
        check(&["--package=xtask"], &["test", "--package=xtask"]);
    }

    #[test]
    fn packages_are_named_in_any_way_of_cargo() {
        let arguments =
            ["-p", "one", "a_name", "--package", "two", "-pthree", "--package=four", "-p=five"];
        assert_eq!(packages(&owned(&arguments)), ["one", "two", "three", "four", "five"]);
        assert!(packages(&owned(&["a_name", "--lib"])).is_empty());
    }
}
