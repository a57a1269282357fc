//! Output of a Python process, which is logged until the model is loaded.

use nsbridge_handler::quote;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// Maximum number of lines of one load that are logged.
const MOST_LINES: usize = 200;

/// Maximum size of a line in bytes; a longer one is cut into several.
const LONGEST_LINE: usize = 4096;

/// Logs the output until the sender reports that the model is loaded or is dropped. From then on the
/// output may quote requests, so it is read and dropped, unless `always` says that it is shown.
pub(crate) async fn log(mut output: UnixStream, mut loaded: oneshot::Receiver<()>, always: bool) {
    let mut lines = Lines { all: always, ..Lines::default() };
    let mut part = [0; 4096];
    loop {
        let read = tokio::select! {
            biased;
            read = output.read(&mut part) => read,
            _ = &mut loaded, if !always => break,
        };
        match read {
            Ok(size) if size > 0 => lines.add(&part[..size]),
            _ => break,
        }
    }
    lines.end();
    while output.read(&mut part).await.is_ok_and(|size| size > 0) {}
}

/// Splitter of output into lines.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    logged: usize,
    /// True if the number of lines has no limit.
    all: bool,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end(),
                _ if self.line.len() == LONGEST_LINE => self.end(),
                byte => self.line.push(*byte),
            }
        }
    }

    fn end(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() || self.logged > MOST_LINES {
            return;
        }
        if self.all {
            self.logged = 0;
        }
        self.logged += 1;
        if self.logged > MOST_LINES {
            tracing::info!("the model prints more while it loads; that is not logged");
        } else {
            tracing::info!("the model prints: {}", quote(String::from_utf8_lossy(&line)));
        }
    }
}
