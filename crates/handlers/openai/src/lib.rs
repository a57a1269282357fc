//! Handler in front of a server of OpenAI's API.
//!
//! [`OpenAi`] passes each request for text to a server, and [`OpenAiEmbedder`] each for vectors: that of vLLM, SGLang, llama.cpp or any other. The
//! server runs on this host or another one, or is a child process. What kind of server it is, its
//! [`Flavor`], decides how a request is mapped: each field of a `TextInput` is mapped, or refused by
//! its name.
//!
//! | flavor | prompt | a piece is | a later attempt |
//! |---|---|---|---|
//! | vLLM | token ids, of chats too | a token | continues plain text |
//! | llama-server | token ids, of chats too | a token | continues plain text |
//! | SGLang, others | text, or the chat itself | a word | starts over |

mod answer;
mod background;
mod chunk;
mod embedder;
mod fields;
mod format;
mod handler;
mod health;
mod http;
mod load;
mod metrics;
mod options;
mod output;
mod plan;
mod probe;
mod process;
mod prompt;
mod prompt_pieces;
mod replies;
mod reply;
mod request;
mod resume;
mod server;
mod sse;
mod stops;
mod stream;
mod texts;
mod upstream;
mod variables;
mod vector;
mod words;

pub use embedder::OpenAiEmbedder;
pub use handler::OpenAi;
pub use options::{Flavor, Options};
