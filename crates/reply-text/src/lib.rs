//! Text of a model's reply, turned into the parts of OpenAI-style answers while it streams.
//!
//! [`OutputParser`] reads pieces of text and returns [`Delta`]s: answer, reasoning, and tool calls.
//! [`tools`] reads the functions that a request offers, and makes the schema that forces a call. Both
//! are pure: they do no I/O, and equal pieces give equal deltas.
//!
//! ```
//! use nsbridge_reply_text::{Delta, OutputParser, ToolFormat};
//!
//! let mut parser = OutputParser::new(ToolFormat::Hermes, None);
//! let mut deltas = parser.push("It is <tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>");
//! deltas.extend(parser.end());
//! assert_eq!(deltas[0], Delta::Content("It is".to_owned()));
//! assert!(matches!(&deltas[1], Delta::CallBegin { name, .. } if name == "clock"));
//! ```

mod output;
pub mod schema;
pub mod tools;

pub use self::output::{
    Delta, Forced, LONGEST_NAME, OutputParser, ReasoningTags, ToolFormat, is_name,
};
