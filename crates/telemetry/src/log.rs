//! Log on stderr that never holds up the work of the process.
//!
//! A pipe that is not read blocks its writer, and a log driver or a supervisor may stop to read. A
//! thread writes the lines instead. If it cannot write them fast enough, lines are dropped and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of lines that wait to be written.
const MAX_LINES: usize = 4096;

/// Maximum size of the lines that wait to be written, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// Pause between two tries to queue a flush behind lines that wait.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

/// Log of this process on stderr.
static STDERR: LazyLock<LogWriter> = LazyLock::new(|| LogWriter::start(io::stderr()));

/// Returns the writer of log lines to stderr. All writers of a process share one thread.
pub fn stderr_log() -> LogWriter {
    STDERR.clone()
}

/// Writer of log lines that never blocks. Cheap to clone. Each call of [`write`](Write::write) takes a
/// whole line, or drops and counts it.
#[derive(Clone, Debug)]
pub struct LogWriter {
    entries: SyncSender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    waiting_bytes: AtomicU64,
    dropped_lines: AtomicU64,
}

enum Entry {
    Line(Vec<u8>),
    /// Closes the channel once all lines before it are written.
    Flush(SyncSender<()>),
}

impl LogWriter {
    /// Starts a thread that writes to `output`. It ends with the last writer.
    ///
    /// If the system has no thread left, all lines are dropped and counted.
    pub fn start(output: impl Write + Send + 'static) -> Self {
        let (entries, come) = sync_channel(MAX_LINES);
        let counts = Arc::<Counts>::default();
        let shared = counts.clone();
        let thread = thread::Builder::new().name("nsbridge-log".to_owned());
        drop(thread.spawn(move || write_all(&come, output, &shared)));
        Self { entries, counts }
    }

    /// Returns the number of lines that were dropped since the process began.
    pub fn dropped_lines(&self) -> u64 {
        self.counts.dropped_lines.load(Ordering::Relaxed)
    }

    /// Waits until the lines so far are written, for at most `limit`. Returns false if they are not.
    pub fn flush_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let (done, wait) = sync_channel(0);
        let mut entry = Entry::Flush(done);
        while let Err(unsent) = self.entries.try_send(entry) {
            let TrySendError::Full(back) = unsent else { return false };
            if Instant::now() >= deadline {
                return false;
            }
            entry = back;
            thread::sleep(FLUSH_PAUSE);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        wait.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }

    fn take(&self, line: &[u8]) -> bool {
        let (waiting, bytes) = (&self.counts.waiting_bytes, line.len() as u64);
        if waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_BYTES
            && self.entries.try_send(Entry::Line(line.to_vec())).is_ok()
        {
            return true;
        }
        waiting.fetch_sub(bytes, Ordering::Relaxed);
        false
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.take(line) {
            self.counts.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(entries: &Receiver<Entry>, mut output: impl Write, counts: &Counts) {
    let mut reported = 0;
    for entry in entries {
        match entry {
            Entry::Line(line) => {
                // A log that cannot be written must not end the work.
                let _ = output.write_all(&line);
                counts.waiting_bytes.fetch_sub(line.len() as u64, Ordering::Relaxed);
            }
            Entry::Flush(done) => {
                let _ = output.flush();
                drop(done);
            }
        }
        let dropped = counts.dropped_lines.load(Ordering::Relaxed);
        if dropped > reported {
            // The line takes the usual way, and so has the format of the log.
            tracing::warn!(
                lines = dropped - reported,
                "log lines were dropped: the log is read too slowly"
            );
            reported = dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::time::Duration;

    use super::{LogWriter, MAX_BYTES, MAX_LINES};

    const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

    /// Output that blocks until its line is read.
    struct Pipe(SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (LogWriter, Receiver<Vec<u8>>) {
        let (sender, receiver) = sync_channel(0);
        (LogWriter::start(Pipe(sender)), receiver)
    }

    #[test]
    fn a_pipe_that_is_not_read_blocks_no_writer() {
        let (mut log, read) = pipe();
        for number in 0..2 * MAX_LINES {
            log.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let dropped = usize::try_from(log.dropped_lines()).unwrap();
        // The thread holds one line more than the queue.
        assert!((MAX_LINES - 1..=MAX_LINES).contains(&dropped), "{dropped}");
        assert!(!log.flush_within(Duration::from_millis(20)), "no line could be written");
        let lines: Vec<_> = read.iter().take(2 * MAX_LINES - dropped).collect();
        assert_eq!(lines.first().map(Vec::as_slice), Some(&b"0\n"[..]));
        assert_eq!(lines.len(), 2 * MAX_LINES - dropped);
        assert!(log.flush_within(WRITE_TIMEOUT));
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let (mut log, read) = pipe();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..10 {
            log.write_all(&line).unwrap();
        }
        let kept = MAX_BYTES >> 20;
        assert_eq!(log.dropped_lines(), 10 - kept);
        assert_eq!(read.iter().take(4).count(), 4);
    }

    #[test]
    fn a_flush_waits_for_the_lines_before_it() {
        let (mut log, read) = pipe();
        log.write_all(b"last words\n").unwrap();
        let reader = std::thread::spawn(move || read.recv().unwrap());
        assert!(log.flush_within(WRITE_TIMEOUT));
        assert_eq!(reader.join().unwrap(), b"last words\n");
    }
}
