//! Facts about the server.

use std::sync::Arc;

use nsbridge_handler::TextInput;

use crate::http::Http;
use crate::options::Flavor;
use crate::texts::Texts;

/// Kind of reply that a worker wants from its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Text,
    Embeddings,
}

/// Server with the facts that the load has found out.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) http: Arc<Http>,
    pub(crate) flavor: Flavor,
    /// Name of the model there.
    pub(crate) model: String,
    /// Names of the adapters there.
    pub(crate) adapters: Vec<String>,
    /// Texts of tokens, if the server tells the ids of a reply's tokens.
    pub(crate) texts: Option<Texts>,
    /// Maximum number of tokens of prompt and reply together, if the server tells it.
    pub(crate) context: Option<usize>,
    /// True if all tenants share llama-server's prefix cache.
    pub(crate) share_prefix_cache: bool,
    /// True if the model takes images.
    pub(crate) takes_images: bool,
    /// Facts on which the tokens depend, for the fingerprint.
    pub(crate) facts: Vec<String>,
}

impl Server {
    /// Returns the name there of the model, or of the adapter that the request chooses.
    pub(crate) fn model_of<'a>(&'a self, input: &'a TextInput) -> &'a str {
        input.adapter.as_deref().unwrap_or(&self.model)
    }

    /// Returns the page that tells whether the server is ready.
    pub(crate) fn health_page(&self) -> &'static str {
        match self.flavor {
            Flavor::Generic => "/v1/models",
            _ => "/health",
        }
    }
}
