//! Request of a reply, as it is kept.

use std::fmt;
use std::time::SystemTime;

use nsbridge_client::{ModelName, MultimodalInput, RequestId, Tenant, TextInput};
use nsbridge_gateway_access::{Extent, Priority};
use serde::{Deserialize, Deserializer, Serialize};

use crate::cost::{prompt_bytes, prompt_tokens};

/// Endpoint whose replies clients read again by their id.
pub(crate) const READ_BY_ID: &str = "response";

/// Request of a reply, with what another process needs to continue it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Record {
    /// Endpoint that received the request.
    pub kind: String,
    /// Id of the request.
    pub id: RequestId,
    /// Seed of the sampling.
    pub seed: u64,
    /// Time at which the request arrived.
    pub created_at: SystemTime,
    /// Deadline of the reply.
    pub expires_at: SystemTime,
    /// Queue of the model.
    pub model: ModelName,
    /// Tenant of the caller.
    pub tenant: Tenant,
    /// Id of the API key.
    pub key: String,
    /// Input of the worker's handler.
    #[serde(deserialize_with = "multimodal")]
    pub input: TextInput,
    /// Body of the request, if clients read the reply again by its id; else empty.
    pub body: String,
    /// Hash by which a retry is recognized.
    #[serde(rename = "join")]
    pub retry_hash: [u8; 32],
    /// Hash of the body.
    #[serde(rename = "content")]
    pub content_hash: [u8; 32],
    /// True if the reply goes on without a connection that reads it.
    pub background: bool,
    /// Number of clients of the queue that submitted the request before.
    pub clients: u16,
    /// Upper bound of the reply's tokens, prompt included.
    #[serde(default)]
    pub tokens: u64,
    /// True for a line of a batch.
    #[serde(default)]
    pub of_batch: bool,
    /// Class of the request in its queue.
    #[serde(default)]
    pub class: Priority,
}

impl Record {
    /// Returns an estimate of the prompt's tokens, which is a part of `tokens`.
    pub fn prompt_tokens(&self) -> u64 {
        prompt_tokens(&self.input)
    }

    /// Returns the size of the request in memory, in bytes.
    pub fn bytes(&self) -> usize {
        /// Record with its allocations.
        const RECORD: usize = 2048;
        let input = &self.input;
        let lists = [&input.prompt_token_ids, &input.stop_token_ids, &input.bad_token_ids];
        let ids: usize = lists.iter().map(|list| 4 * list.len()).sum();
        let values = (&input.tools, &input.chat_template_kwargs, &input.response_format);
        let values = serde_json::to_vec(&values).map_or(0, |text| Extent::of(&text).memory());
        RECORD + self.body.len() + prompt_bytes(input) + ids + 16 * input.logit_bias.len() + values
    }
}

/// Deserializes the input of any handler.
fn multimodal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextInput, D::Error> {
    MultimodalInput::deserialize(deserializer).map(|input| input.0)
}

impl fmt::Debug for Record {
    /// Omits the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("id", &self.id).finish_non_exhaustive()
    }
}
