//! `nsbridge health`: the check of a worker or of a gateway, for orchestrators.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hyper::Request;
use hyper::body::Bytes;
use hyper::http::uri::Authority;
use nsbridge_telemetry::http::exchange;
use serde_json::Value;

use crate::place::wait_for;
use crate::terminal::print_line;

/// Time limit of the whole check.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Asks a worker or a gateway on this machine whether it is alive.
///
/// Exit status: 0 if it is, 1 if not, with the reason as one sentence. A worker that loads its model is
/// alive. There is an answer within 5 s.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nsbridge health\n  nsbridge health --ready\n  \
    nsbridge health --address 127.0.0.1:9090      the metrics port of a gateway\n\n\
    As the health check of a container: [\"CMD\", \"nsbridge\", \"health\"]")]
pub(crate) struct Arguments {
    /// Address of its pages: `listen` in [health] of a worker, `metrics` in [server] of a gateway.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9464", value_parser = address)]
    address: Authority,
    /// Asks whether it takes requests.
    #[arg(long)]
    ready: bool,
    /// Fails while a worker loads its model.
    #[arg(long, conflicts_with = "ready")]
    loaded: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let page = if arguments.ready { "readyz" } else { "livez" };
    let url = format!("http://{}/{page}", arguments.address);
    let request = Request::get(&url).body(Bytes::new()).with_context(|| format!("asking {url}"))?;
    let answer = wait_for(async { Ok(exchange(request, TIME_LIMIT).await?) });
    // The likeliest cause: neither has pages unless its configuration says where.
    let answer = answer.map_err(|error: anyhow::Error| {
        anyhow!(
            "no answer from {url}: {}: a worker has its pages where `listen` in [health] says, a \
             gateway where `metrics` in [server] says",
            nsbridge_base::chain(error.as_ref())
        )
    })?;
    let status = answer.status();
    let report = serde_json::from_slice(answer.body()).unwrap_or(Value::Null);
    if !status.is_success() {
        bail!("{url} answers {status}{}", reasons(&report));
    }
    let is_loaded = report["loaded"] == true;
    ensure!(!arguments.loaded || is_loaded, "{url} does not say that the model is loaded");
    let state = match () {
        () if arguments.ready => "ready",
        () if arguments.loaded => "alive and loaded",
        () => "alive",
    };
    print_line(&format!("{} is {state}", arguments.address))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the fields of a worker's report that are not as in a worker that takes requests.
fn reasons(report: &Value) -> String {
    let fields = report.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !["alive", "ready"].contains(&name.as_str()));
    let odd = fields.filter(|(name, value)| value.as_bool() == Some(name.as_str() == "draining"));
    let odd: Vec<String> = odd.map(|(name, value)| format!("`{name}` is {value}")).collect();
    if odd.is_empty() { String::new() } else { format!(": {}", odd.join(", ")) }
}

/// Parses the address of the pages, or their port alone.
fn address(text: &str) -> Result<Authority, String> {
    let is_port = text.parse::<u16>().is_ok();
    let text = if is_port { format!("127.0.0.1:{text}") } else { text.to_owned() };
    let parsed = text.parse().ok().filter(|address: &Authority| address.port_u16().is_some());
    parsed.ok_or_else(|| "write HOST:PORT, such as 127.0.0.1:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{address, reasons};

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(address("9090").unwrap(), "127.0.0.1:9090");
        assert_eq!(address("[::1]:9464").unwrap(), "[::1]:9464");
        for odd in ["localhost", "a b:1", "", "http://localhost:9464"] {
            assert!(address(odd).unwrap_err().contains("HOST:PORT"), "{odd}");
        }
    }

    #[test]
    fn the_reasons_are_those_of_a_worker() {
        let report = json!({
            "alive": true, "ready": false, "loaded": true, "consuming": false, "draining": true,
            "model": "m", "fingerprint": null,
        });
        assert_eq!(reasons(&report), ": `consuming` is false, `draining` is true");
        assert_eq!(reasons(&serde_json::Value::Null), "");
    }
}
