//! Requests in steps: one deadline, one trace and one seed for all of them.
//!
//! A [`Flow`] submits the requests of one task. [`Flow::map`] runs a step for each of many items,
//! [`judged`] writes a text that a judge reads while it is written, and [`answer`] writes from
//! retrieved passages. The Python client has functions of the same names in `nsbridge.combine`.
//!
//! ```no_run
//! use nsbridge_client::combine::{Flow, Gate, judged};
//! use nsbridge_client::{Client, TextInput};
//!
//! async fn tell(client: &Client, topic: &str) -> Result<String, Box<dyn std::error::Error>> {
//!     let flow = Flow::new(client, "acme".parse()?)?.seed(7);
//!     let plan = TextInput { max_tokens: Some(20), ..TextInput::prompt(format!("{topic}:")) };
//!     let (plan, _) = flow.text("tale-7m".parse()?, plan).await?.collect().await?;
//!     let plan: String = plan.into_iter().map(|piece| piece.text).collect();
//!     let gate = Gate::new("judge".parse()?, [("violence", 0.5)]);
//!     let mut parts = judged(&flow, plan, gate, "tale-7m".parse()?, TextInput::default());
//!     let mut text = String::new();
//!     // A score above 0.5 cancels the writer and ends the loop with `Error::CutOff`.
//!     while let Some(part) = parts.next().await {
//!         text += &part?;
//!     }
//!     Ok(text)
//! }
//! ```

mod error;
mod flow;
mod in_order;
mod judged;
mod requests;
mod retrieve;

pub use error::{CutOff, Error, Result};
pub use flow::{Flow, step_seed};
pub use in_order::in_order;
pub use judged::{Gate, Judged, judged};
pub use retrieve::{Passage, Retrieval, answer, cited, retrieve};
