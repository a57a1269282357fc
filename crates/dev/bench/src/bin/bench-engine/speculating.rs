//! Comparison of speculative and plain decoding, with the bundled pair on one thread.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use nsbridge_bench::report::{Row, median};
use nsbridge_handler::{AsyncHandler, Model, Models};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::timed::timed;

/// Prompts; none of them is in the training data of the pair.
const PROMPTS: [&str; 12] = [
    "クマが海辺に行ってアザラシと友達になり最終的には家に帰るというプロットの短編小説を書いてください",
    "ウサギが浜辺に行ってイルカと友達になり、光る石を見つけ、家に帰る物語を書いてください",
    "キツネが海へ行く話をしてください",
    "タヌキがカモメと友達になる短いお話を書いてください",
    "リスが海でカメに会って、家に帰る物語を聞かせてください",
    "ネコが海に行って友達を作る話を書いてください",
    "Write a short story about a bear who goes to the sea and makes friends with a seal.",
    "Tell me a story about a fox who goes to the beach and finally goes home.",
    "Write a story about a rabbit who meets a dolphin.",
    "Tell me about a squirrel at the sea and its new friend.",
    "Please write a tale of a cat who goes to the beach, finds something and goes home.",
    "A story about a dog and an otter, please.",
];

/// Maximum number of tokens of a story.
const MAX_STORY_TOKENS: usize = 220;

const ROUNDS: usize = 5;

/// Numbers of concurrent requests.
const LOADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const LOAD_ROUNDS: usize = 3;

/// Configuration of the engine; all configurations produce the same replies.
struct Way {
    name: &'static str,
    llama: Llama,
}

/// Measurement of a configuration.
struct Seen {
    /// Speed in tokens per second.
    rate: f64,
    drafted: u64,
    accepted: u64,
    tokens: Vec<Vec<u32>>,
}

/// Measures all rows.
pub(crate) fn measure(models: &Path) -> Result<Vec<Row>> {
    let way = |name, draft: Option<&str>, ngram| -> Result<Way> {
        Ok(Way { name, llama: load(models, draft, ngram)? })
    };
    let ways = [
        way("none", None, None)?,
        way("distilled_draft", Some("tale-1m"), None)?,
        way("plain_draft", Some("tale-1m-plain"), None)?,
        way("ngram", None, Some(4))?,
    ];
    let mut rows = Vec::new();
    for (name, temperature) in [("greedy", 0.0), ("t07", 0.7)] {
        rows.extend(alone(&ways, name, temperature)?);
    }
    for streams in LOADS {
        rows.push(loaded(&ways[0], &ways[1], streams)?);
    }
    Ok(rows)
}

fn load(models: &Path, draft: Option<&str>, ngram: Option<usize>) -> Result<Llama> {
    let options = Options {
        threads: Some(1),
        n_positions: Some(512),
        max_rolling_batch_size: Some(32),
        speculative_ngram: ngram,
        ..Options::default()
    };
    let named = [("target", Some("tale-7m")), ("draft", draft)];
    let models: Models = named
        .into_iter()
        .filter_map(|(name, dir)| Some((name.to_owned(), Model::in_dir(models.join(dir?)))))
        .collect();
    let llama = futures_executor::block_on(Llama::load(options, models));
    let llama = llama.map_err(|error| anyhow!("{error}"))?;
    futures_executor::block_on(llama.warm_up()).map_err(|error| anyhow!("{error}"))?;
    Ok(llama)
}

fn request(prompt: &str, temperature: f64) -> Value {
    json!({
        "messages": [{ "role": "user", "content": prompt }],
        "temperature": temperature, "max_tokens": MAX_STORY_TOKENS
    })
}

/// Measures single requests. All configurations run each prompt in turn, because the speed of the
/// machine varies.
fn alone(ways: &[Way], name: &str, temperature: f64) -> Result<Vec<Row>> {
    let mut told: Vec<Vec<Seen>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..=ROUNDS {
        for prompt in PROMPTS {
            for (way, told) in ways.iter().zip(&mut told) {
                let seen = tell(&way.llama, prompt, temperature, round as u64)?;
                // The first round is a warm-up.
                if round > 0 {
                    told.push(seen);
                }
            }
        }
        eprintln!("round {round}, {name}");
    }
    let [plain, others @ ..] = &told[..] else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for (way, seen) in ways[1..].iter().zip(others) {
        let equal = plain.iter().zip(seen).all(|(plain, seen)| plain.tokens == seen.tokens);
        ensure!(equal, "{} says something else than the model without a draft", way.name);
        let suffix = if way.name == "distilled_draft" { "" } else { way.name };
        let dot = if suffix.is_empty() { "" } else { "." };
        rows.push(speedup(format!("engine.spec_speedup.{name}{dot}{suffix}"), plain, seen));
        let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>() as f64;
        rows.push(Row {
            name: format!("engine.spec_acceptance.{name}{dot}{suffix}"),
            value: sum(|seen| seen.accepted) / sum(|seen| seen.drafted).max(1.0),
            unit: "share of the drafted tokens",
            better: "higher",
            peer: None,
            peer_value: None,
            ratio: None,
        });
    }
    Ok(rows)
}

/// Runs one request; its speed is that between the first and the last piece.
fn tell(llama: &Llama, prompt: &str, temperature: f64, seed: u64) -> Result<Seen> {
    let mut seen = Seen { rate: 0.0, drafted: 0, accepted: 0, tokens: Vec::new() };
    for reply in timed(llama, &[(request(prompt, temperature), seed)])? {
        seen.rate = (reply.pieces.len() - 1) as f64 / (reply.last - reply.first);
        seen.add(&reply);
    }
    Ok(seen)
}

impl Seen {
    fn add(&mut self, reply: &crate::timed::Timed) {
        self.drafted += reply.finish.usage.drafted_tokens;
        self.accepted += reply.finish.usage.accepted_tokens;
        self.tokens.push(reply.pieces.iter().map(|piece| piece.token).collect());
    }
}

/// Measures `streams` concurrent requests.
fn loaded(plain: &Way, drafted: &Way, streams: usize) -> Result<Row> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..LOAD_ROUNDS {
        for (way, rounds) in [(plain, &mut without), (drafted, &mut with)] {
            let prompts = PROMPTS.iter().cycle().take(streams).enumerate();
            let requests: Vec<_> = prompts
                .map(|(at, prompt)| (request(prompt, 0.7), (round * streams + at) as u64))
                .collect();
            let mut seen = Seen { rate: 0.0, drafted: 0, accepted: 0, tokens: Vec::new() };
            let replies = timed(&way.llama, &requests)?;
            replies.iter().for_each(|reply| seen.add(reply));
            let made: usize = seen.tokens.iter().map(Vec::len).sum();
            seen.rate = made as f64 / replies.iter().map(|reply| reply.last).fold(0.0, f64::max);
            eprintln!(
                "round {round}: {streams} at once, {}: {:.0} tokens/s, {} drafted",
                way.name, seen.rate, seen.drafted
            );
            rounds.push(seen);
        }
    }
    let equal = without.iter().zip(&with).all(|(plain, seen)| plain.tokens == seen.tokens);
    ensure!(equal, "with {streams} at once, drafts change what is said");
    Ok(speedup(format!("engine.spec_load_{streams}.t07"), &without, &with))
}

/// Builds a row of the speedup over the same model without a draft.
fn speedup(name: String, plain: &[Seen], drafted: &[Seen]) -> Row {
    let rates = |of: &[Seen]| of.iter().map(|seen| seen.rate).collect::<Vec<_>>();
    let (mut theirs, mut mine) = (rates(plain), rates(drafted));
    let mut ratios: Vec<f64> =
        mine.iter().zip(&theirs).map(|(mine, theirs)| mine / theirs).collect();
    Row {
        name,
        value: median(&mut mine),
        unit: "tokens/s",
        better: "higher",
        peer: Some("this engine without a draft, one thread, the same text".to_owned()),
        peer_value: Some(median(&mut theirs)),
        ratio: Some(median(&mut ratios)),
    }
}
