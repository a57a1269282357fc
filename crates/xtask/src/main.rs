//! The project's chores: `cargo xtask test | lint | ci | chaos | attack | fuzz | cuda | bench SUITE`.

mod attack;
mod bench;
mod broker;
mod cargo;
mod chaos;
mod ci;
mod cuda;
mod fuzz;
mod lint;
mod machine;
mod mutants;
mod say;
mod tally;
mod test;

use std::process::ExitCode;

use clap::Parser;

use crate::cargo::Cargo;

/// The project's chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Makes the machine ready, then runs all tests, Rust and Python.
    ///
    /// Installs what is missing (RabbitMQ, Python, a small PyTorch) where it may, and starts a
    /// RabbitMQ node of its own for the run. Example: cargo xtask test -- -p nsbridge-queue
    Test {
        /// Runs what touches a broker on this RabbitMQ instead of the system's own.
        ///
        /// It is unpacked from Debian 13, once per machine, and started in a chroot: that takes
        /// root. Without names of packages, the tests of the queue, the worker, the client and the
        /// command line are run.
        #[arg(long, value_name = "MAJOR", value_parser = ["4"])]
        rabbitmq: Option<String>,
        /// For `cargo nextest run` or `cargo test`; the Python parts are left out then.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Checks form, lints, documentation and whatever else is read rather than run.
    Lint,
    /// Lints, tests and plays each scenario of faults once, as the continuous integration does.
    Ci,
    /// Kills, cuts and starves real workers, clients and brokers, and checks what came of it.
    ///
    /// Without arguments each scenario is played once, in less than five minutes. The journals are
    /// in target/chaos; docs/reliability.md says how to read them.
    Chaos {
        #[command(flatten)]
        arguments: chaos::Arguments,
    },
    /// Attacks a real worker with the bundled model beside a well-behaved tenant, and checks that nobody is
    /// hurt.
    ///
    /// The attackers are a tenant with a key, a publisher without one, a broker that lies and the maker of
    /// a model's folder. The report is in target/attack; docs/security.md has the figures of an hour.
    /// Example: cargo xtask attack --attacker tenant --seconds 3600
    Attack {
        #[command(flatten)]
        arguments: attack::Arguments,
    },
    /// Builds the worker for NVIDIA's GPUs, or calls cargo so, where no CUDA is installed.
    ///
    /// Gets CUDA 13.0's compiler once per machine, 1.7 GB. The binary is target/cuda/release/nsbridge,
    /// for the GPUs that CUDA_COMPUTE_CAP names, or Hopper's. The kernels of flash attention take three
    /// hours on two cores the first time.
    /// Example: cargo xtask cuda -- clippy -p nsbridge-llama --features cuda,nccl
    Cuda {
        /// For cargo, in place of building the worker with all that is for GPUs.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Feeds the parsers of models' files whatever breaks them, led by the code they run through.
    ///
    /// Without arguments each target runs for a minute. What is found is kept in target/fuzz/findings.
    /// Example: cargo xtask fuzz gguf --seconds 600
    Fuzz {
        #[command(flatten)]
        arguments: fuzz::Arguments,
    },
    /// Measures, and prints the figures beside those of others.
    Bench {
        /// What to measure, such as `bridge`.
        suite: String,
    },
}

fn main() -> ExitCode {
    let done = match Chore::parse() {
        Chore::Test { rabbitmq: None, arguments } => test::run(&Cargo::here(), &arguments),
        Chore::Test { rabbitmq: Some(_), arguments } => test::run_on_rabbitmq_4(&arguments),
        Chore::Lint => lint::run(&Cargo::here()),
        Chore::Ci => ci::run(),
        Chore::Chaos { arguments } => match arguments.mutants() {
            Some(only) => mutants::run(&Cargo::here(), only),
            None => chaos::run(&Cargo::here(), &arguments),
        },
        Chore::Attack { arguments } => attack::run(&Cargo::here(), &arguments),
        Chore::Cuda { arguments } => cuda::run(&arguments),
        Chore::Fuzz { arguments } => fuzz::run(&Cargo::here(), &arguments),
        Chore::Bench { suite } => bench::run(&Cargo::here(), &suite),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::error(&error);
            ExitCode::FAILURE
        }
    }
}
