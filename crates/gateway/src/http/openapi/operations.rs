//! Operations of the interface, one for each route and method.

/// Operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Body,
    /// Schema of the answer; `text` or `bytes` if it is no JSON.
    pub(super) reply: &'static str,
    /// Parameters of the query.
    pub(super) query: &'static [&'static str],
    /// True if it needs no key.
    pub(super) is_public: bool,
}

/// Body of a request, by its schema.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    None,
    Json(&'static str),
    Form(&'static str),
}

/// Schemas of answers that may be streamed as events.
pub(super) const STREAMED: [&str; 5] =
    ["ChatCompletion", "Completion", "Message", "Response", "Run"];

const fn post(
    path: &'static str,
    body: &'static str,
    reply: &'static str,
    summary: &'static str,
) -> Operation {
    let (method, body) = ("post", Body::Json(body));
    Operation { method, path, summary, body, reply, query: &[], is_public: false }
}

const fn without_body(
    method: &'static str,
    path: &'static str,
    reply: &'static str,
    summary: &'static str,
) -> Operation {
    let (query, is_public): (&[&str], bool) = (&[], false);
    Operation { method, path, summary, body: Body::None, reply, query, is_public }
}

const fn get(path: &'static str, reply: &'static str, summary: &'static str) -> Operation {
    without_body("get", path, reply, summary)
}

const fn public(path: &'static str, reply: &'static str, summary: &'static str) -> Operation {
    Operation { is_public: true, ..get(path, reply, summary) }
}

const fn listed(operation: Operation, query: &'static [&'static str]) -> Operation {
    Operation { query, ..operation }
}

/// All operations.
pub(super) const OPERATIONS: &[Operation] = &[
    post("/v1/chat/completions", "ChatRequest", "ChatCompletion", "Answers a chat"),
    post("/v1/completions", "CompletionRequest", "Completion", "Completes prompts"),
    post("/v1/decisions", "DecisionRequest", "Decision", "Answers questions about a text"),
    post("/v1/embeddings", "EmbeddingRequest", "List", "Makes vectors of texts"),
    post("/v1/messages", "MessagesRequest", "Message", "Answers a message"),
    post(
        "/v1/messages/count_tokens",
        "MessagesRequest",
        "TokenCount",
        "Counts tokens of a message",
    ),
    get("/v1/models", "List", "Lists models"),
    get("/v1/models/{name}", "Model", "Shows a model"),
    post("/v1/models/{name}/run", "RunRequest", "Run", "Gives an input to a model of its own kind"),
    post("/v1/moderations", "ModerationRequest", "Moderation", "Scores texts by category"),
    post("/tokenize", "TokenizeRequest", "Tokens", "Returns the tokens of a text"),
    post("/v1/tokenize", "TokenizeRequest", "Tokens", "Returns the tokens of a text"),
    post("/detokenize", "DetokenizeRequest", "Text", "Returns the text of tokens"),
    post("/v1/detokenize", "DetokenizeRequest", "Text", "Returns the text of tokens"),
    post("/v1/responses", "ResponsesRequest", "Response", "Creates a response"),
    post(
        "/v1/responses/input_tokens",
        "ResponsesRequest",
        "TokenCount",
        "Counts tokens of an input",
    ),
    post("/v1/responses/compact", "Any", "Any", "Is refused: conversations are not compacted"),
    listed(
        get("/v1/responses/{id}", "Response", "Shows or streams a response"),
        &["stream", "starting_after", "include_obfuscation"],
    ),
    without_body("delete", "/v1/responses/{id}", "Deleted", "Forgets a response"),
    without_body("post", "/v1/responses/{id}/cancel", "Response", "Cancels a response"),
    get("/v1/responses/{id}/input_items", "List", "Lists the items of an input"),
    listed(get("/v1/files", "FileList", "Lists files"), &["after", "limit", "order", "purpose"]),
    Operation {
        body: Body::Form("Upload"),
        ..without_body("post", "/v1/files", "File", "Stores a file")
    },
    get("/v1/files/{id}", "File", "Shows a file"),
    without_body("delete", "/v1/files/{id}", "Deleted", "Deletes a file"),
    get("/v1/files/{id}/content", "bytes", "Sends the content of a file"),
    listed(get("/v1/batches", "BatchList", "Lists batches"), &["after", "limit"]),
    post("/v1/batches", "BatchRequest", "Batch", "Creates a batch"),
    get("/v1/batches/{id}", "Batch", "Shows a batch"),
    without_body("post", "/v1/batches/{id}/cancel", "Batch", "Cancels a batch"),
    get("/v1/sealed", "Any", "Passes sealed frames of a proxy on, as a WebSocket"),
    public("/openapi.json", "Any", "Sends this document"),
    public("/livez", "text", "Says that the process runs"),
    public("/health", "text", "Says that requests are taken"),
    public("/readyz", "text", "Says that requests are taken"),
];
