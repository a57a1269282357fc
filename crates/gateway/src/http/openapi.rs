//! `/openapi.json`: the document of the interface (OpenAPI 3.1), built from one table of operations.

mod operations;
mod schemas;
#[cfg(test)]
mod tests;

use axum::Json;
use serde_json::{Map, Value, json};

use self::operations::{Body, OPERATIONS, Operation};
use self::schemas::{query, schemas};

/// Sends the document. All clients get an equal one, so it needs no key.
pub(crate) async fn get() -> Json<Value> {
    Json(document())
}

fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "nsbridge gateway", "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's API and Anthropic's Messages API over queues of sealed requests."
        },
        "paths": paths,
        "security": [{ "bearer": [] }, { "key": [] }],
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" }
            }
        }
    })
}

fn described(operation: &Operation) -> Value {
    let Operation { path, summary, body, reply, query: parameters, .. } = *operation;
    let mut described = json!({
        "summary": summary,
        "operationId": format!("{}{}", operation.method, path.replace(['/', '{', '}', '.'], "_")),
        "responses": {
            "200": { "description": "answer", "content": content(reply) },
            "4XX": { "description": "refusal", "content": content("Error") },
            "5XX": { "description": "failure", "content": content("Error") }
        }
    });
    let in_path = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
    });
    let in_query = parameters.iter().map(
        |name| json!({ "name": name, "in": "query", "required": false, "schema": query(path, name) }),
    );
    let all: Vec<Value> = in_path.chain(in_query).collect();
    if !all.is_empty() {
        described["parameters"] = all.into();
    }
    let body = match body {
        Body::None => Value::Null,
        Body::Json(schema) => json!({ "application/json": { "schema": reference(schema) } }),
        Body::Form(schema) => json!({ "multipart/form-data": { "schema": reference(schema) } }),
    };
    if !body.is_null() {
        described["requestBody"] = json!({ "required": true, "content": body });
    }
    if operation.is_public {
        described["security"] = json!([]);
    }
    described
}

/// Returns the content of a response: JSON of a schema, a text, or bytes.
fn content(schema: &str) -> Value {
    match schema {
        "text" => json!({ "text/plain": { "schema": { "type": "string" } } }),
        "bytes" => json!({ "application/octet-stream": {} }),
        _ => {
            let json = json!({ "schema": reference(schema) });
            if operations::STREAMED.contains(&schema) {
                // A schema would be that of one event, which OpenAPI 3.1 has no word for.
                json!({ "application/json": json, "text/event-stream": {} })
            } else {
                json!({ "application/json": json })
            }
        }
    }
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}
