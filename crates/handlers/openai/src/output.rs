//! Output of a server that the worker has started.

use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use nsbridge_handler::quote;
use parking_lot::Mutex;

/// Maximum number of lines of one load that are logged.
const MOST_LINES: usize = 500;

/// Maximum size of a line in bytes; a longer one is cut into several.
const LONGEST_LINE: usize = 4096;

/// Facts about the output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    ready: AtomicBool,
    /// Last line before the server was ready.
    last: Mutex<String>,
}

impl Output {
    /// Reads the output on a thread of its own, until its end. All of it goes to `file`.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub(crate) fn read(output: PipeReader, file: Option<File>) -> io::Result<Arc<Self>> {
        let this = Arc::new(Self::default());
        let reader = this.clone();
        let body = move || reader.run(BufReader::new(output), file);
        thread::Builder::new().name("nsbridge-openai-output".to_owned()).spawn(body)?;
        Ok(this)
    }

    /// Ends the logging: from now on the output may quote requests.
    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
        self.last.lock().clear();
    }

    /// Returns the last line before the server was ready.
    pub(crate) fn last_line(&self) -> String {
        self.last.lock().clone()
    }

    fn run(&self, mut output: BufReader<PipeReader>, mut file: Option<File>) {
        let (mut line, mut logged) = (Vec::new(), 0);
        loop {
            let part = match output.fill_buf() {
                Ok(part) if !part.is_empty() => part,
                _ => break,
            };
            let room = LONGEST_LINE - line.len();
            let end = part.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(part.len()).min(room);
            line.extend_from_slice(&part[..taken]);
            output.consume(taken);
            if line.last() == Some(&b'\n') || line.len() == LONGEST_LINE {
                self.take(&std::mem::take(&mut line), &mut file, &mut logged);
            }
        }
        self.take(&line, &mut file, &mut logged);
    }

    fn take(&self, line: &[u8], file: &mut Option<File>, logged: &mut usize) {
        if let Some(open) = file
            && open.write_all(line).is_err()
        {
            tracing::warn!("the output of the server cannot be written; it is dropped");
            *file = None;
        }
        let text = String::from_utf8_lossy(line);
        if self.ready.load(Ordering::Relaxed) || text.trim().is_empty() {
            return;
        }
        let text = quote(text.trim_end());
        *logged += 1;
        match *logged {
            count if count <= MOST_LINES => tracing::info!("the server prints: {text}"),
            count if count == MOST_LINES + 1 => {
                tracing::info!("the server prints more while it loads; that is not logged");
            }
            _ => {}
        }
        *self.last.lock() = text;
    }
}
