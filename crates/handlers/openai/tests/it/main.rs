//! The handler in front of servers: replies recorded from real ones, and faults of scripted ones.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod commands;
mod embeddings;
mod faults;
mod generic;
mod llama;
mod llama_server;
mod replay;
mod vllm;
