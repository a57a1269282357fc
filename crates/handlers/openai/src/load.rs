//! Load: starts the server if the worker owns it, and waits until it is ready.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use nsbridge_base::child::Exit;
use nsbridge_base::private_file::{PrivateFile, open_own};
use nsbridge_handler::{Error, Result, quote};

use crate::http::{Http, HttpError};
use crate::options::Options;
use crate::process::Process;

/// File with the API key of a server.
const API_KEY: PrivateFile = PrivateFile { what: "API key file", most: 64 << 10, of_root: false };

/// Interval at which a server that is not ready is asked again.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Time in which a port that is free refuses a connection.
const TAKEN_LIMIT: Duration = Duration::from_secs(2);

/// Reason why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("cannot start {program}, the command of [handler]")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "a server answers at {root} before the command of [handler] is started: stop that server, take \
         another port, or leave out the command"
    )]
    Taken { root: String },
    #[error("{program} has ended before it was ready ({exit}); its last line: {line}")]
    Ended { program: String, exit: Exit, line: String },
    #[error(
        "the server was not ready within {} s ({why}); [handler] load_timeout_s sets the limit",
        .limit.as_secs()
    )]
    Timeout { limit: Duration, why: String },
    #[error("the API key in {path} is no text of one line")]
    Key { path: String },
    #[error("cannot open {path}, the output of [handler]")]
    Output {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// Creates the client of the server.
///
/// # Errors
///
/// Returns an error if the address or the API key cannot be used.
pub(crate) fn client(options: &Options) -> Result<Arc<Http>> {
    let key = options.api_key_file.as_deref().map(key).transpose()?;
    Ok(Arc::new(Http::new(&options.url, key).map_err(Error::fatal)?))
}

fn key(path: &Path) -> Result<HeaderValue> {
    let content = API_KEY.read(path).map_err(Error::fatal)?;
    let wrong = || Error::fatal(LoadError::Key { path: path.display().to_string() });
    let key = std::str::from_utf8(&content).map_err(|_| wrong())?.trim();
    if key.is_empty() {
        return Err(wrong());
    }
    let mut header = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| wrong())?;
    header.set_sensitive(true);
    Ok(header)
}

/// Starts the server, if the options have a command.
///
/// # Errors
///
/// Returns an error if the program cannot be started, or if its port is taken.
pub(crate) async fn started(http: &Http, options: &Options) -> Result<Option<Process>> {
    let Some(program) = options.command.first() else { return Ok(None) };
    // A server that accepts a connection and does not answer has the port too.
    let answer = tokio::time::timeout(TAKEN_LIMIT, http.get("/health")).await;
    if !matches!(answer, Ok(Err(HttpError::Connect { .. }))) {
        return Err(Error::fatal(LoadError::Taken { root: http.root().to_owned() }));
    }
    let file = options.output.as_deref().map(output).transpose()?;
    let failed = |source| Error::fatal(LoadError::Start { program: quote(program), source });
    Process::start(&options.command, file).map(Some).map_err(failed)
}

/// Opens a file that only this user may read, and appends to it.
fn output(path: &Path) -> Result<File> {
    let open = || {
        let mut file = open_own(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    };
    let failed =
        |source| Error::fatal(LoadError::Output { path: path.display().to_string(), source });
    open().map_err(failed)
}

/// Waits until the server is ready.
///
/// # Errors
///
/// Returns an error if the server ends before, or is not ready in time.
pub(crate) async fn ready(http: &Http, process: Option<&Process>, options: &Options) -> Result<()> {
    let limit = options.load_timeout();
    let mut why = format!("{} has not answered", http.root());
    let asked = async {
        let mut told = false;
        while let Some(because) = unready(http).await {
            if !told && process.is_none() {
                tracing::info!(
                    "waiting for the server, for {} s at most: {because}",
                    limit.as_secs()
                );
                told = true;
            }
            why = because;
            tokio::time::sleep(ASK_EVERY).await;
        }
    };
    let ended = async {
        match process {
            Some(process) => process.exit().await,
            None => std::future::pending().await,
        }
    };
    let program = options.command.first().map(quote).unwrap_or_default();
    let result = tokio::select! {
        biased;
        exit = ended => Err(exit),
        done = tokio::time::timeout(limit, asked) => Ok(done),
    };
    match (result, process) {
        (Ok(Ok(())), _) => Ok(()),
        (Err(exit), Some(process)) => {
            // The last line may come after the end.
            tokio::time::sleep(ASK_EVERY).await;
            let line = process.output().last_line();
            Err(Error::fatal(LoadError::Ended { program, exit, line }))
        }
        _ => Err(Error::fatal(LoadError::Timeout { limit, why })),
    }
}

/// Returns the reason if the server is not ready. A server without a page of health is, once it answers.
async fn unready(http: &Http) -> Option<String> {
    for page in ["/health", "/v1/models"] {
        match http.get(page).await {
            Ok(answer) if answer.status.is_server_error() => {
                let status = answer.status.as_u16();
                return Some(format!("{}{page} answers with status {status}", http.root()));
            }
            Ok(_) => {}
            Err(error) => return Some(nsbridge_base::chain(&error)),
        }
    }
    None
}
