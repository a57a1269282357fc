//! The proof by attack: a real worker with the bundled model, a well-behaved tenant beside it, and
//! four attackers driven by a seed.
//!
//! `cargo xtask attack` builds and runs this; `docs/security.md` has its figures. The attackers are
//! a tenant with a key of its own, a publisher without one, a broker that lies, and whoever makes a
//! folder of a model. The oracle: no worker dies, memory stays below its bound, the well-behaved
//! tenant's text stays what it was and its first token does not take longer than it may, and every
//! refused request is told why.

#![expect(clippy::print_stdout, reason = "what came of it is for the person who waits")]
#![expect(clippy::print_stderr, reason = "so is how far it is")]

mod broker;
mod folder;
mod neighbor;
mod publisher;
mod random;
mod stage;
mod tenant;
mod verdict;

use std::io::{Read as _, stdin};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::{Parser, ValueEnum};
use nsbridge::Config;
use nsbridge_llama::Llama;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::random::Random;
use crate::stage::Stage;
use crate::verdict::Verdict;

/// Attacks a worker, and checks what came of it.
#[derive(Debug, Parser)]
#[command(name = "attack", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    drive: Drive,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// One worker; the driver starts it.
    #[command(hide = true)]
    Worker { config: PathBuf },
}

/// What is to be played.
#[derive(Debug, clap::Args)]
struct Drive {
    /// Only this attacker; may be given several times.
    #[arg(long = "attacker", value_name = "NAME")]
    attackers: Vec<Attacker>,
    /// How long the attack takes, beside 15 s in which the well-behaved tenant is alone.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// What the attacks grow from; drawn and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Leaves when its standard input ends.
    #[arg(long, hide = true)]
    attended: bool,
    /// Where logs and the report go, in a folder named after the seed.
    #[arg(long, default_value = "target/attack")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attacker {
    /// Has a key of its own, and asks for what costs most.
    Tenant,
    /// Has no key, and may publish.
    Publisher,
    /// A broker that does not keep to AMQP.
    Broker,
    /// Makes folders of models.
    Folder,
}

fn main() -> ExitCode {
    let Arguments { part, drive } = Arguments::parse();
    if let Some(Part::Worker { config }) = part {
        leave_with_the_starter();
        return nsbridge::run::<Llama>(Config::read(&config, []));
    }
    match run(&drive) {
        Ok(verdict) if verdict.holds() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(drive: &Drive) -> Result<Verdict> {
    if drive.attended {
        leave_with_the_starter();
    }
    let seed = match drive.seed {
        Some(seed) => seed,
        None => u64::from(getrandom::u32().map_err(|error| anyhow!("{error}"))?),
    };
    let dir = drive.out.join(seed.to_string());
    println!("seed {seed}, logs in {}", dir.display());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let attackers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(be_nice)
        .enable_all()
        .build()?;
    let stage = Stage::set(&dir)?;
    let verdict = runtime.block_on(play(drive, seed, stage, attackers.handle()))?;
    verdict.print();
    std::fs::write(dir.join("report.json"), serde_json::to_vec_pretty(&verdict)?)?;
    Ok(verdict)
}

/// Time in which the well-behaved tenant is alone.
const ALONE: Duration = Duration::from_secs(15);

async fn play(drive: &Drive, seed: u64, stage: Stage, attackers: &Handle) -> Result<Verdict> {
    let plays = |attacker| drive.attackers.is_empty() || drive.attackers.contains(&attacker);
    let stage = Arc::new(stage);
    let verdict = Arc::new(Verdict::new(seed, drive.seconds));
    let random = |salt: u64| Random::new(seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut worker = stage.worker("worker", &stage.url()).await?;
    let neighbor = neighbor::Neighbor::connect(&stage, "good").await?;
    neighbor.alone(ALONE, &verdict).await?;
    let until = Instant::now() + Duration::from_secs(drive.seconds);
    let mut attacks = tokio::task::JoinSet::new();
    if plays(Attacker::Tenant) {
        attacks
            .spawn_on(tenant::attack(stage.clone(), random(1), until, verdict.clone()), attackers);
    }
    if plays(Attacker::Publisher) {
        attacks.spawn_on(
            publisher::attack(stage.clone(), random(2), until, verdict.clone()),
            attackers,
        );
    }
    if plays(Attacker::Broker) {
        attacks
            .spawn_on(broker::attack(stage.clone(), random(3), until, verdict.clone()), attackers);
    }
    if plays(Attacker::Folder) {
        attacks
            .spawn_on(folder::attack(stage.clone(), random(4), until, verdict.clone()), attackers);
    }
    let watched = async {
        while Instant::now() < until {
            sleep(Duration::from_millis(200)).await;
            if let Some(ended) = worker.ended()? {
                verdict.fails(&format!("the worker died: {ended}; its log is {}", worker.log()));
                worker = stage.worker("worker", &stage.url()).await?;
            }
            verdict.memory("worker", worker.peak_mib()?);
        }
        anyhow::Ok(worker)
    };
    let (asked, watched) = tokio::join!(neighbor.beside(until, &verdict), watched);
    asked?;
    while let Some(ended) = attacks.join_next().await {
        ended.map_err(|error| anyhow!("an attacker panicked: {error}"))??;
    }
    let worker = watched?;
    verdict.log(&worker.words()?);
    drop(worker);
    Arc::into_inner(verdict).ok_or_else(|| anyhow!("an attacker is still there"))
}

/// Attackers stand for other machines: they take no time from the worker and its neighbor.
fn be_nice() {
    if rustix::process::setpriority_process(None, 19).is_err() {
        eprintln!("the attackers take as much of the processor as the others");
    }
}

/// Ends this process when its standard input ends: when whoever started it is gone, however it went.
fn leave_with_the_starter() {
    thread::spawn(|| {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        leave();
    });
}

#[expect(clippy::exit, reason = "whatever it is doing, nothing may outlive the driver")]
fn leave() -> ! {
    std::process::exit(3)
}
