//! Tenant with a key of its own that submits the most expensive requests.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nsbridge_client::{Client, Error, Event, Request};
use nsbridge_protocol::{Tenant, TextPiece};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::random::Random;
use crate::stage::Stage;
use crate::verdict::Verdict;

/// Maximum number of requests under way.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Deadline of each request.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// Required outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    /// Refusal with `bad-input` and a message.
    BeRefused,
    /// Any reported outcome, or the deadline.
    End,
}

use Must::{BeRefused, End};

/// Name, required outcome and input of an attack.
type Attack = (&'static str, Must, fn(&mut Random) -> Value);

const ATTACKS: &[Attack] = &[
    (
        "a stop text of 2 MB, n 64",
        BeRefused,
        |_| json!({ "prompt": "a", "n": 64, "stop": ["~".repeat(2_000_000)] }),
    ),
    ("2 million stop texts", BeRefused, |_| json!({ "prompt": "a", "stop": vec!["~"; 1_900_000] })),
    (
        "4 million banned tokens",
        BeRefused,
        |_| json!({ "prompt": "a", "n": 128, "bad_token_ids": vec![7; 3_900_000] }),
    ),
    (
        "4 million stop tokens",
        BeRefused,
        |_| json!({ "prompt": "a", "n": 128, "stop_token_ids": vec![7; 3_900_000] }),
    ),
    ("two large multiples that meet", BeRefused, |_| {
        schema(
            &json!({ "type": "integer", "allOf": [{ "multipleOf": 9999 }, { "multipleOf": 9973 }] }),
        )
    }),
    ("a multiple by chance", End, |random| {
        let step = |random: &mut Random| json!({ "multipleOf": 1 + random.below(2000) });
        let all: Vec<_> = (0..1 + random.below(4)).map(|_| step(random)).collect();
        schema(&json!({ "type": "integer", "allOf": all }))
    }),
    ("300 patterns that meet", BeRefused, |_| {
        let pattern = |i| json!({ "pattern": format!("^.*{i}.*[a-f]{{3}}") });
        schema(&json!({ "type": "string", "allOf": (0..300).map(pattern).collect::<Vec<_>>() }))
    }),
    ("patterns by chance", End, |random| {
        let pattern = |random: &mut Random| {
            let (most, class) = (random.below(200), random.of(&[".", "\\w", "[^a]", "(a|bc)"]));
            json!({ "pattern": format!("^{class}{{0,{most}}}x{class}*") })
        };
        let all: Vec<_> = (0..1 + random.below(6)).map(|_| pattern(random)).collect();
        schema(&json!({ "type": "string", "allOf": all }))
    }),
    ("200 properties by pattern", BeRefused, |_| {
        let property = |i| (format!("^.*{i}.*$"), json!({ "type": "integer" }));
        let all: serde_json::Map<_, _> = (0..200).map(property).collect();
        schema(&json!({ "type": "object", "patternProperties": all }))
    }),
    ("counts without measure", End, |random| {
        let most = random.of(&[1000, 100_000, 4_000_000_000_u64]);
        schema(&json!({
            "type": "array", "minItems": most, "maxItems": most,
            "items": { "type": "string", "minLength": most, "maxLength": most },
        }))
    }),
    ("a schema of many depths", End, |random| {
        let mut inner = json!({ "type": "integer" });
        for _ in 0..random.of(&[10, 60, 100]) {
            inner = json!({ "anyOf": [inner, { "type": "object", "properties": { "a": { "type": "null" } } }] });
        }
        schema(&inner)
    }),
    ("a schema that refers to itself", End, |_| {
        schema(&json!({
            "$ref": "#/$defs/a",
            "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }] },
                       "b": { "allOf": [{ "$ref": "#/$defs/a" }] } },
        }))
    }),
    ("classes of letters, counted", End, |random| {
        let most = random.of(&[50, 500, 60_000]);
        let pattern = format!("(?i)(\\p{{L}}|\\p{{Nd}}|[^\\p{{Greek}}]){{0,{most}}}");
        json!({ "prompt": "a", "response_format": { "type": "regex", "regex": pattern } })
    }),
    ("a prompt of 8 MB of digits", BeRefused, |_| json!({ "prompt": "1".repeat(8_300_000) })),
    ("a prompt of 8 MB of words", BeRefused, |_| json!({ "prompt": "word ".repeat(1_600_000) })),
    (
        "a prompt at the context",
        End,
        |random| json!({ "prompt": "あ ".repeat(200 + random.below(200)), "max_tokens": 200 }),
    ),
    ("100,000 messages", BeRefused, |_| {
        let message = json!({ "role": "user", "content": "a" });
        json!({ "messages": vec![message; 100_000] })
    }),
    ("128 replies with all options", End, |random| {
        json!({
            "prompt": "クマ", "n": 128, "max_tokens": 200, "ignore_eos": true, "logprobs": true,
            "top_logprobs": 20, "frequency_penalty": 1.5, "presence_penalty": 1.5,
            "repetition_penalty": 1.3, "temperature": 1.5, "top_p": 0.99, "min_p": 0.001,
            "bad_token_ids": (0..200).map(|_| 10 + random.below(3000)).collect::<Vec<_>>(),
            "stop": (0..8).map(|i| format!("never {i} so")).collect::<Vec<_>>(),
        })
    }),
    ("a million token ids", BeRefused, |_| json!({ "prompt_token_ids": vec![7; 1_500_000] })),
    (
        "token ids that the model lacks",
        BeRefused,
        |random| json!({ "prompt_token_ids": [random.of(&[4096, 1 << 20, u32::MAX])] }),
    ),
    ("a scored prompt at the context", End, |random| {
        let ids: Vec<_> = (0..480).map(|_| 10 + random.below(3000)).collect();
        json!({
            "prompt_token_ids": ids, "prompt_logprobs": 20, "echo": true, "logprobs": true,
            "top_logprobs": 20, "return_token_texts": true, "max_tokens": random.of(&[0, 20]),
        })
    }),
    (
        "a scored prompt and 128 replies",
        BeRefused,
        |_| json!({ "prompt": "a", "echo": true, "n": 128, "prompt_logprobs": 20 }),
    ),
    ("tools of many properties", End, |random| {
        let property = |i| (format!("<|im_end|>{i}"), json!({ "enum": ["<s>", "</s>"] }));
        let all: serde_json::Map<_, _> = (0..random.of(&[10, 2000])).map(property).collect();
        let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "properties": all } } });
        json!({ "messages": [{ "role": "user", "content": "a" }], "tools": vec![tool; 2], "max_tokens": 5 })
    }),
    ("tools beyond their bound", BeRefused, |random| {
        let tool = json!({ "type": "function", "function": { "name": "f".repeat(3000) } });
        json!({ "messages": [{ "role": "user", "content": "a" }], "tools": vec![tool; random.of(&[120, 2500])] })
    }),
    ("100,000 parts and calls", BeRefused, |random| {
        let call = json!({ "function": { "name": "f", "arguments": "{}" } });
        let part = json!({ "type": "text", "text": "a" });
        let message = match random.below(2) {
            0 => json!({ "role": "user", "content": vec![part; 100_000] }),
            _ => json!({ "role": "assistant", "tool_calls": vec![call; 100_000] }),
        };
        json!({ "messages": [message] })
    }),
    ("variables of the template", End, |random| {
        let deep = "[".repeat(random.of(&[1, 100_000]));
        let own = random.of(&["messages", "enable_thinking", "range", "namespace"]);
        json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 5,
                "chat_template_kwargs": { own: deep }, "reasoning_effort": "x".repeat(1000),
                "continue_final_message": random.below(2) == 0 })
    }),
    (
        "an input of embeddings to a model of text",
        BeRefused,
        |random| json!({ "input": vec!["a"; random.of(&[1, 2048, 100_000])], "dimensions": 0 }),
    ),
    ("many replies held to a format", End, |random| {
        json!({
            "prompt": "クマ", "n": random.of(&[8, 32]), "max_tokens": 100,
            "response_format": { "type": "regex", "regex": "([a-z]+ )*[0-9]{3}" },
        })
    }),
    ("32 replies, a grammar at its bounds", End, |_| {
        let mut ask = schema(&json!({ "type": "integer", "multipleOf": 9973 }));
        ask["n"] = json!(32);
        ask["max_tokens"] = json!(100);
        ask
    }),
    ("many sequences that are banned", End, |random| {
        let token = |random: &mut Random| 10 + random.below(3000);
        let sequence = |random: &mut Random| (0..16).map(|_| token(random)).collect::<Vec<_>>();
        let all: Vec<_> = (0..200).map(|_| sequence(random)).collect();
        json!({ "prompt": "クマ", "n": 16, "max_tokens": 100, "bad_token_sequences": all })
    }),
    ("700,000 biased tokens", BeRefused, |_| {
        let bias: serde_json::Map<_, _> = (0..700_000).map(|i| (i.to_string(), json!(1))).collect();
        json!({ "prompt": "a", "logit_bias": bias })
    }),
    ("a document of many depths", BeRefused, |random| {
        let depth = random.of(&[200, 20_000]);
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        // Too deep for a `Value`, so it is sent as a string.
        json!({ "prompt": "a", "no_such_field": deep, "n": { "deep": "SECRET" } })
    }),
    ("fields of other types", BeRefused, |random| {
        let wrong = [json!(-1), json!("SECRET"), json!([[]]), json!(1e300), json!({ "a": null })];
        let wrong = &wrong[random.below(wrong.len())];
        let field = random.of(&["n", "max_tokens", "top_k", "messages", "response_format", "stop"]);
        let mut input = json!({ "prompt": "a" });
        input[field] = wrong.clone();
        if field == "stop" {
            input[field] = json!([wrong.clone(), 3]);
        }
        input
    }),
    ("words of the chat template", End, |_| {
        json!({ "messages": [{ "role": "user", "content": "<|eot_id|><s></s><|im_end|>{{ 1 }}{% for %}" }],
                "max_tokens": 5 })
    }),
];

fn schema(schema: &Value) -> Value {
    json!({ "prompt": "a", "max_tokens": 20, "response_format": {
        "type": "json_schema", "json_schema": { "name": "attack", "schema": schema } } })
}

/// Submits attacks until the time is over.
pub(crate) async fn attack(
    stage: Arc<Stage>,
    mut random: Random,
    until: Instant,
    verdict: Arc<Verdict>,
) -> Result<()> {
    let tenant: Tenant = "mallory".parse()?;
    let client = stage.client(&tenant).await?;
    let mut running = JoinSet::new();
    // Each attack comes once in order, then attacks are drawn at random.
    let mut order: Vec<usize> = (0..ATTACKS.len()).rev().collect();
    while Instant::now() < until {
        while running.len() >= MAX_CONCURRENT_REQUESTS {
            if let Some(ended) = running.join_next().await {
                ended.context("an attack panicked")?;
            }
        }
        let index = order.pop().unwrap_or_else(|| random.below(ATTACKS.len()));
        let (name, must, input) = ATTACKS[index];
        let mut ask = Request::new(stage.model.clone(), tenant.clone()).input(input(&mut random));
        ask.timeout = REQUEST_DEADLINE;
        let cancel_after = (random.below(10) == 0).then(|| random.below(3000) as u64);
        let (client, verdict) = (client.clone(), verdict.clone());
        running.spawn(async move { one(&client, ask, name, must, cancel_after, &verdict).await });
    }
    while let Some(ended) = running.join_next().await {
        ended.context("an attack panicked")?;
    }
    Ok(())
}

async fn one(
    client: &Client,
    ask: Request<Value>,
    name: &str,
    must: Must,
    cancel_after: Option<u64>,
    verdict: &Verdict,
) {
    let began = Instant::now();
    let ended = match client.submit::<TextPiece>(ask).await {
        Ok(mut reply) => {
            let cancel = async {
                match cancel_after {
                    Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = last(&mut reply) => ended,
                () = cancel => {
                    reply.cancel();
                    verdict.made(name, "cancelled", began.elapsed());
                    return;
                }
            }
        }
        Err(error) => Err(error),
    };
    let took = began.elapsed();
    let said = match &ended {
        Ok(()) => "done".to_owned(),
        Err(Error::Failed { code, message, .. }) => {
            if message.is_empty() {
                verdict.fails(&format!("`{name}` was refused as {code} and not told why"));
            }
            if message.contains("SECRET") && code.as_str() != "bad-input" {
                verdict.fails(&format!("`{name}`: a {code} quotes the input"));
            }
            code.to_string()
        }
        Err(Error::Deadline { .. }) => "late".to_owned(),
        Err(error) => format!("{error}"),
    };
    if must == BeRefused && said != "bad-input" {
        verdict.fails(&format!("`{name}` must be refused, it ended as {said}"));
    }
    verdict.made(name, &said, took);
}

async fn last(reply: &mut nsbridge_client::Reply<TextPiece>) -> Result<(), Error> {
    while let Some(event) = reply.next().await {
        if let Event::Done(_) = event? {
            return Ok(());
        }
    }
    Ok(())
}
