//! Options of a worker with a model in Python.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nsbridge_handler::{BatchLimits, Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::messages::Batch;

/// Maximum number of calls of one worker at a time.
const MOST_SLOTS: usize = 1024;

/// Options of [`Python`](crate::Python): the `[handler]` table of the worker's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Options {
    /// File of the model, such as `model.py`, or `model.py:Class` if more than one of its classes has
    /// a method `handle`.
    pub entry_point: PathBuf,
    /// Python interpreter: a path, such as that of a virtual environment, or a name in `PATH`.
    #[serde(default = "python3")]
    pub python: PathBuf,
    /// Number of processes. Each loads the model.
    #[serde(default = "one")]
    pub processes: usize,
    /// Number of calls that run at the same time in each process: on threads, or as tasks if `handle`
    /// is asynchronous.
    #[serde(default = "one")]
    pub slots: usize,
    /// Maximum number of inputs in a batch, for a model with `run`; 8 if it is absent. A process then
    /// takes the requests of two batches, whatever `slots` says.
    #[serde(default)]
    pub batch_size: Option<usize>,
    /// Maximum time in milliseconds that a request waits for others while the model is idle.
    #[serde(default)]
    pub max_batch_delay: u64,
    /// File for everything that the model prints while requests run. It may then hold plaintext of
    /// requests. Without it the output is dropped.
    #[serde(default)]
    pub output: Option<PathBuf>,
    /// Logs what the model prints while requests run, and the tracebacks of its exceptions, for
    /// development: both may hold plaintext of requests.
    #[serde(default)]
    pub show_output: bool,
    /// Maximum time to load the model, in seconds.
    #[serde(default = "half_an_hour")]
    pub load_timeout_s: u64,
    /// Number of crashes within `crash_window_s` at which the worker exits.
    #[serde(default = "ten")]
    pub crashes: usize,
    /// Time over which crashes are counted, in seconds.
    #[serde(default = "ten_minutes")]
    pub crash_window_s: u64,
    /// Loads the model again when its sources change, for development. The fingerprint stays that of
    /// the first load.
    #[serde(default)]
    pub reload: bool,
    /// Options of the model itself: the second argument of its `load`.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// JSON schema of the inputs once the model is loaded, for a program that runs the worker itself. No field
    /// of a configuration.
    #[serde(skip)]
    pub loaded_schema: Arc<OnceLock<Option<Value>>>,
}

pub(crate) fn python3() -> PathBuf {
    "python3".into()
}

fn one() -> usize {
    1
}

fn ten() -> usize {
    10
}

pub(crate) fn half_an_hour() -> u64 {
    1800
}

fn ten_minutes() -> u64 {
    600
}

impl Options {
    /// Creates the options of a model's file; all others have their defaults.
    ///
    /// ```
    /// let options = nsbridge_python::Options::new("model.py");
    /// assert_eq!((options.processes, options.slots), (1, 1));
    /// ```
    pub fn new(entry_point: impl Into<PathBuf>) -> Self {
        Self {
            entry_point: entry_point.into(),
            python: python3(),
            processes: one(),
            slots: one(),
            batch_size: None,
            max_batch_delay: 0,
            output: None,
            show_output: false,
            load_timeout_s: half_an_hour(),
            crashes: ten(),
            crash_window_s: ten_minutes(),
            reload: false,
            options: Map::new(),
            loaded_schema: Arc::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let counts = [("processes", self.processes), ("slots", self.slots)];
        let more = [("crashes", self.crashes), ("batch_size", self.batch_size.unwrap_or(1))];
        for (name, count) in counts.into_iter().chain(more) {
            if !(1..=MOST_SLOTS).contains(&count) {
                let what = format!("[handler] {name} must lie between 1 and {MOST_SLOTS}");
                return Err(Error::fatal(what));
            }
        }
        self.tasks(self.slots()).map(drop)
    }

    /// Returns the model's file, and the name of its class if `entry_point` has one.
    pub(crate) fn entry(&self) -> (&Path, Option<&str>) {
        let whole = self.entry_point.as_path();
        let Some(text) = whole.to_str() else { return (whole, None) };
        match text.rsplit_once(':') {
            Some((file, class)) if is_name(class) => (Path::new(file), Some(class)),
            _ => (whole, None),
        }
    }

    /// Returns the number of calls at a time in each process: those of a batch that runs and of one that
    /// gathers, or `slots`.
    pub(crate) fn slots(&self) -> usize {
        self.batch_size.map_or(self.slots, |size| 2 * size)
    }

    /// Returns the number of calls at a time in all processes, with this number of them in each.
    pub(crate) fn tasks(&self, slots: usize) -> Result<usize> {
        let tasks = self.processes * slots;
        if tasks > MOST_SLOTS {
            let what = format!(
                "[handler] processes times slots, or times twice batch_size, must be at most \
                 {MOST_SLOTS}"
            );
            return Err(Error::fatal(what));
        }
        Ok(tasks)
    }

    pub(crate) fn batch(&self) -> Option<Batch> {
        self.batch_size.map(|size| self.batch_of(size))
    }

    /// Returns the limits of a model's batches where the configuration has none.
    pub(crate) fn default_batch(&self) -> Batch {
        self.batch_of(BatchLimits::default().batch_size)
    }

    fn batch_of(&self, size: usize) -> Batch {
        Batch { size, delay_ms: self.max_batch_delay }
    }

    pub(crate) fn load_timeout(&self) -> Duration {
        Duration::from_secs(self.load_timeout_s)
    }

    pub(crate) fn crash_window(&self) -> Duration {
        Duration::from_secs(self.crash_window_s)
    }
}

/// Returns true if the text can be the name of a class in Python.
fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    let first = letters.next().is_some_and(|c| c.is_alphabetic() || c == '_');
    first && letters.all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Options;

    #[test]
    fn an_entry_point_may_name_a_class() {
        let entry = |text: &str| {
            let options = Options::new(text);
            let (file, class) = options.entry();
            (file.to_owned(), class.map(str::to_owned))
        };
        assert_eq!(entry("a/model.py"), (Path::new("a/model.py").into(), None));
        assert_eq!(entry("m.py:Bear"), (Path::new("m.py").into(), Some("Bear".to_owned())));
        assert_eq!(entry("a:b/m.py"), (Path::new("a:b/m.py").into(), None));
    }

    #[test]
    fn counts_out_of_range_are_refused_by_name() {
        let refused = |change: fn(&mut Options)| {
            let mut options = Options::new("model.py");
            change(&mut options);
            options.check().unwrap_err().to_string()
        };
        assert!(refused(|options| options.processes = 0).contains("processes"));
        assert!(refused(|options| options.slots = 0).contains("slots"));
        assert!(refused(|options| options.crashes = 0).contains("crashes"));
        let many = |options: &mut Options| (options.processes, options.slots) = (64, 64);
        assert!(refused(many).contains("processes times slots"));
    }
}
