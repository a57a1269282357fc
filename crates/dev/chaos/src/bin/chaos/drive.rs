//! Driver: plays rounds of scenarios, several at a time, and collects the reports.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Handle;

use crate::check::{self, Report};
use crate::failure_excerpt;
use crate::plan::Plan;
use crate::python_client::{Kind, has_client};
use crate::scenarios::{Needs, SCENARIOS, Scenario, place_of_vllm};
use crate::servers::{self, Servers};
use crate::stage::Stage;
use crate::table;
use nsbridge_chaos::process::leave_with_the_starter;

/// Selection of scenarios and rounds.
#[derive(Debug, clap::Args)]
pub(crate) struct Drive {
    /// Scenario to play; repeatable
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// Number of rounds per scenario
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Seed of the moments and targets of faults; drawn and printed if absent
    #[arg(long)]
    seed: Option<u64>,
    /// Lists the scenarios
    #[arg(long)]
    list: bool,
    /// Duration of a soak, in minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Number of rounds that are played at the same time
    #[arg(long, default_value_t = 6)]
    at_once: usize,
    /// Python interpreter with the packages of the Python client
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Plays with clients in Python, in place of clients in Rust
    #[arg(long, requires = "python")]
    python_client: bool,
    /// Exits when standard input closes
    #[arg(long, hide = true)]
    attended: bool,
    /// Folder of the journals; each run makes a subfolder named after its seed
    #[arg(long, default_value = "target/chaos")]
    out: PathBuf,
}

/// Plays, checks and prints. Returns true if no check failed.
pub(crate) fn run(drive: &Drive) -> Result<bool> {
    if drive.list {
        SCENARIOS.iter().for_each(|it| println!("{:30} {}", it.name, it.about));
        return Ok(true);
    }
    if drive.attended {
        leave_with_the_starter();
    }
    let chosen = choose(&drive.scenarios, drive.python_client)?;
    let seed = match drive.seed {
        Some(seed) => seed,
        None => u64::from(getrandom::u32().map_err(|error| anyhow::anyhow!("{error}"))?),
    };
    let folder = drive.out.join(seed.to_string());
    println!("seed {seed}, journals in {}", folder.display());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let lane = |broker: servers::Kind| {
        let rounds = (0..drive.rounds).flat_map(|round| {
            let those = chosen.iter().filter(move |it| it.needs.broker() == broker);
            those.map(move |scenario| (*scenario, round))
        });
        let (rounds, folder) = (Mutex::new(rounds.collect()), folder.clone());
        let (minutes, python) = (drive.minutes, drive.python.clone());
        let kind = if drive.python_client { Kind::Asyncio } else { Kind::Rust };
        Lane { broker, rounds, seed, folder, minutes, kind, python }
    };
    let lanes = [
        (lane(servers::Kind::SharedNode), drive.at_once),
        (lane(servers::Kind::OwnNode), 1),
        (lane(servers::Kind::Cluster), 1),
    ];
    let reports = thread::scope(|scope| {
        let playing: Vec<_> = lanes
            .iter()
            .map(|(lane, at_once)| {
                let runtime = runtime.handle();
                scope.spawn(move || lane.play(*at_once, runtime))
            })
            .collect();
        let ended = playing.into_iter().map(|lane| {
            lane.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the driver panicked")))
        });
        ended.collect::<Result<Vec<_>>>()
    })?
    .concat();
    Ok(table::print(reports))
}

/// Returns the scenarios with these names, or all. With clients in Python, only those whose
/// clients may be of any kind.
fn choose(names: &[String], python: bool) -> Result<Vec<&'static Scenario>> {
    for name in names {
        ensure!(!python || has_client(name), "`{name}` has no client that could be in Python");
        let known = SCENARIOS.iter().any(|scenario| scenario.name == name);
        ensure!(known, "there is no scenario `{name}`; `--list` shows those that are");
    }
    let wanted = |it: &&Scenario| match names {
        [] => !it.needs.its_name() && (!python || has_client(it.name)),
        names => names.iter().any(|name| name == it.name),
    };
    let chosen: Vec<_> = SCENARIOS.iter().filter(wanted).collect();
    if chosen.iter().any(|it| it.needs == Needs::Vllm) {
        place_of_vllm()?;
    }
    Ok(chosen)
}

/// Rounds that share a broker.
struct Lane {
    broker: servers::Kind,
    rounds: Mutex<VecDeque<(&'static Scenario, usize)>>,
    seed: u64,
    folder: PathBuf,
    minutes: u64,
    /// Kind of clients, unless the scenario decides it.
    kind: Kind,
    /// Interpreter of clients in Python.
    python: Option<PathBuf>,
}

impl Lane {
    fn play(&self, at_once: usize, runtime: &Handle) -> Result<Vec<Report>> {
        if self.left() == 0 {
            return Ok(Vec::new());
        }
        let servers = Servers::start(self.broker)?;
        let reports = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let players: Vec<_> = (0..at_once.clamp(1, self.left()))
                .map(|_| scope.spawn(|| self.play_some(&servers, runtime, &reports)))
                .collect();
            players.into_iter().try_for_each(|player| {
                player.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a scenario panicked")))
            })
        })?;
        Ok(reports.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn left(&self) -> usize {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn play_some(
        &self,
        servers: &Servers,
        runtime: &Handle,
        reports: &Mutex<Vec<Report>>,
    ) -> Result<()> {
        loop {
            let next = self.rounds.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((scenario, round)) = next else { return Ok(()) };
            let report = self.play_one(scenario, round, servers, runtime)?;
            reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        }
    }

    fn play_one(
        &self,
        scenario: &Scenario,
        round: usize,
        servers: &Servers,
        runtime: &Handle,
    ) -> Result<Report> {
        servers.heal()?;
        let began = Instant::now();
        let dir = self.folder.join(format!("{}-{round}", scenario.name));
        let plan =
            Plan { scenario: scenario.name.into(), round, seed: self.seed, ..Plan::default() };
        let mut stage = Stage::set(plan, &dir, servers.clone(), runtime)?;
        stage.minutes = self.minutes;
        stage.client_settings.kind = self.kind;
        stage.client_settings.python.clone_from(&self.python);
        // An error of the scenario becomes a journal event, so that the checker reports it with the
        // other problems.
        let played = (scenario.play)(&mut stage).and_then(|()| stage.finish());
        if let Err(error) = played {
            stage.broken(format!("{error:#}"))?;
        }
        stage.end().with_context(|| format!("ending {}", dir.display()))?;
        let report = check::read(&dir).with_context(|| format!("checking {}", dir.display()))?;
        let word = if report.is_good() { "ok" } else { "FAILED" };
        eprintln!("{}-{round}: {word}, {:.1} s", scenario.name, began.elapsed().as_secs_f64());
        if !report.is_good() {
            failure_excerpt::print(&dir)
                .unwrap_or_else(|error| eprintln!("no more of it: {error:#}"));
        }
        Ok(report)
    }
}
