//! Environment of a scenario: a model of its own, a proxy, workers, clients, and the journal.

mod aim;
mod ask_command;
mod cluster;
mod forge;
mod front;
mod memory_watch;
mod python;
mod rights;
mod start;
mod supervised_process;
mod unacking_consumer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nsbridge_protocol::ModelName;
use nsbridge_protocol::topology::{dead_queue, header};
use nsbridge_queue::{AmqpBroker, Broker};
use nsbridge_testkit::{Proxy, Rabbit};
use rustix::process::Signal;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::client;
use crate::follow::{Follow, ends, gone, is_over, pieces, running, takes};
use crate::http_caller::Balanced;
use crate::journal::{Journal, Line, What};
use crate::plan::{Ask, Expect, Plan};
use crate::process::held;
use crate::python_client::{Kind, client_command};
use crate::random::Random;
use crate::servers::{Addresses, Servers};
use crate::suspended_thread::SuspendedThread;
use crate::watched::Trick;
use crate::wiretap::Wiretap;

pub(crate) use start::{ClientSettings, WorkerSettings};

use start::{part_command, worker_command, write_keyring};
use supervised_process::SupervisedProcess;
use unacking_consumer::UnackingConsumer;

pub(crate) use front::Storage;
pub(crate) use python::{PythonProcesses, free_address, until_no_process_of};

/// File name of the keyring in the folder of a round.
pub(crate) const KEYRING: &str = "keys.json";

/// Name of the fault that sends SIGTERM to a worker.
pub(crate) const TERMINATE: &str = "terminate";

/// Time limit of every step that the plan does not limit, such as the start of a process on a busy
/// machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Delay between the last end and the end of the round. A run that must not begin any more would
/// begin in this time.
const QUIET: Duration = Duration::from_millis(1500);

/// Round of a scenario.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) settings: WorkerSettings,
    pub(crate) client_settings: ClientSettings,
    /// Duration of a soak, in minutes.
    pub(crate) minutes: u64,
    /// Time limit of a step of workers, such as their start.
    pub(crate) step_timeout: Duration,
    dir: PathBuf,
    journal: Arc<Journal>,
    follow: Follow,
    servers: Servers,
    /// URLs of the nodes for the driver, separated by commas.
    url: String,
    /// Proxy in front of each node.
    proxies: Vec<Proxy>,
    addresses: Addresses,
    /// Index of the node that the current client has begun with, which has its reply queue.
    pub(crate) node_of_replies: Option<usize>,
    model: ModelName,
    runtime: Handle,
    workers: BTreeMap<String, SupervisedProcess>,
    clients: Vec<SupervisedProcess>,
    wiretaps: Vec<Wiretap>,
    strands: Vec<UnackingConsumer>,
    /// Addresses of the gateways that callers are sent to.
    balanced: Balanced,
}

impl Stage {
    /// Prepares round `plan.round` in `dir`, whose earlier content is deleted.
    pub(crate) fn set(plan: Plan, dir: &Path, servers: Servers, runtime: &Handle) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        write_keyring(&dir.join(KEYRING))?;
        let journal = Arc::new(Journal::in_dir(&dir)?);
        let follow = Follow::in_dir(&dir)?;
        let proxies = servers.listeners().into_iter().map(Proxy::to).collect::<Result<Vec<_>>>()?;
        let addresses = servers.addresses(&proxies.iter().map(Proxy::addr).collect::<Vec<_>>());
        let unique = getrandom::u32().map_err(|error| anyhow::anyhow!("{error}"))?;
        let model = format!("{}-{}-{unique:08x}", plan.scenario, plan.round).parse()?;
        Ok(Self {
            random: Random::of(plan.seed, &plan.scenario, plan.round),
            settings: WorkerSettings {
                slots: 4,
                grace_s: 5,
                heartbeat: 10,
                frame_each: false,
                skew_s: 0,
                user: None,
                channel_max: 2047,
                log_is_not_read: false,
                more: String::new(),
                environment: Vec::new(),
            },
            client_settings: ClientSettings {
                heartbeat: 10,
                trick: Trick::None,
                reply_queue_bytes: None,
                kind: Kind::Rust,
                python: None,
            },
            minutes: 0,
            step_timeout: STEP_TIMEOUT,
            workers: BTreeMap::new(),
            clients: Vec::new(),
            wiretaps: Vec::new(),
            strands: Vec::new(),
            balanced: Balanced::default(),
            runtime: runtime.clone(),
            plan,
            dir,
            journal,
            follow,
            url: servers.urls(),
            servers,
            proxies,
            addresses,
            node_of_replies: None,
            model,
        })
    }

    // Workers.

    /// Starts workers `w1`, `w2`, .. and waits until all consume requests.
    pub(crate) fn start_workers(&mut self, count: usize) -> Result<()> {
        for number in 1..=count {
            self.launch_worker(&format!("w{number}"))?;
        }
        (1..=count).try_for_each(|number| self.until_taking(&format!("w{number}")))
    }

    /// Starts one worker, which is restarted whenever its process ends, and waits until it consumes
    /// requests.
    pub(crate) fn start_worker(&mut self, name: &str) -> Result<()> {
        self.launch_worker(name)?;
        self.until_taking(name)
    }

    /// Starts one worker, which is restarted whenever its process ends.
    pub(crate) fn launch_worker(&mut self, name: &str) -> Result<()> {
        let (dir, model, addresses) =
            (self.dir.clone(), self.model.clone(), self.addresses.clone());
        let settings = self.settings.clone();
        let command = move |name: &str| worker_command(&dir, &model, &addresses, &settings, name);
        let worker = SupervisedProcess::start(name, &self.journal, true, command)?;
        self.workers.insert(name.to_owned(), worker);
        Ok(())
    }

    /// Waits until the worker's current process consumes requests.
    pub(crate) fn until_taking(&mut self, name: &str) -> Result<()> {
        let worker = self.workers.get(name).with_context(|| format!("no worker {name}"))?;
        let taking = |lines: &[Line]| takes(lines, worker.pid()?).then_some(());
        self.follow.wait(&format!("{name} to take requests"), self.step_timeout, taking)
    }

    /// Lets a worker leave in order and does not start it again. A worker that is killed may not have
    /// settled what its clients have received.
    pub(crate) fn dismiss(&mut self, worker: &str) -> Result<()> {
        let leaving = self.worker(worker)?.pid().context("the process has ended")?;
        self.terminate(worker)?;
        self.until_gone(worker, leaving)?;
        self.remove_worker(worker);
        Ok(())
    }

    /// Kills a worker for good.
    pub(crate) fn remove_worker(&mut self, name: &str) {
        self.workers.remove(name);
    }

    /// Kills a worker's process and waits until its end is recorded, so that the next fault does
    /// not hit the same process. The worker is restarted.
    pub(crate) fn kill(&mut self, worker: &str) -> Result<()> {
        // The process may just be restarting. The kill is retried, because the journal must only
        // record faults that were injected.
        let began = Instant::now();
        let killed = loop {
            if let Some(pid) = self.worker(worker)?.kill() {
                break pid;
            }
            ensure!(began.elapsed() < self.step_timeout, "{worker} does not start again");
            sleep(Duration::from_millis(5));
        };
        self.fault("kill", worker)?;
        self.until_gone(worker, killed)
    }

    /// Waits until the end of this process of a worker is recorded.
    fn until_gone(&mut self, worker: &str, process: u32) -> Result<()> {
        let is_it = |line: &Line| matches!(line.what, What::Gone { pid, .. } if pid == process);
        self.until(&format!("{worker} to be gone"), |lines| lines.iter().any(is_it))
    }

    /// Sends SIGTERM to a worker's process. The worker is restarted.
    pub(crate) fn terminate(&self, worker: &str) -> Result<()> {
        self.fault(TERMINATE, worker)?;
        self.worker(worker)?.signal(Signal::TERM)
    }

    /// Stops a thread of a worker's process until the returned guard is dropped.
    pub(crate) fn suspend(&self, worker: &str, thread: &str) -> Result<SuspendedThread> {
        self.fault("suspend", worker)?;
        let pid = self.worker(worker)?.pid().context("the process has ended")?;
        SuspendedThread::stop(pid, thread)
    }

    /// Waits until the log of a process contains this text.
    pub(crate) fn until_said(&self, life: &str, what: &str) -> Result<()> {
        self.until_said_within(STEP_TIMEOUT, life, what)
    }

    /// Waits at most this long until the log of a process contains this text.
    pub(crate) fn until_said_within(
        &self,
        timeout: Duration,
        life: &str,
        what: &str,
    ) -> Result<()> {
        let began = Instant::now();
        while self.said(life, what).is_err() {
            ensure!(began.elapsed() < timeout, "{life} did not say `{what}` in {timeout:?}");
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Checks that the log of a process contains this text at most this many times.
    pub(crate) fn said_at_most(&self, life: &str, what: &str, most: usize) -> Result<()> {
        let count = fs::read_to_string(self.dir.join(format!("{life}.log")))?.matches(what).count();
        ensure!(count <= most, "{life} said `{what}` {count} times, not {most} at most");
        Ok(())
    }

    /// Checks that the log of a process contains this text.
    pub(crate) fn said(&self, life: &str, what: &str) -> Result<()> {
        let log = fs::read_to_string(self.dir.join(format!("{life}.log")))?;
        ensure!(log.contains(what), "{life} did not say `{what}`");
        Ok(())
    }

    fn worker(&self, name: &str) -> Result<&SupervisedProcess> {
        self.workers.get(name).with_context(|| format!("there is no worker {name}"))
    }

    // Clients.

    /// Adds a request to the plan and returns its index.
    pub(crate) fn ask(&mut self, mut ask: Ask) -> usize {
        let n = self.plan.asks.len();
        ask.order.n = n;
        ask.seed = self.random.next() >> 11;
        self.plan.asks.push(ask);
        n
    }

    /// Adds several requests that differ only in their seeds.
    pub(crate) fn ask_for(&mut self, count: usize, ask: &Ask) -> Vec<usize> {
        (0..count).map(|_| self.ask(ask.clone())).collect()
    }

    /// Starts a client that submits every unfinished request of the plan.
    pub(crate) fn start_client(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..self.plan.asks.len()).collect();
        self.start_client_for(&all)
    }

    /// Starts a client that submits the unfinished ones of these requests.
    pub(crate) fn start_client_for(&mut self, asks: &[usize]) -> Result<()> {
        if self.clients.is_empty() {
            self.journal.note(What::Plan(self.plan.clone()))?;
        }
        self.follow.read()?;
        let name = format!("c{}", self.clients.len() + 1);
        let open =
            |ask: &&Ask| asks.contains(&ask.order.n) && !is_over(&self.follow.lines, ask.order.n);
        let settings = &self.client_settings;
        let config = client::Config {
            dir: self.dir.clone(),
            name: name.clone(),
            url: self.addresses.text(&format!("heartbeat={}", settings.heartbeat)),
            keyring: self.dir.join(KEYRING),
            model: self.model.clone(),
            asks: self.plan.asks.iter().filter(open).cloned().collect(),
            trick: settings.trick,
            reply_queue_bytes: settings.reply_queue_bytes,
        };
        let path = self.dir.join(format!("{name}.json"));
        fs::write(&path, serde_json::to_vec(&config)?)?;
        let (dir, settings) = (self.dir.clone(), settings.clone());
        let ca_file = self.addresses.ca_file.clone();
        let command = move |name: &str| {
            let Some(program) = settings.kind.program() else {
                return part_command(&dir, name, "client", &path);
            };
            let python = settings.python.as_deref();
            let mut command = client_command(&dir, name, program, python, &path)?;
            // The client in Python has no parameter for it.
            command.envs(ca_file.iter().map(|file| ("SSL_CERT_FILE", file)));
            Ok(command)
        };
        let before = self.connections();
        self.clients.push(SupervisedProcess::start(&name, &self.journal, false, command)?);
        self.listen()?;
        // Its only connection so far is that of the reply queue.
        let more = self.connections().into_iter().zip(before).position(|(now, then)| now > then);
        self.node_of_replies = more;
        self.client()?.say("go\n")
    }

    /// Starts a wire tap for the current client; those of earlier clients stay.
    pub(crate) fn listen(&mut self) -> Result<()> {
        let name = format!("c{}", self.clients.len());
        let queue =
            self.follow.wait("the client", STEP_TIMEOUT, |lines| reply_queue(lines, &name))?;
        self.wiretaps.push(Wiretap::start(&self.runtime, &self.url, &queue, &self.dir)?);
        Ok(())
    }

    /// Stops all wire taps, so that only the clients' own queues receive replies.
    pub(crate) fn stop_listening(&mut self) {
        self.wiretaps.clear();
    }

    /// Kills the client and stops all wire taps, which would otherwise receive its replies.
    pub(crate) fn kill_client(&mut self) -> Result<()> {
        self.stop_listening();
        self.fault("kill", "client")?;
        self.client()?.kill();
        let name = format!("c{}", self.clients.len());
        self.follow
            .wait("the client's end", STEP_TIMEOUT, |lines| gone(lines, &name, 1).then_some(()))
    }

    /// Suspends the client's process with SIGSTOP for `ms` milliseconds: it reads nothing, but its
    /// connections stay open.
    pub(crate) fn suspend_client(&self, ms: u64) -> Result<()> {
        self.fault("suspend", "client")?;
        self.client()?.signal(Signal::STOP)?;
        sleep(Duration::from_millis(ms));
        self.client()?.signal(Signal::CONT)
    }

    fn client(&self) -> Result<&SupervisedProcess> {
        self.clients.last().context("there is no client")
    }

    // The network and the broker.

    /// Closes all connections whose names contain `part`.
    pub(crate) fn cut(&self, part: &str) -> Result<()> {
        self.fault("cut", if part.is_empty() { "everything" } else { part })?;
        for proxy in &self.proxies {
            proxy.cut_named(part);
        }
        Ok(())
    }

    /// Freezes the connections whose names contain `part`, in both directions.
    pub(crate) fn freeze(&self, part: &str) -> Result<()> {
        self.fault("freeze", part)?;
        self.proxies.iter().for_each(|proxy| proxy.freeze_named(part));
        Ok(())
    }

    pub(crate) fn thaw(&self) {
        self.proxies.iter().for_each(Proxy::thaw);
    }

    /// Returns the node, for scenarios that run on one node.
    pub(crate) fn node(&self) -> Result<MutexGuard<'_, Rabbit>> {
        self.servers.node()
    }

    /// Kills the only worker. Its `count` requests go to a consumer that keeps them until the end
    /// of the round.
    pub(crate) fn strand(&mut self, worker: &str, count: u16) -> Result<()> {
        let mut strand = UnackingConsumer::start(&self.runtime, &self.url, &self.model, count)?;
        self.kill(worker)?;
        strand.until_it_holds(count.into())?;
        self.strands.push(strand);
        Ok(())
    }

    // Time.

    /// Waits until callers of request `n` have received this many pieces.
    pub(crate) fn until_piece(&mut self, n: usize, count: usize) -> Result<()> {
        let what = format!("piece {count} of request {n}");
        self.follow
            .wait(&what, self.step_timeout, |lines| (pieces(lines, n) >= count).then_some(()))
    }

    /// Returns true if the caller of request `n` received the end of the reply.
    pub(crate) fn is_over(&mut self, n: usize) -> bool {
        self.follow.read().is_ok() && is_over(&self.follow.lines, n)
    }

    /// Waits until the caller of request `n` has received the end of the reply.
    pub(crate) fn until_over(&mut self, n: usize) -> Result<()> {
        self.until(&format!("the end of request {n}"), |lines| is_over(lines, n))
    }

    /// Waits until the condition holds for the journal.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&[Line]) -> bool) -> Result<()> {
        self.follow.wait(what, self.step_timeout, |lines| is_so(lines).then_some(()))
    }

    /// Waits for a random duration from the seeded generator.
    pub(crate) fn pause(&mut self, least_ms: usize, most_ms: usize) {
        sleep(Duration::from_millis(self.random.between(least_ms, most_ms) as u64));
    }

    /// Records memory and descriptors of workers and client.
    pub(crate) fn sample(&self) -> Result<()> {
        let client = self.clients.last().map(|client| ("client", client));
        let workers = self.workers.iter().map(|(name, worker)| (&**name, worker));
        for (name, process) in workers.chain(client) {
            let pid = process.pid().with_context(|| format!("{name} has ended"))?;
            let (memory_kib, descriptors) = held(pid)?;
            self.journal.note(What::Sample { name: name.to_owned(), memory_kib, descriptors })?;
        }
        Ok(())
    }

    /// Records that a fault is injected now.
    pub(crate) fn fault(&self, fault: &str, on: &str) -> Result<()> {
        Ok(self.journal.note(What::Fault { fault: fault.to_owned(), on: on.to_owned() })?)
    }

    /// Records that the scenario could not be carried out.
    pub(crate) fn broken(&self, why: String) -> Result<()> {
        Ok(self.journal.note(What::Broken { why })?)
    }

    /// Waits until every request has ended, or its time limit is over.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let longest = self.plan.asks.iter().map(|ask| ask.after_ms + ask.timeout_ms).max();
        let limit = Duration::from_millis(longest.unwrap_or(0)) + self.step_timeout;
        let asks = self.plan.asks.clone();
        let (mut ended, mut seen) = (BTreeSet::new(), 0);
        self.follow.wait("the end of every request", limit, |lines| {
            // Each line once: this check repeats with each new line, on the machine that runs the
            // workers.
            ended.extend(lines[seen..].iter().filter_map(|line| ends(&line.what)));
            seen = lines.len();
            let over = |ask: &Ask| match ask.expect {
                Expect::Abandoned(_) => running(lines, ask.order.n).is_none(),
                _ => ended.contains(&ask.order.n),
            };
            asks.iter().all(over).then_some(())
        })?;
        sleep(QUIET);
        Ok(())
    }

    /// Ends the round: records dead letters and kills all processes.
    pub(crate) fn end(mut self) -> Result<()> {
        if let Err(error) = self.runtime.block_on(self.dead_letters()) {
            self.broken(format!("the dead letters could not be read: {error:#}"))?;
        }
        self.journal.note(What::Over)?;
        // All processes are killed first; each drop then waits for the end of its own process.
        self.workers.values().chain(&self.clients).for_each(SupervisedProcess::give_up);
        self.stop_listening();
        self.strands.clear();
        if let Ok(cluster) = self.servers.cluster() {
            drop(cluster);
            // A failed round may have left fewer nodes than that.
            let deleting = async { timeout(STEP_TIMEOUT, self.delete_queues()).await };
            let _ = self.runtime.block_on(deleting);
        }
        Ok(())
    }

    async fn dead_letters(&self) -> Result<()> {
        let connection = AmqpBroker::new(&self.url)?.connect("chaos").await?;
        let queue = dead_queue(&self.model);
        let waiting = match connection.depth(&queue).await {
            Ok(depth) => depth.messages,
            // The queue does not exist if no worker ever declared it.
            Err(nsbridge_queue::Error::NoQueue { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut letters = connection.consume(&queue, 64).await?;
        for _ in 0..waiting {
            let Some(letter) = timeout(STEP_TIMEOUT, letters.recv()).await? else { break };
            let properties = &letter.message.properties;
            let request = properties.message_id.clone().unwrap_or_default();
            let reason = properties.text(header::REASON).unwrap_or("none").to_owned();
            self.journal.note(What::Dead { request, reason })?;
            letter.ack().await?;
        }
        connection.close().await;
        Ok(())
    }
}

/// Returns the worker's name without the number of its process: `w1` for `w1.2`, its third process.
pub(crate) fn base(worker: &str) -> &str {
    worker.split('.').next().unwrap_or(worker)
}

fn reply_queue(lines: &[Line], client: &str) -> Option<String> {
    lines.iter().find_map(|line| match &line.what {
        What::Client { name, reply_queue, .. } if name == client => Some(reply_queue.clone()),
        _ => None,
    })
}
