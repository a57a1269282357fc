//! Progress of long work on stderr: a bar on a terminal, else a line from time to time.

mod line;

use std::io::{IsTerminal as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nsbridge_handler::source::LoadProgress;
use nsbridge_store::Counts;
use parking_lot::Mutex;

use self::line::line;
use crate::failure::status;

/// Interval at which the numbers are read.
const TICK: Duration = Duration::from_millis(100);

/// Age of work that is not shown yet on a terminal.
pub(crate) const BAR_AFTER: Duration = Duration::from_secs(1);

/// Age of work without a terminal at its first line.
const FIRST_LINE_AFTER: Duration = Duration::from_secs(2);

/// Interval between two lines.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_secs(5);

const BAR: &str =
    "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";

const SPINNER: &str = "{spinner} {msg} {elapsed}";

/// Way in which progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Display {
    /// One line that is redrawn.
    Bar,
    /// A line from time to time, through the log.
    Lines,
    /// Nothing.
    Hidden,
}

impl Display {
    /// Returns how stderr shows progress: as a bar if it is a terminal that can move its cursor.
    pub(crate) fn of_stderr() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
        if stderr().is_terminal() && !is_dumb { Self::Bar } else { Self::Lines }
    }

    /// Returns how a command with this value of `--json` shows progress.
    pub(crate) fn unless(hidden: bool) -> Self {
        if hidden { Self::Hidden } else { Self::of_stderr() }
    }
}

/// Bytes that are done and to do; 0 to do if the number is not known.
type Numbers = (u64, u64);

/// Work that is shown until this is dropped.
#[derive(Debug)]
#[must_use = "the progress is shown until this is dropped"]
pub(crate) struct Shown {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Shown {
    /// Shows work by its name and by the numbers that `numbers` returns.
    pub(crate) fn new(
        what: impl Into<String>,
        display: Display,
        numbers: impl Fn() -> Numbers + Send + 'static,
    ) -> Self {
        let (end, ended) = channel();
        let what = what.into();
        let show = move || match display {
            Display::Bar => show_bar(what, numbers, &ended),
            Display::Lines => show_lines(&what, numbers, &ended),
            Display::Hidden => {}
        };
        // Without a thread the work is done all the same.
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { end: Some(end), thread }
    }

    /// Shows work of an unknown size.
    pub(crate) fn of_unknown(what: impl Into<String>, display: Display) -> Self {
        Self::new(what, display, || (0, 0))
    }

    /// Shows the load of a model.
    pub(crate) fn of_load(
        what: impl Into<String>,
        display: Display,
        progress: LoadProgress,
    ) -> Self {
        Self::new(what, display, move || (progress.loaded(), progress.total()))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn has_ended(ended: &Receiver<()>) -> bool {
    ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout)
}

fn show_bar(what: String, numbers: impl Fn() -> Numbers, ended: &Receiver<()>) {
    let began = Instant::now();
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
    bar.set_message(what);
    let mut known = None;
    let mut is_shown = false;
    while !has_ended(ended) {
        let (done, total) = numbers();
        let is_known = total > 0;
        if known.replace(is_known) != Some(is_known)
            && let Ok(style) = ProgressStyle::with_template(if is_known { BAR } else { SPINNER })
        {
            bar.set_style(style);
        }
        bar.set_length(total);
        bar.set_position(done);
        if !is_shown && began.elapsed() >= BAR_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            is_shown = true;
        }
        bar.tick();
    }
    bar.finish_and_clear();
}

fn show_lines(what: &str, numbers: impl Fn() -> Numbers, ended: &Receiver<()>) {
    let began = Instant::now();
    let mut due = FIRST_LINE_AFTER;
    while !has_ended(ended) {
        let took = began.elapsed();
        if took >= due {
            status(&line(what, numbers(), took));
            due = took + LINE_INTERVAL;
        }
    }
}

/// Progress in bytes that the work itself counts. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Bar(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    what: &'static str,
    display: Display,
    bytes: Arc<[AtomicU64; 2]>,
    shown: Mutex<Option<Shown>>,
}

impl Bar {
    /// Creates a bar that is not shown yet.
    pub(crate) fn new(what: &'static str, hidden: bool) -> Self {
        let display = Display::unless(hidden);
        Self(Arc::new(Counted { what, display, bytes: Arc::default(), shown: Mutex::default() }))
    }

    /// Shows the bar with this number of bytes to do.
    pub(crate) fn expect(&self, total: u64) {
        self.expect_more(total, || 0);
    }

    /// Shows the bar with this number of bytes to do. `store` counts those that arrive, which are added as
    /// whole chunks.
    pub(crate) fn expect_from(&self, total: u64, store: Arc<Counts>) {
        self.expect_more(total, move || store.from_store.get());
    }

    fn expect_more(&self, total: u64, arrived: impl Fn() -> u64 + Send + 'static) {
        let Counted { what, display, bytes, shown } = &*self.0;
        bytes[1].store(total, Ordering::Relaxed);
        let read = bytes.clone();
        let numbers = move || {
            let [done, total] = &*read;
            (done.load(Ordering::Relaxed).max(arrived()), total.load(Ordering::Relaxed))
        };
        shown.lock().get_or_insert_with(|| Shown::new(*what, *display, numbers));
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.bytes[0].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes to do.
    pub(crate) fn total(&self) -> u64 {
        self.0.bytes[1].load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        drop(self.0.shown.lock().take());
    }
}

/// Formats a number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
