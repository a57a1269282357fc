//! Handler for models in Python.
//!
//! [`Python`] loads a `model.py` into child processes and passes requests to it. The code that runs
//! in these processes needs Python 3.9 or later and its standard library alone; it is part of this
//! crate. A crash of a process costs the requests in it one try, not the worker.
//!
//! ```python
//! class Model:
//!     def load(self, models):
//!         self.words = (models["target"] / "words.txt").read_text().split()
//!
//!     def handle(self, input, job):
//!         yield from self.words
//! ```
//!
//! `docs/python.md` describes what a model may do.

mod call;
mod crashes;
mod engine;
mod error;
mod handler;
mod host;
mod messages;
mod model;
mod options;
mod plan;
mod pool;
mod prints;
mod process;
mod sources;
mod start;
mod wire;

pub use engine::{
    EmbeddingTask, Engine, EngineName, EngineOptions, EngineTask, JudgeTask, TextTask,
};
pub use handler::{Python, schema};
pub use options::Options;
