//! Adversarial tests: a real worker with the bundled model, a gateway, a well-behaved tenant, and six
//! seeded attackers.
//!
//! `cargo xtask attack` builds and runs this program; `docs/security.md` has its results. The
//! attackers are a tenant with a key of its own, a publisher without a key, a broker that violates
//! AMQP, the author of a malicious model folder, a tenant whose prompts are at the borders of
//! tokenizers, and a holder of API keys. The run passes if no worker and no gateway dies, memory stays
//! below its limits and is given back, the text of the well-behaved tenant does not change, its time to
//! first token stays within its limit, and every refused request receives an error message.

#![expect(clippy::print_stdout, reason = "what came of it is for the person who waits")]
#![expect(clippy::print_stderr, reason = "so is how far it is")]

mod broker;
mod folder;
mod gateway;
mod gateway_process;
mod neighbor;
mod process;
mod prompt;
mod publisher;
mod random;
mod stage;
mod tenant;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::{Parser, ValueEnum};
use futures_util::future::try_join_all;
use nsbridge::worker::Config;
use nsbridge_chaos::process::leave_with_the_starter;
use nsbridge_llama::Llama;
use nsbridge_protocol::Tenant;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::gateway::Target;
use crate::neighbor::{Door, Neighbor};
use crate::random::Random;
use crate::stage::Stage;
use crate::verdict::{GIVEN_BACK_WITHIN, GatewayMemory, MOST_SLOWER, Verdict};

/// Attacks a worker and checks the outcome
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
    /// Runs one worker; started by the driver
    #[command(hide = true)]
    Worker { config: PathBuf },
    /// Runs one gateway; started by the driver
    #[command(hide = true)]
    Gateway { config: PathBuf },
}

/// Selection of attackers, duration and seed.
#[derive(Debug, clap::Args)]
struct Drive {
    /// Attacker to run; repeatable
    #[arg(long = "attacker", value_name = "NAME")]
    attackers: Vec<Attacker>,
    /// Attack on the gateway to run; repeatable
    #[arg(long = "gateway-attack", value_name = "NAME")]
    gateway_attacks: Vec<gateway::Attack>,
    /// Duration of the attack in seconds, between 10 s before it and 10 s after it in which the well-behaved tenant is alone
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the attacks; drawn and printed if absent
    #[arg(long)]
    seed: Option<u64>,
    /// Allowed ratio of the well-behaved tenant's time to first token under attack to that alone, at the 95th percentile
    #[arg(long, value_name = "RATIO", default_value_t = MOST_SLOWER)]
    slower: f64,
    /// Library that the processes under attack load first, such as another allocator
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Exits when standard input closes
    #[arg(long, hide = true)]
    attended: bool,
    /// Folder of logs and report; each run makes a subfolder named after its seed
    #[arg(long, default_value = "target/attack")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attacker {
    /// Tenant with a key of its own that submits the most expensive requests
    Tenant,
    /// Publisher without a key
    Publisher,
    /// Broker that violates AMQP
    Broker,
    /// Author of malicious model folders
    Folder,
    /// Tenant whose prompts are at the borders of tokenizers and embeddings
    Prompt,
    /// Holder of API keys, and clients without one, at a gateway
    Gateway,
}

fn main() -> ExitCode {
    let Arguments { part, drive } = Arguments::parse();
    if let Some(part) = part {
        leave_with_the_starter();
        return match run_part(part) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
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

fn run_part(part: Part) -> Result<()> {
    match part {
        Part::Worker { config } => Ok(nsbridge::run_async::<Llama>(Config::read(&config, [])?)?),
        Part::Gateway { config } => gateway_process::run(&config),
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
    let stage = Stage::set(&dir, drive.preload.clone())?;
    let verdict = runtime.block_on(play(drive, seed, stage, attackers.handle()))?;
    verdict.print();
    std::fs::write(dir.join("report.json"), serde_json::to_vec_pretty(&verdict)?)?;
    Ok(verdict)
}

/// Time in which the well-behaved tenant is alone, before the attack and again after it: the speed
/// of a shared machine may change meanwhile.
const ALONE: Duration = Duration::from_secs(10);

async fn play(drive: &Drive, seed: u64, stage: Stage, attackers: &Handle) -> Result<Verdict> {
    let plays = |attacker| drive.attackers.is_empty() || drive.attackers.contains(&attacker);
    let stage = Arc::new(stage);
    let verdict = Arc::new(Verdict::new(seed, drive.seconds, drive.slower));
    let random = |salt: u64| Random::new(seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut worker = stage.worker("worker", &stage.url()).await?;
    let tenant: Tenant = "good".parse()?;
    let client = stage.client(&tenant).await?;
    let mut neighbors = vec![Neighbor::begin(&stage, Door::Broker { client, tenant }).await?];
    let mut gateway = None;
    if plays(Attacker::Gateway) {
        let (process, target) = Target::start(&stage).await?;
        let (address, key) = (target.address, target.neighbor.clone());
        neighbors.push(Neighbor::begin(&stage, Door::Gateway { address, key }).await?);
        gateway = Some((process, Arc::new(target)));
    }
    alone(&neighbors, "before", &verdict).await?;
    let mut memory = GatewayMemory::default();
    if let Some((process, _)) = &gateway {
        memory.idle_mib = process.resident_mib();
    }
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
    if plays(Attacker::Prompt) {
        attacks
            .spawn_on(prompt::attack(stage.clone(), random(5), until, verdict.clone()), attackers);
    }
    if let Some((_, target)) = &gateway {
        let ways = drive.gateway_attacks.clone();
        let attack =
            gateway::attack(stage.clone(), target.clone(), ways, random(6), until, verdict.clone());
        attacks.spawn_on(attack, attackers);
    }
    let watched = async {
        while Instant::now() < until {
            sleep(Duration::from_millis(200)).await;
            if let Some(ended) = worker.ended()? {
                verdict.fails(&format!("the worker died: {ended}; its log is {}", worker.log()));
                worker = stage.worker("worker", &stage.url()).await?;
            }
            verdict.memory("worker", worker.peak_mib());
            if let Some((process, _)) = &mut gateway
                && let Some(ended) = process.ended()?
            {
                anyhow::bail!("the gateway died: {ended}; its log is {}", process.log());
            }
        }
        anyhow::Ok(worker)
    };
    let beside = try_join_all(neighbors.iter().map(|neighbor| neighbor.beside(until, &verdict)));
    let (asked, watched) = tokio::join!(beside, watched);
    asked?;
    while let Some(ended) = attacks.join_next().await {
        ended.map_err(|error| anyhow!("an attacker panicked: {error}"))??;
    }
    let worker = watched?;
    if let Some((process, _)) = &gateway {
        (memory.peak_mib, memory.end_mib) = (process.peak_mib(), process.resident_mib());
    }
    let ended = Instant::now();
    alone(&neighbors, "after", &verdict).await?;
    verdict.log(&worker.words()?);
    if let Some((process, _)) = &gateway {
        memory.left_mib = process.resident_mib();
        while !memory.is_given_back() && ended.elapsed() < GIVEN_BACK_WITHIN {
            sleep(Duration::from_secs(1)).await;
            memory.left_mib = process.resident_mib();
        }
        verdict.log(&process.words()?);
        verdict.gateway(memory);
    }
    drop(worker);
    Arc::into_inner(verdict).ok_or_else(|| anyhow!("an attacker is still there"))
}

/// Has the well-behaved tenant submit requests without attackers.
async fn alone(neighbors: &[Neighbor], phase: &str, verdict: &Verdict) -> Result<()> {
    try_join_all(neighbors.iter().map(|neighbor| neighbor.alone(ALONE, phase, verdict))).await?;
    Ok(())
}

/// Lowers the priority of an attacker thread. Attackers simulate other machines, so they must not
/// take processor time from the worker and the well-behaved tenant.
fn be_nice() {
    if rustix::process::setpriority_process(None, 19).is_err() {
        eprintln!("the attackers take as much of the processor as the others");
    }
}
