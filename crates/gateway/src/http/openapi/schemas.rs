//! Schemas of the document. They list the official fields; gateway.md has those that are ours.

use serde_json::{Map, Value, json};

/// Returns the schema of a parameter of a path's query.
pub(super) fn query(path: &str, name: &str) -> Value {
    match name {
        "limit" => {
            let most = if path == "/v1/files" { 10_000 } else { 100 };
            json!({ "type": "integer", "minimum": 1, "maximum": most })
        }
        "starting_after" => json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }),
        "stream" | "include_obfuscation" => json!({ "type": "boolean" }),
        "order" => json!({ "enum": ["asc", "desc"] }),
        _ => json!({ "type": "string" }),
    }
}

/// Returns all schemas by name.
pub(super) fn schemas() -> Value {
    let mut all = Map::new();
    for part in [requests(), replies()] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    all.into()
}

/// Returns fields with those that all requests for text have.
fn sampled(fields: Value) -> Value {
    let mut all = json!({
        "model": nullable(&json!({ "type": "string" })),
        "temperature": nullable(&json!({ "type": "number", "minimum": 0 })),
        "top_p": nullable(&json!({ "type": "number", "minimum": 0, "maximum": 1 })),
        "stream": nullable(&json!({ "type": "boolean" }))
    });
    if let (Some(all), Value::Object(fields)) = (all.as_object_mut(), fields) {
        all.extend(fields);
    }
    all
}

fn nullable(schema: &Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn object(required: &[&str], fields: &Value) -> Value {
    json!({ "type": "object", "required": required, "properties": fields })
}

fn tokens() -> Value {
    nullable(&json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
}

fn messages() -> Value {
    let text = json!({ "type": "string" });
    // A message of a tool call has no content.
    let message = object(&["role"], &json!({ "role": text, "content": {} }));
    json!({ "type": "array", "minItems": 1, "items": message })
}

fn requests() -> Value {
    let text = json!({ "type": "string" });
    let ids = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": u32::MAX } });
    let seconds = json!({ "type": "integer", "minimum": 3600, "maximum": 30 * 24 * 3600 });
    let expiry = object(
        &["anchor", "seconds"],
        &json!({ "anchor": { "const": "created_at" }, "seconds": seconds }),
    );
    json!({
        "ChatRequest": object(&["messages"], &sampled(json!({
            "messages": messages(), "max_completion_tokens": tokens(), "max_tokens": tokens(),
            "tools": {}, "tool_choice": {}, "response_format": {}
        }))),
        "CompletionRequest": object(&["prompt"], &sampled(json!({
            "prompt": { "anyOf": [text, { "type": "array", "minItems": 1, "maxItems": 128, "items": text }] },
            "max_tokens": nullable(&json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }))
        }))),
        "ResponsesRequest": object(&["input"], &sampled(json!({
            "input": {}, "instructions": nullable(&text), "max_output_tokens": tokens(),
            "background": nullable(&json!({ "type": "boolean" })), "tools": {}, "text": {}
        }))),
        "MessagesRequest": object(&["messages"], &sampled(json!({
            "messages": messages(), "max_tokens": tokens(), "system": {}, "tools": {}
        }))),
        "EmbeddingRequest": object(&["input"], &json!({
            "model": nullable(&text), "input": {}, "dimensions": tokens(),
            "encoding_format": nullable(&json!({ "enum": ["float", "base64"] }))
        })),
        "ModerationRequest": object(&["input"], &json!({
            "model": nullable(&text),
            "input": { "anyOf": [text, { "type": "array", "minItems": 1, "maxItems": 2048 }] }
        })),
        "RunRequest": object(&["input"], &json!({
            "input": {}, "stream": nullable(&json!({ "type": "boolean" })),
            "seed": nullable(&json!({ "type": "integer", "minimum": 0 }))
        })),
        "DecisionRequest": object(&["input", "questions"], &json!({
            "model": nullable(&text),
            "input": { "anyOf": [text, { "type": "array", "minItems": 1 }] },
            "questions": { "type": "array", "minItems": 1, "maxItems": 400, "items": object(
                &["type", "instructions"],
                &json!({
                    "type": { "enum": ["predicate", "choice", "score"] }, "name": text,
                    "instructions": {}, "choices": { "type": "array" }, "levels": { "type": "array" }
                }),
            ) }
        })),
        "TokenizeRequest": object(&[], &json!({
            "model": nullable(&text), "prompt": nullable(&text), "messages": nullable(&messages())
        })),
        "DetokenizeRequest": object(&["tokens"], &json!({ "model": nullable(&text), "tokens": ids })),
        "Upload": object(&["purpose", "file"], &json!({
            "purpose": { "const": "batch" },
            "file": { "type": "string", "contentMediaType": "application/octet-stream" }
        })),
        "BatchRequest": json!({
            "type": "object", "required": ["input_file_id", "endpoint", "completion_window"],
            "additionalProperties": false,
            "properties": {
                "input_file_id": text,
                "endpoint": { "enum": [
                    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings",
                    "/v1/moderations"
                ] },
                "completion_window": { "type": "string", "pattern": "^([1-9][0-9]?|1[0-5][0-9]|16[0-8])h$" },
                "metadata": nullable(&json!({
                    "type": "object", "maxProperties": 16,
                    "propertyNames": { "maxLength": 64 },
                    "additionalProperties": { "type": "string", "maxLength": 512 }
                })),
                "output_expires_after": nullable(&expiry)
            }
        })
    })
}

fn replies() -> Value {
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer", "minimum": 0 });
    let kind = |name: &str| json!({ "const": name });
    let list = |of: &str| {
        let items = json!({ "$ref": format!("#/components/schemas/{of}") });
        object(
            &["object", "data", "has_more"],
            &json!({
                "object": kind("list"), "data": { "type": "array", "items": items },
                "has_more": { "type": "boolean" }
            }),
        )
    };
    json!({
        "Any": {},
        "List": object(&["object", "data"], &json!({ "object": kind("list"), "data": { "type": "array" } })),
        "ChatCompletion": object(&["id", "object", "choices"], &json!({
            "id": text, "object": kind("chat.completion"), "choices": { "type": "array" }
        })),
        "Completion": object(&["id", "object", "choices"], &json!({
            "id": text, "object": kind("text_completion"), "choices": { "type": "array" }
        })),
        "Response": object(&["id", "object", "status", "output"], &json!({
            "id": text, "object": kind("response"), "status": text, "output": { "type": "array" }
        })),
        "Message": object(&["id", "type", "content"], &json!({
            "id": text, "type": kind("message"), "content": { "type": "array" }
        })),
        "Moderation": object(&["id", "model", "results"], &json!({
            "id": text, "model": text, "results": { "type": "array", "items": object(
                &["flagged", "categories", "category_scores", "category_applied_input_types"],
                &json!({
                    "flagged": { "type": "boolean" }, "categories": { "type": "object" },
                    "category_scores": { "type": "object" },
                    "category_applied_input_types": { "type": "object" }
                }),
            ) }
        })),
        "Decision": object(&["answers", "model", "usage"], &json!({
            "answers": { "type": "array" }, "model": text, "usage": { "type": "object" }
        })),
        "Run": object(&["id", "object", "model", "pieces", "finish_reason", "usage"], &json!({
            "id": text, "object": kind("run"), "model": text, "pieces": { "type": "array" },
            "finish_reason": text, "usage": { "type": "object" }
        })),
        "TokenCount": object(&["input_tokens"], &json!({ "input_tokens": number })),
        "Model": object(&["id", "object"], &json!({ "id": text, "object": kind("model") })),
        "Tokens": object(&["count", "tokens"], &json!({ "count": number, "tokens": { "type": "array", "items": number } })),
        "Text": object(&["prompt"], &json!({ "prompt": text })),
        "Deleted": object(&["id", "deleted"], &json!({ "id": text, "deleted": kind_true() })),
        "File": object(&["id", "object", "bytes", "created_at", "filename", "purpose", "status"], &json!({
            "id": text, "object": kind("file"), "bytes": number, "created_at": number, "filename": text,
            "purpose": { "enum": ["batch", "batch_output"] }, "status": text
        })),
        "FileList": list("File"),
        "Batch": object(&["id", "object", "endpoint", "input_file_id", "status", "request_counts"], &json!({
            "id": text, "object": kind("batch"), "endpoint": text, "input_file_id": text,
            "status": { "enum": [
                "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
                "cancelled"
            ] },
            "request_counts": object(&["total", "completed", "failed"], &json!({
                "total": number, "completed": number, "failed": number
            }))
        })),
        "BatchList": list("Batch"),
        "Error": object(&["error"], &json!({
            "error": object(&["message", "type"], &json!({ "message": text, "type": text }))
        }))
    })
}

fn kind_true() -> Value {
    json!({ "const": true })
}
