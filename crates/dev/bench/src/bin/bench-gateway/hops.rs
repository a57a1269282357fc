//! The gateway beside other servers and proxies, all with the real model.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result};
use nsbridge_bench::report::{Report, Row, median, percentile};
use tokio::task::JoinSet;

use crate::gathered;
use crate::http::{Call, Stream};
use crate::real::{MODEL, Program, Programs, serves};

/// Number of rounds; in each, all servers take their turn.
const ROUNDS: usize = 5;

/// Number of requests of a round.
const REQUESTS: usize = 32;

/// Tokens of a reply whose rate is measured.
const TOKENS: usize = 64;

/// Numbers of concurrent requests.
const CONCURRENCIES: [usize; 3] = [1, 4, 16];

/// Server that is measured.
struct Server {
    name: &'static str,
    address: SocketAddr,
    _programs: Vec<Program>,
}

/// Measures the whole system beside llama-server, and proxies in front of llama-server.
pub(crate) async fn measure(programs: &Programs, report: &mut Report) -> Result<()> {
    let worker = programs.worker("worker")?;
    let (gateway, address) = programs.gateway("gateway").await?;
    let ours = Server { name: "ours", address, _programs: vec![worker, gateway] };
    serves(ours.address, &Call::chat(MODEL, "Hello", 1)).await.context("the gateway serves")?;
    let llama = match programs.llama_server("llama-server").await {
        Ok((program, address)) => {
            Some(Server { name: "llama-server", address, _programs: vec![program] })
        }
        Err(error) => missing(report, "llama-server", &error),
    };
    let mut proxies = Vec::new();
    if let Some(llama) = &llama {
        match programs.smg(&[llama.address]).await {
            Ok((program, address)) => {
                proxies.push(Server { name: "smg", address, _programs: vec![program] });
            }
            Err(error) => drop(missing(report, "smg", &error)),
        }
        match programs.litellm(llama.address).await {
            Ok((program, address)) => {
                proxies.push(Server { name: "litellm", address, _programs: vec![program] });
            }
            Err(error) => drop(missing(report, "litellm", &error)),
        }
    }
    for at_once in CONCURRENCIES {
        first(&ours, llama.as_ref(), &proxies, at_once, report).await?;
    }
    for at_once in [1, 4, 16] {
        rate(&ours, llama.as_ref(), at_once, report).await?;
    }
    Ok(())
}

/// Adds a row that says why a peer is missing.
fn missing(report: &mut Report, name: &str, error: &anyhow::Error) -> Option<Server> {
    eprintln!("{name}: {error:#}");
    report.push(Row {
        name: format!("gateway.peer.{name}"),
        value: 0.0,
        unit: "peers",
        better: "higher",
        peer: Some(format!("not measured: {error:#}")),
        peer_value: None,
        ratio: None,
    });
    None
}

/// Measures the time to the first token of all servers.
async fn first(
    ours: &Server,
    llama: Option<&Server>,
    proxies: &[Server],
    at_once: usize,
    report: &mut Report,
) -> Result<()> {
    let servers: Vec<&Server> = [ours].into_iter().chain(llama).chain(proxies).collect();
    let mut times = vec![Vec::new(); servers.len()];
    let mut added = vec![(Vec::new(), Vec::new()); proxies.len()];
    for round in 1..=ROUNDS {
        let mut medians = Vec::new();
        let mut slowest = Vec::new();
        for (server, all) in servers.iter().zip(&mut times) {
            let mut some = firsts(server.address, at_once, round).await?;
            medians.push(median(&mut some));
            slowest.push(percentile(&mut some, 0.99));
            all.push(median(&mut some));
        }
        let said = servers.iter().zip(&medians).map(|(s, ms)| format!("{} {ms:.1} ms", s.name));
        let said = said.collect::<Vec<_>>().join(", ");
        eprintln!("round {round}, {at_once} at once: {said}");
        for (number, (middle, late)) in added.iter_mut().enumerate() {
            // The first is ours, the second llama-server alone.
            middle.push(medians[number + 2] - medians[1]);
            late.push(slowest[number + 2] - slowest[1]);
        }
    }
    let theirs = times.get_mut(1).map(|times| median(times));
    let value = median(&mut times[0]);
    report.push(Row {
        name: format!("gateway.end_to_end_ttft_p50_{at_once}"),
        value,
        unit: "ms",
        better: "lower",
        peer: llama.map(|_| "llama-server, the same file and threads".to_owned()),
        peer_value: theirs,
        ratio: theirs.map(|theirs| theirs / value),
    });
    for (proxy, (middle, late)) in proxies.iter().zip(&mut added) {
        for (share, values) in [("p50", middle), ("p99", late)] {
            report.push(Row {
                name: format!("gateway.ttft_added_{share}_{at_once}.by_{}", proxy.name),
                value: median(values),
                unit: "ms",
                better: "lower",
                peer: Some(format!("{} in front of llama-server; not ours", proxy.name)),
                peer_value: None,
                ratio: None,
            });
        }
    }
    Ok(())
}

/// Returns the times to the first token in ms.
async fn firsts(address: SocketAddr, at_once: usize, round: usize) -> Result<Vec<f64>> {
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        tasks.spawn(async move {
            let mut times = Vec::new();
            for number in 0..REQUESTS.max(2 * at_once) / at_once {
                let call = call(round, task, number, 1);
                // Some servers close a connection after a few requests.
                let mut stream = Stream::connect(address).await?;
                let took = stream.first(&call, Instant::now()).await?;
                times.push(took.as_secs_f64() * 1000.0);
            }
            anyhow::Ok(times)
        });
    }
    gathered(tasks).await
}

/// Measures the tokens per second of concurrent replies.
async fn rate(
    ours: &Server,
    llama: Option<&Server>,
    at_once: usize,
    report: &mut Report,
) -> Result<()> {
    let (mut values, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let one = tokens_per_s(ours.address, at_once, round).await?;
        values.push(one);
        if let Some(llama) = llama {
            let other = tokens_per_s(llama.address, at_once, round).await?;
            eprintln!("round {round}, {at_once} at once: {one:.1} and {other:.1} tokens/s");
            theirs.push(other);
            ratios.push(one / other);
        }
    }
    report.push(Row {
        name: format!("gateway.end_to_end_tokens_per_s_{at_once}"),
        value: median(&mut values),
        unit: "tokens/s",
        better: "higher",
        peer: llama.map(|_| "llama-server, the same file and threads".to_owned()),
        peer_value: (!theirs.is_empty()).then(|| median(&mut theirs)),
        ratio: (!ratios.is_empty()).then(|| median(&mut ratios)),
    });
    Ok(())
}

async fn tokens_per_s(address: SocketAddr, at_once: usize, round: usize) -> Result<f64> {
    let (began, mut tasks) = (Instant::now(), JoinSet::new());
    for task in 0..at_once {
        tasks.spawn(async move {
            let call = call(round, task, 1000, TOKENS).whole();
            Stream::connect(address).await?.whole(&call).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((at_once * TOKENS) as f64 / began.elapsed().as_secs_f64())
}

/// Returns a chat whose message no other call has, so that no server knows more than the template.
fn call(round: usize, task: usize, number: usize, tokens: usize) -> Call {
    let message = format!("{round}.{task}.{number}: tell me a story about a bear at the sea.");
    Call::chat(MODEL, &message, tokens)
}
