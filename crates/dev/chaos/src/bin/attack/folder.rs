//! Malicious model folders.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::random::Random;
use crate::stage::{Stage, bundled};
use crate::verdict::Verdict;

/// Time limit in which a worker must refuse a model or begin to serve it.
const WITHIN: Duration = Duration::from_secs(45);

/// Name and function of a change to the folder.
type Change = (&'static str, fn(&mut Random, &Path) -> Result<()>);

const CHANGES: &[Change] = &[
    ("folder: a huge token id", |random, dir| {
        let id = random.of(&[4_294_967_290_u64, 400_000_000, 70_000]);
        edit(dir, "tokenizer.json", |json| {
            if let Some(added) = json["added_tokens"].as_array_mut() {
                added.push(
                    json!({ "id": id, "content": "<huge>", "special": true, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false }),
                );
            }
            if let Some(vocabulary) = json["model"]["vocab"].as_object_mut() {
                vocabulary.insert("huge".to_owned(), json!(id));
            }
        })
    }),
    ("folder: sizes without measure", |random, dir| {
        let fields = [
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
            "head_dim",
        ];
        let field = random.of(&fields);
        let value = random.of(&[0, 1, 7, 1 << 31, u64::MAX >> 1, u64::MAX]);
        edit(dir, "config.json", |json| json[field] = json!(value))
    }),
    ("folder: numbers that are none", |random, dir| {
        let field = random.of(&[
            "rope_theta",
            "rms_norm_eps",
            "hidden_size",
            "eos_token_id",
            "rope_scaling",
        ]);
        let wrong = [
            json!("x"),
            json!(-1),
            json!(1e308),
            json!(null),
            json!([[1]]),
            json!({ "factor": 0 }),
        ];
        let wrong = wrong[random.below(wrong.len())].clone();
        edit(dir, "config.json", |json| json[field] = wrong)
    }),
    // A template that doubles a text is not tested; `docs/security.md` describes its effect.
    ("folder: a template without end", |random, dir| {
        let template = random.of(&[
            "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{{ 'a' * 1000000000 }}",
            "{% include 'chat_template.jinja' %}",
            "{{ messages",
        ]);
        fs::write(dir.join("chat_template.jinja"), template)?;
        edit(dir, "tokenizer_config.json", |json| json["chat_template"] = json!(template))
    }),
    ("folder: a document of many depths", |random, dir| {
        let file = random.of(&["config.json", "tokenizer.json", "tokenizer_config.json"]);
        Ok(fs::write(dir.join(file), "[".repeat(random.of(&[200, 100_000, 5_000_000])))?)
    }),
    ("folder: bytes that were changed", |random, dir| {
        let file = random.of(&["config.json", "tokenizer.json", "model.safetensors"]);
        let mut bytes = fs::read(dir.join(file))?;
        for _ in 0..1 + random.below(20) {
            // Lengths and offsets are at the start of the file.
            let reach = bytes.len().min(20_000);
            let at = random.below(reach);
            bytes[at] = random.next() as u8;
        }
        Ok(fs::write(dir.join(file), bytes)?)
    }),
    ("folder: a file that was cut", |random, dir| {
        let file = random.of(&["config.json", "tokenizer.json", "model.safetensors"]);
        let bytes = fs::read(dir.join(file))?;
        Ok(fs::write(dir.join(file), &bytes[..random.below(bytes.len())])?)
    }),
    ("folder: an endless file", |random, dir| {
        let file = random.of(&["config.json", "tokenizer_config.json", "chat_template.jinja"]);
        let path = dir.join(file);
        let _ = fs::remove_file(&path);
        Ok(std::os::unix::fs::symlink("/dev/zero", path)?)
    }),
    ("folder: links that multiply it", |random, dir| {
        let to_itself = random.of(&[true, false]);
        for step in 0..7 {
            let folder = dir.join(format!("part-{step}"));
            fs::create_dir(&folder)?;
            // 20 links at each of 7 levels are 1.3 billion paths.
            for link in 0..20 {
                let next = format!("../part-{}", step + 1);
                let to = if to_itself { "." } else { &next };
                std::os::unix::fs::symlink(to, folder.join(format!("link-{link}")))?;
            }
        }
        Ok(fs::create_dir(dir.join("part-7"))?)
    }),
    ("folder: a tokenizer of patterns", |random, dir| {
        let pattern = random.of(&["(a+)+$", "(?:(?:a{1,1000}){1,1000}){1,1000}", "(.*)*\\1"]);
        edit(dir, "tokenizer.json", |json| {
            json["pre_tokenizer"] = json!({ "type": "Split", "pattern": { "Regex": pattern },
                "behavior": "Isolated", "invert": false });
        })
    }),
];

/// Starts a worker with one changed folder after another until the time is over.
pub(crate) async fn attack(
    stage: Arc<Stage>,
    mut random: Random,
    until: Instant,
    verdict: Arc<Verdict>,
) -> Result<()> {
    let dir = stage.folder("model");
    // All folders share one model: a model has six queues, and thousands of quorum queues stop the
    // broker.
    let model = "folder".parse()?;
    let mut order: Vec<usize> = (0..CHANGES.len()).rev().collect();
    let mut number = 0;
    while Instant::now() < until {
        copy(&bundled("tale-1m"), &dir)?;
        let (name, change) = CHANGES[order.pop().unwrap_or_else(|| random.below(CHANGES.len()))];
        change(&mut random, &dir)?;
        number += 1;
        let began = Instant::now();
        let mut worker =
            stage.start(&format!("folder-{number}"), &stage.url(), &dir, &model, 19)?;
        let ended = loop {
            sleep(Duration::from_millis(50)).await;
            verdict.memory("worker of a malicious folder", worker.peak_mib());
            if let Some(ended) = worker.ended()? {
                break ended;
            }
            if worker.words()?.contains("taking requests") {
                break "served".to_owned();
            }
            if began.elapsed() > WITHIN {
                break "neither refused nor served".to_owned();
            }
        };
        let words = worker.words()?;
        verdict.log(&words);
        let told = words.lines().any(|line| line.starts_with("error: "));
        let ended = match &*ended {
            "exit code 1" if told => "refused".to_owned(),
            "served" => ended,
            _ => {
                verdict.fails(&format!("`{name}`: {ended}; its log is {}", worker.log()));
                ended
            }
        };
        verdict.made(name, &ended, began.elapsed());
    }
    Ok(())
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

pub(crate) fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
    let path = dir.join(file);
    let mut json: Value = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(_) => json!({}),
    };
    change(&mut json);
    Ok(fs::write(path, serde_json::to_vec(&json)?)?)
}
