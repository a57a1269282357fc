//! Texts and token ids at the borders of tokenizers, templates and embeddings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nsbridge_client::{Client, Error, Request};
use nsbridge_protocol::{ModelName, Tenant, TextPiece};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::folder::{copy, edit};
use crate::random::Random;
use crate::stage::{CONSUMES, Stage, bundled};
use crate::verdict::Verdict;

/// Number of random texts that all tokenizers together get in one turn.
const TEXTS: usize = 100_000;

/// Number of messages of a chat, each of which is a random text.
const MESSAGES: usize = 500;

/// Number of times that one prompt is sent which no tokenizer or embedding can take.
const TIMES: usize = 1000;

/// Number of rows of the embedding of the bundled model.
const ROWS: u64 = 4096;

const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Name of a tokenizer, and the change that makes it of the bundled one.
type Kind = (&'static str, fn(&mut Value));

const KINDS: &[Kind] = &[
    ("prompt: the bundled tokenizer", |_| {}),
    ("prompt: tokens without a row", |json| {
        for (id, content) in (ROWS..).zip(["<pad>", "<tool>", "<\u{1f600}>"]) {
            add(json, id, content, &json!({}));
        }
    }),
    // It panics on many texts ("AddedVocabulary bad split").
    ("prompt: a token that is stripped", |json| {
        json["normalizer"] = json!({ "type": "Strip", "strip_left": true, "strip_right": true });
        add(json, ROWS, "  ", &json!({ "normalized": true, "special": false }));
    }),
    ("prompt: normalized tokens", |json| {
        json["normalizer"] = json!({ "type": "Sequence", "normalizers": [
            { "type": "NFKC" }, { "type": "Lowercase" },
            { "type": "Replace", "pattern": { "Regex": "\\s+" }, "content": " " },
        ] });
        add(json, ROWS, "\u{200b}A", &json!({ "normalized": true }));
        add(json, ROWS + 1, "ﬁ", &json!({ "normalized": true, "single_word": true }));
    }),
    ("prompt: tokens that take spaces", |json| {
        add(json, ROWS, "<mask>", &json!({ "lstrip": true, "rstrip": true }));
        add(json, ROWS + 1, "word", &json!({ "single_word": true, "lstrip": true }));
    }),
    ("prompt: Metaspace", |json| {
        json["pre_tokenizer"] = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true });
        json["decoder"] =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first" });
    }),
    ("prompt: whole words", |json| {
        let vocabulary = json["model"]["vocab"].clone();
        json["model"] =
            json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": "<|eot_id|>" });
    }),
];

/// Adds a token to a `tokenizer.json`.
fn add(json: &mut Value, id: u64, content: &str, more: &Value) {
    let mut token = json!({ "id": id, "content": content, "special": true, "single_word": false,
                            "lstrip": false, "rstrip": false, "normalized": false });
    for (field, value) in more.as_object().into_iter().flatten() {
        token[field] = value.clone();
    }
    if let Some(tokens) = json["added_tokens"].as_array_mut() {
        tokens.push(token);
    }
}

/// Serves the bundled model with one tokenizer after another, until the time is over, and sends each
/// the prompts that are made for it.
pub(crate) async fn attack(
    stage: Arc<Stage>,
    mut random: Random,
    until: Instant,
    verdict: Arc<Verdict>,
) -> Result<()> {
    let (model, tenant): (ModelName, Tenant) = ("prompted".parse()?, "eve".parse()?);
    let client = stage.client_of(&model, &tenant).await?;
    for (turn, (name, change)) in KINDS.iter().cycle().enumerate() {
        if Instant::now() >= until {
            return Ok(());
        }
        let dir = stage.folder(&format!("prompt-{}", turn % KINDS.len()));
        copy(&bundled("tale-1m"), &dir)?;
        edit(&dir, "tokenizer.json", change)?;
        let added = added(&dir)?;
        let log = format!("prompt-{turn}");
        let mut worker = stage.start(&log, &stage.url(), &dir, &model, 19)?;
        worker.until(CONSUMES).await?;
        let target = Target { name, model: &model, tenant: &tenant, client: &client };
        let sent = target.send(prompts(&added, &mut random), until, &verdict).await?;
        verdict.made(name, &format!("of {sent} prompts"), Duration::ZERO);
        verdict.memory("worker of a prompt's author", worker.peak_mib());
        if let Some(ended) = worker.ended()? {
            verdict.fails(&format!(
                "`{name}`: a prompt ended it: {ended}; its log is {}",
                worker.log()
            ));
        } else if !target.answers().await {
            verdict.fails(&format!(
                "`{name}`: it does not answer any more; its log is {}",
                worker.log()
            ));
        }
    }
    Ok(())
}

/// Returns the texts of the added tokens.
fn added(dir: &Path) -> Result<Vec<String>> {
    let json: Value = serde_json::from_slice(&std::fs::read(dir.join("tokenizer.json"))?)?;
    let tokens = json["added_tokens"].as_array().into_iter().flatten();
    Ok(tokens.filter_map(|token| token["content"].as_str().map(str::to_owned)).collect())
}

/// Returns the inputs for one tokenizer.
fn prompts(added: &[String], random: &mut Random) -> Vec<Value> {
    let raw = |text: &str| json!({ "prompt": text, "max_tokens": 2 });
    let chat = |texts: &[String]| {
        let message = |text: &String| json!({ "role": "user", "content": text });
        json!({ "messages": texts.iter().map(message).collect::<Vec<_>>(), "max_tokens": 2 })
    };
    let mut inputs = vec![raw(&added.concat()), raw(&added.join(" ")), chat(added)];
    inputs.extend(added.iter().map(|token| raw(&format!("a{token}日本語 é"))));
    for id in [0, 1, ROWS - 1, ROWS, ROWS + 1, u64::from(u32::MAX)] {
        inputs.push(json!({ "prompt_token_ids": [1, id, 1], "max_tokens": 2 }));
        inputs.push(json!({ "prompt": "a", "stop_token_ids": [id], "max_tokens": 2 }));
        inputs.push(json!({ "prompt": "a", "bad_token_ids": [id], "max_tokens": 2 }));
        inputs.push(json!({ "prompt": "a", "bad_token_sequences": [[id, id]], "max_tokens": 2 }));
        inputs
            .push(json!({ "prompt": "a", "logit_bias": { id.to_string(): 100 }, "max_tokens": 2 }));
    }
    let last = added.last().map_or("", String::as_str);
    inputs.extend((0..TIMES).map(|_| raw(&format!("日本語 é{last}"))));
    for _ in 0..TEXTS / KINDS.len() / MESSAGES {
        let texts: Vec<String> = (0..MESSAGES).map(|_| text(random, added)).collect();
        inputs.extend(texts.iter().take(20).map(|text| raw(text)));
        inputs.push(chat(&texts));
    }
    inputs
}

/// Returns a text of a few random characters of all planes, some of them parts of added tokens.
fn text(random: &mut Random, added: &[String]) -> String {
    let character = |random: &mut Random| {
        let most = random.of(&[0x80, 0x300, 0x3000, 0x1_0000, 0x11_0000]);
        char::from_u32(random.below(most) as u32).unwrap_or('\u{fffd}')
    };
    let mut text: String = (0..random.below(12)).map(|_| character(random)).collect();
    if let Some(token) = added.get(random.below(2 * added.len())) {
        text.push_str(&token[..token.floor_char_boundary(random.below(token.len() + 1))]);
        text.push(random.of(&[' ', '\u{200b}', '\n', 'x']));
    }
    text
}

/// Worker with one tokenizer, and its caller.
#[derive(Clone, Copy)]
struct Target<'a> {
    name: &'static str,
    model: &'a ModelName,
    tenant: &'a Tenant,
    client: &'a Client,
}

impl Target<'_> {
    /// Sends the inputs, until the time is over. Returns their number.
    async fn send(
        self,
        inputs: Vec<Value>,
        until: Instant,
        verdict: &Arc<Verdict>,
    ) -> Result<usize> {
        let (mut running, mut sent) = (JoinSet::new(), 0);
        for input in inputs {
            if Instant::now() >= until {
                break;
            }
            while running.len() >= MAX_CONCURRENT_REQUESTS {
                running.join_next().await.transpose().context("a prompt panicked")?;
            }
            let (name, verdict, answer) = (self.name, verdict.clone(), self.ask(input));
            sent += 1;
            running.spawn(async move {
                let began = Instant::now();
                let ended = answer.await;
                if !matches!(&*ended, "done" | "bad-input") {
                    verdict.fails(&format!("`{name}` ended as {ended}"));
                }
                verdict.made(name, &ended, began.elapsed());
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.context("a prompt panicked")?;
        }
        Ok(sent)
    }

    /// Returns true if a plain request still gets its reply.
    async fn answers(self) -> bool {
        self.ask(json!({ "prompt_token_ids": [7, 9], "max_tokens": 4 })).await == "done"
    }

    /// Sends a request, and returns how it ended.
    fn ask(self, input: Value) -> impl Future<Output = String> + Send + 'static {
        let mut ask = Request::new(self.model.clone(), self.tenant.clone()).input(input);
        ask.timeout = Duration::from_secs(60);
        let client = self.client.clone();
        async move {
            let ended = match client.submit::<TextPiece>(ask).await {
                Ok(reply) => reply.collect().await.map(drop),
                Err(error) => Err(error),
            };
            match ended {
                Ok(()) => "done".to_owned(),
                Err(Error::Failed { code, .. }) => code.to_string(),
                Err(error) => error.to_string(),
            }
        }
    }
}
