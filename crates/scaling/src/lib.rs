//! Number of workers that a queue needs, and a simulator that replays a trace through the decisions.
//!
//! | you need | you take |
//! |---|---|
//! | a decision from counts of requests and workers | [`policy::Policy`] |
//! | the decisions that a log of observations leads to | [`policy::replay()`] |
//! | the waiting time of a steady load, in closed form | [`erlang::ErlangC`] |
//! | a trace of requests, from a file or a seed | [`trace::Trace`], [`trace::Day`] |
//! | waiting times and cost of a policy on a trace | [`simulate::simulate()`] |
//! | a table and plots of several runs | [`report`] |
//!
//! There is no clock, no network and no file in this crate: times are numbers, and traces are readers. Equal inputs
//! have equal results on every machine.
//!
//! # Limits
//!
//! - **Boot time bounds bursts.** A load that rises faster than a worker boots waits for the boot, or until the
//!   workers that are there have worked it off, with every policy that reacts to load. Only workers that are there
//!   before, or that boot faster, change that.
//! - Requests are sealed, so a backlog in tokens is a count of requests times an average. A queue of unusually long
//!   requests is underestimated until they run.
//! - The simulated cluster is simpler than a real one: a worker that is asked for always comes, after a constant boot
//!   time; interruptions are independent of each other; the network takes no time. [`simulate`] lists it all.
//!
//! # Example
//!
//! ```
//! use nsbridge_scaling::policy::{BacklogSeconds, Observation, Options, Policy, Rule};
//!
//! let rule = BacklogSeconds { worker_tokens_per_s: 160.0, ..BacklogSeconds::default() };
//! let mut policy = Policy::new(Options::new(8, Rule::BacklogSeconds(rule)))?;
//! let observation = Observation { ready_interactive: 24, ..Observation::default() };
//! let decision = policy.decide(&observation);
//! assert_eq!(
//!     decision.to_string(),
//!     "3 workers: 0 tokens/s arrive, 7200 tokens wait, and a worker makes 160 tokens/s"
//! );
//! # Ok::<(), nsbridge_scaling::Error>(())
//! ```

pub mod erlang;
mod error;
mod math;
pub mod policy;
pub mod report;
mod rng;
pub mod simulate;
pub mod trace;

pub use error::Error;
