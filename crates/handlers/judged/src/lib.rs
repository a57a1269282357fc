//! Judges around a handler of text: what they refuse reaches no model and no client.
//!
//! [`Judged`] is a layer around any handler whose input is a `TextInput` and whose pieces are
//! `TextPiece`s. It judges the prompt before the handler sees it, and the reply before the client
//! sees it. A [`Judge`] finds the texts; [`Rules`] is one without a model.
//!
//! ```no_run
//! use nsbridge_handler::{Finish, Handler, Job, Models, Result, TextInput, TextPiece};
//! use nsbridge_judged::Judged;
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Options = ();
//!     type Input = TextInput;
//!     type Output = TextPiece;
//!
//!     fn load((): (), _models: Models) -> Result<Self> {
//!         Ok(Self)
//!     }
//!
//!     fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
//!         for word in input.prompt.unwrap_or_default().split_inclusive(' ') {
//!             job.emit(TextPiece::new(0, word))?;
//!         }
//!         Ok(Finish::STOP)
//!     }
//! }
//!
//! type Worker = Judged<Echo>; // nsbridge::serve::<Judged<Echo>>()
//! ```
//!
//! | you need | you take |
//! |---|---|
//! | a handler whose texts are judged | [`Judged`], with the options [`JudgedOptions`] |
//! | card and telephone numbers, addresses, injections, words of a list | [`Rules`] |
//! | a judge of your own | [`Judge`], [`Category`], [`Finding`] |
//! | a judge on a queue of its own | [`Scoring`] |

mod counts;
mod hold;
mod judge;
mod judged;
mod options;
mod panics;
mod passage;
mod policy;
mod prompt;
mod pump;
mod rules;
mod scoring;

pub use judge::{Category, Finding, Judge};
pub use judged::Judged;
pub use options::{JudgeOptions, JudgedOptions};
pub use policy::Selection;
pub use rules::{Rules, RulesOptions};
pub use scoring::Scoring;
