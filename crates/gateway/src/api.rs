//! Endpoints: requests as JSON, and replies as JSON or events.

pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod decisions;
pub(crate) mod embeddings;
pub(crate) mod files;
pub(crate) mod judges;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod moderations;
pub(crate) mod responses;
pub(crate) mod run;
pub(crate) mod sampling;
pub(crate) mod schema;
pub(crate) mod service_tier;
pub(crate) mod sse;
#[cfg(test)]
mod tests;
pub(crate) mod tokens;
