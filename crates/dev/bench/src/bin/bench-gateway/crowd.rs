//! Memory of the gateway's process with ten thousand connections, and with as many streams.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nsbridge_bench::report::{Report, Row};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::gathered;
use crate::http::{Call, Stream};
use crate::real::{MODEL, Program, Programs, serves};

/// Number of connections, and of streams.
const CROWD: usize = 10_000;

/// Number of tasks that open them.
const TASKS: usize = 50;

/// Number of addresses of this machine, from 127.0.0.1 on, that they come from.
const ADDRESSES: u32 = 8;

/// Time limit for a request beside the crowd.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Measures a gateway with idle connections, and another with streams that wait for their token.
pub(crate) async fn measure(programs: &Programs, report: &mut Report) -> Result<()> {
    raise_limit()?;
    let _worker = programs.worker("busy")?;
    for streams in [false, true] {
        let name = if streams { "crowd-of-streams" } else { "crowd-of-connections" };
        let (gateway, address) = programs.gateway(name).await?;
        serves(address, &Call::chat(MODEL, "Hello", 1)).await?;
        let (before, began) = (gateway.resident()?, Instant::now());
        let crowd = open(address, streams).await?;
        let took = began.elapsed();
        sleep(Duration::from_secs(1)).await;
        let (after, in_time) = (gateway.resident()?, beside(address).await);
        ensure!(crowd.len() == CROWD, "not all are open");
        drop(crowd);
        in_time.with_context(|| format!("a request beside {CROWD} others"))?;
        let what = if streams { "streams" } else { "connections" };
        row(report, &gateway, what, before, after, took)?;
    }
    Ok(())
}

fn row(
    report: &mut Report,
    gateway: &Program,
    what: &str,
    before: u64,
    after: u64,
    took: Duration,
) -> Result<()> {
    eprintln!("{CROWD} {what}: {before} KiB before, {after} KiB with them, in {took:.1?}");
    let mib = |kib: u64| kib as f64 / 1024.0;
    report.push(Row {
        name: format!("gateway.rss_{CROWD}_{what}_mib"),
        value: mib(after),
        unit: "MiB",
        better: "lower",
        peer: Some(format!(
            "the process before: {:.0} MiB; without them again: {:.0} MiB",
            mib(before),
            mib(gateway.resident()?)
        )),
        peer_value: None,
        ratio: None,
    });
    Ok(())
}

/// Opens connections that have had one answer, or streams that have had their first event.
async fn open(address: SocketAddr, streams: bool) -> Result<Vec<Stream>> {
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        // A gateway bounds the connections of one address.
        let source = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number as u32 % ADDRESSES);
        tasks.spawn(async move {
            let mut some = Vec::new();
            for _ in 0..CROWD / TASKS {
                let mut stream = Stream::connect_from(source, address).await?;
                if streams {
                    stream.wait(&Call::chat(MODEL, "Tell me a story.", 400)).await?;
                } else {
                    stream.send(&Call::page("/livez")).await?;
                    stream.until(|received| received.starts_with(b"HTTP/1.1 200")).await?;
                }
                some.push(stream);
            }
            anyhow::Ok(some)
        });
    }
    gathered(tasks).await
}

/// Asks for a page beside the crowd.
async fn beside(address: SocketAddr) -> Result<()> {
    let ask = async {
        let mut stream = Stream::connect(address).await?;
        stream.send(&Call::page("/readyz")).await?;
        stream.until(|received| received.starts_with(b"HTTP/1.1 200")).await
    };
    timeout(REQUEST_TIMEOUT, ask).await.context("no answer in two seconds")?
}

/// Raises the limit of open files of this process to what the system allows.
fn raise_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let needed = 2 * CROWD as u64;
    ensure!(
        limit.maximum.is_none_or(|most| most >= needed),
        "the limit of open files is {:?} and must be {needed}: raise it with `ulimit -Hn`",
        limit.maximum
    );
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(())
}
