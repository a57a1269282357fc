//! Measurement of the ratio test's bias if the draft proposes its likeliest token.
//!
//! `cargo run --release -p nsbridge-llama --example ratio_test -- [DRAFT ...]` prints tables of
//! exact distances for single tokens, and of what a reader may notice in stories. The target is the
//! bundled `tale-7m`, and its draft is `tale-1m` if none is named. The figures are the same in each
//! run. docs/speculation.md explains them.
#![expect(clippy::print_stdout, reason = "what it is for")]

mod counts;
mod rules;
mod telling;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use nsbridge_llama::{BlockTable, Chunk, Config, Model, Sampling, Setup, Weights};
use tokenizers::Tokenizer;

use self::counts::{Mean, differ_by_chance, different, first_sentence, mixes_names, repeated};
use self::rules::{
    agree_by_noise, distance, emitted, emitted_if_drawn, entropy, kept, likeliest, softmax,
};
use self::telling::{CONCURRENT_STORIES, Rule, Told, tell};

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Number of stories for each row of the second table.
const STORIES: usize = 160;

/// Number of random exchanges that a test compares with.
const SHUFFLES: usize = 9999;

/// Factor on a sharper draft's logits, as if it had learned from texts that the target wrote at
/// half the temperature.
const SHARPER: f64 = 2.0;

/// Probability below which a token of the target is rare.
const RARE: f64 = 0.01;

/// Entropy in nats from which on the target leaves a choice open.
const OPEN: f64 = 0.5;

/// Raw prompts, as in the model's card; the other prompts are requests.
const RAW: [&str; 6] = [
    "",
    "クマが海辺に行って",
    "ある日、",
    "Once a bear went to the sea",
    "One day, a fox",
    "Once a rabbit",
];
const ASKED: [&str; 10] = [
    "クマが海辺に行ってアザラシと友達になる短編小説を書いてください",
    "ウサギが浜辺に行ってイルカと友達になり、光る石を見つけ、家に帰る物語を書いてください",
    "キツネとカメのお話を聞かせてください。",
    "ネコが港に行く物語を作ってください",
    "イヌのハチが海に行くお話をお願いします",
    "Write a short story about a bear who goes to the sea and makes friends with a seal.",
    "Tell me a story about a fox and a turtle.",
    "Please write a short story about a cat who goes to the harbour.",
    "Tell me a story about a dog named Rex who goes to the beach.",
    "Write a short story about a squirrel who goes to the seaside, makes friends with an otter, \
     finds a golden coin and finally goes home.",
];

struct Bench {
    target: Model,
    ends: Vec<u32>,
    tokenizer: Tokenizer,
    prompts: Vec<Vec<u32>>,
    /// Drafts with the names of their folders.
    drafts: Vec<(String, Model)>,
}

fn main() -> Result<(), Fault> {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models");
    let mut drafts: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if drafts.is_empty() {
        drafts.push(bundled.join("tale-1m"));
    }
    let mut bench = Bench::load(&bundled.join("tale-7m"), &drafts)?;
    println!(
        "| draft | T | TV(p, q) | H(p) | H(e) | rare in p | rare in e | TV(p, e) | open | TV there \
         | kept: likeliest | drawn | same | noise |\n|{}",
        "---|".repeat(14)
    );
    let strays: Result<Vec<f64>, Fault> =
        [0.7, 1.0, 1.5].into_iter().map(|temperature| bench.tokens(temperature)).collect();
    let strayed = strays?.into_iter().fold(0.0, f64::max);
    println!("\nA drawn draft: TV(p, e) is at most {strayed:.0e}.\n");
    println!(
        "| T | rule | log-likelihood | tokens | different stories | different 4-grams | \
         repeated 4-grams | names mixed | first sentences: p |\n|{}",
        "---|".repeat(9)
    );
    bench.stories(1.0, true)?;
    bench.stories(1.5, false)
}

impl Bench {
    fn load(target: &Path, drafts: &[PathBuf]) -> Result<Self, Fault> {
        let tokenizer = Tokenizer::from_file(target.join("tokenizer.json"))?;
        let raw = RAW.map(|text| format!("<|begin_of_text|>{text}"));
        let asked = ASKED.map(|text| {
            format!(
                "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n"
            )
        });
        let encode = |text: &String| -> Result<Vec<u32>, Fault> {
            Ok(tokenizer.encode_fast(text.as_str(), false)?.get_ids().to_vec())
        };
        let prompts = raw.iter().chain(&asked).map(encode).collect::<Result<_, _>>()?;
        let name = |dir: &Path| dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let drafts = drafts.iter().map(|dir| Ok((name(dir), open(dir)?.0)));
        let drafts = drafts.collect::<Result<_, Fault>>()?;
        let (target, ends) = open(target)?;
        Ok(Self { target, ends, tokenizer, prompts, drafts })
    }

    /// Prints the bias of one token at this temperature. Returns the largest bias of a drawn draft.
    fn tokens(&mut self, temperature: f32) -> Result<f64, Fault> {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
        let told = tell(&mut self.target, Rule::Target, &sampling, (&self.ends, 1), &prompts)?;
        let rows = |model: &mut Model, sharpness| -> Result<Vec<Vec<f64>>, Fault> {
            let mut rows = Vec::new();
            for (prompt, told) in prompts.iter().zip(&told) {
                rows.extend(distributions(
                    model,
                    prompt,
                    &told.tokens,
                    f64::from(temperature) / sharpness,
                )?);
            }
            Ok(rows)
        };
        let p = rows(&mut self.target, 1.0)?;
        // The worst and the best possible draft: one that only knows the token frequencies of these
        // very stories, and one that was distilled until it equals the target.
        let mut frequencies = vec![1.0; p[0].len()];
        told.iter().flat_map(|told| &told.tokens).for_each(|&at| frequencies[at as usize] += 1.0);
        let total: f64 = frequencies.iter().sum();
        frequencies.iter_mut().for_each(|frequency| *frequency /= total);
        let mut strayed = print(("token frequencies", temperature), &p, |_| &frequencies);
        for (name, draft) in &mut self.drafts {
            for (kind, sharpness) in [("", 1.0), (", sharper", SHARPER)] {
                let q = rows(draft, sharpness)?;
                let name = format!("{name}{kind}");
                strayed = strayed.max(print((&name, temperature), &p, |at| &q[at]));
            }
        }
        Ok(strayed.max(print(("the target itself", temperature), &p, |at| &p[at])))
    }

    /// Prints what a reader of stories at this temperature may notice.
    fn stories(&mut self, temperature: f32, all: bool) -> Result<(), Fault> {
        let Self { target, ends, tokenizer, prompts, drafts } = self;
        let kinds = prompts.len();
        let prompts = prompts.iter().map(Vec::as_slice).cycle().take(STORIES);
        let prompts: Vec<&[u32]> = prompts.collect();
        let sampling = Sampling { temperature, ..Sampling::default() };
        let mut plain = None;
        let mut row = |name: &str, rule: Rule<'_>, sampling: &Sampling, seed| {
            let told = tell(target, rule, sampling, (ends, seed), &prompts)?;
            let row = Row::new(tokenizer, kinds, told)?;
            row.print(temperature, name, plain.as_ref());
            plain.get_or_insert(row);
            Ok::<(), Fault>(())
        };
        row("target", Rule::Target, &sampling, 1)?;
        row("target, another seed", Rule::Target, &sampling, 1001)?;
        if all {
            let penalty = Sampling { repetition_penalty: 1.3, ..sampling.clone() };
            row("target, repetition_penalty 1.3", Rule::Target, &penalty, 2001)?;
        }
        for (name, draft) in drafts {
            let kinds = [
                ("", 1.0, false, 3001),
                (", drawn", 1.0, true, 4001),
                (", sharper", SHARPER, false, 5001),
            ];
            for (kind, sharpness, drawn, seed) in kinds.into_iter().take(if all { 3 } else { 1 }) {
                let rule = Rule::Ratio { draft, sharpness, drawn };
                row(&format!("ratio test, {name}{kind}"), rule, &sampling, seed)?;
            }
        }
        Ok(())
    }
}

/// Prints a row of means over positions. Returns the largest bias of a drawn draft.
fn print<'a>(
    (draft, temperature): (&str, f32),
    p: &[Vec<f64>],
    q: impl Fn(usize) -> &'a [f64],
) -> f64 {
    let rare = |p: &[f64], of: &[f64]| -> f64 {
        p.iter().zip(of).filter(|(p, _)| **p < RARE).map(|(_, of)| of).sum()
    };
    let mut sums = [0.0; 11];
    let mut strayed: f64 = 0.0;
    for (at, p) in p.iter().enumerate() {
        let q = q(at);
        let drafted = likeliest(q);
        let emitted = emitted(p, q, drafted);
        let (apart, astray, choice) = (distance(p, q), distance(p, &emitted), entropy(p));
        let open = f64::from(u8::from(choice >= OPEN));
        let bias = [apart, choice, entropy(&emitted), rare(p, p), rare(p, &emitted), astray];
        let kept = [kept(p, q, drafted), p[drafted], agree_by_noise(p, q)];
        let all = bias.into_iter().chain([open, open * astray]).chain(kept);
        sums.iter_mut().zip(all).for_each(|(sum, of)| *sum += of);
        strayed = strayed.max(distance(p, &emitted_if_drawn(p, q)));
    }
    let [apart, choice, chosen, rare, rarer, astray, open, there, kept, same, noise] =
        sums.map(|sum| sum / p.len() as f64);
    println!(
        "| {draft} | {temperature} | {apart:.3} | {choice:.3} | {chosen:.3} | {:.2} % | {:.2} % \
         | {astray:.4} | {:.1} % | {:.3} | {kept:.3} | {:.3} | {same:.3} | {noise:.3} |",
        100.0 * rare,
        100.0 * rarer,
        100.0 * open,
        there / open,
        1.0 - apart,
    );
    strayed
}

/// Stories of a row.
struct Row {
    told: Vec<Told>,
    texts: Vec<String>,
    /// First sentences with the indices of their prompts.
    first: Vec<(usize, String)>,
}

impl Row {
    fn new(tokenizer: &Tokenizer, prompts: usize, told: Vec<Told>) -> Result<Self, Fault> {
        let text = |told: &Told| tokenizer.decode(&told.tokens, true);
        let texts = told.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let first = texts.iter().enumerate();
        let first = first.map(|(at, text)| (at % prompts, first_sentence(text).to_owned()));
        Ok(Self { told, first: first.collect(), texts })
    }

    fn print(&self, temperature: f32, name: &str, plain: Option<&Self>) {
        let tokens = || self.told.iter().map(|told| told.tokens.as_slice());
        let length = |told: &Told| told.tokens.len() as f64;
        let Mean(likely, give) =
            Mean::of(self.told.iter().map(|told| told.log_likelihood / length(told)));
        let Mean(long, _) = Mean::of(self.told.iter().map(length));
        let Mean(again, again_give) = Mean::of(tokens().map(|tokens| 100.0 * repeated(tokens)));
        let mixed = |text: &String| 100.0 * f64::from(u8::from(mixes_names(text)));
        let Mean(mixed, mixed_give) = Mean::of(self.texts.iter().map(mixed));
        let chance = plain.map_or_else(String::new, |plain| {
            format!("{:.4}", differ_by_chance(&plain.first, &self.first, SHUFFLES))
        });
        println!(
            "| {temperature} | {name} | {likely:.4} ± {give:.4} | {long:.0} | {} of {} | {:.1} % \
             | {again:.1} ± {again_give:.1} % | {mixed:.1} ± {mixed_give:.1} % | {chance} |",
            self.texts.iter().collect::<HashSet<_>>().len(),
            self.texts.len(),
            100.0 * different(tokens()),
        );
    }
}

/// Opens a model. Returns it with the tokens that end its stories.
fn open(dir: &Path) -> Result<(Model, Vec<u32>), Fault> {
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files)?;
    let threads = std::thread::available_parallelism().map(usize::from).ok();
    let setup = Setup { threads, blocks: CONCURRENT_STORIES * 12, ..Setup::default() };
    let model = Model::new(&config, config.context, &Weights::read(&files)?, &setup)?;
    Ok((model, config.eos))
}

/// Returns a model's distribution of each token of a story, given the tokens before it.
fn distributions(
    model: &mut Model,
    prompt: &[u32],
    told: &[u32],
    temperature: f64,
) -> Result<Vec<Vec<f64>>, Fault> {
    let tokens = [prompt, &told[..told.len() - 1]].concat();
    let mut table = BlockTable::default();
    if !model.cache().reserve(&mut table, tokens.len()) {
        return Err("too few blocks".into());
    }
    let mut chunks = [Chunk { table: &mut table, tokens: &tokens, logits: told.len() }];
    let logits = model.forward(&mut chunks).map_err(|error| error.to_string())?;
    let rows = logits.rows().map(|row| softmax(row, temperature)).collect();
    model.cache().release(table);
    Ok(rows)
}
