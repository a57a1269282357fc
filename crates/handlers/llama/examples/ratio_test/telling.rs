//! Generation of stories by the target alone, or by a draft and the ratio test.

use nsbridge_llama::{BlockTable, Chunk, History, Model, Noise, Sampling, Scratch, sample};

use crate::rules::{at_height, kept, likeliest, residual, softmax};

/// Draft length in tokens.
pub(crate) const DRAFT_TOKENS: usize = 5;

/// Maximum number of tokens of a story.
const MAX_STORY_TOKENS: usize = 256;

/// Number of stories generated concurrently.
pub(crate) const CONCURRENT_STORIES: usize = 50;

/// Generated story.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Tokens of the story, including its end token.
    pub(crate) tokens: Vec<u32>,
    /// Log-likelihood of the tokens under the target at the story's temperature, in nats.
    pub(crate) log_likelihood: f64,
}

/// Sampling rule of a story.
#[derive(Debug)]
pub(crate) enum Rule<'a> {
    /// `nsbridge_llama::sample` on the target's logits. Speculation with shared noise emits the
    /// same tokens, whatever the draft.
    Target,
    /// Ratio test on a draft's tokens, which are its likeliest or drawn.
    Ratio { draft: &'a mut Model, sharpness: f64, drawn: bool },
}

/// Story in progress.
struct Tale<'a> {
    prompt: &'a [u32],
    told: Told,
    history: History,
    tables: [BlockTable; 2],
    /// Number of drafted tokens accepted since the target's last own token.
    kept: usize,
    noise: Noise,
    dice: Dice,
}

/// Generates a story for each prompt and seed.
pub(crate) fn tell(
    target: &mut Model,
    mut rule: Rule<'_>,
    sampling: &Sampling,
    (ends, first_seed): (&[u32], u64),
    prompts: &[&[u32]],
) -> Result<Vec<Told>, crate::Fault> {
    let mut told = Vec::new();
    let mut scratch = Scratch::default();
    for (batch, prompts) in prompts.chunks(CONCURRENT_STORIES).enumerate() {
        let seeds = first_seed + (batch * CONCURRENT_STORIES) as u64..;
        let mut tales: Vec<Tale<'_>> = prompts.iter().zip(seeds).map(Tale::new).collect();
        let mut open: Vec<&mut Tale<'_>> = tales.iter_mut().collect();
        while !open.is_empty() {
            let next = step(target, &mut rule, sampling, &mut open, &mut scratch)?;
            open.iter_mut().zip(next).for_each(|(tale, (token, log))| tale.push(token, log));
            open.retain(|tale| !tale.told.tokens.last().is_some_and(|last| ends.contains(last)));
            open.retain(|tale| tale.told.tokens.len() < MAX_STORY_TOKENS);
        }
        for tale in tales {
            let [own, other] = tale.tables;
            target.cache().release(own);
            if let Rule::Ratio { draft, .. } = &mut rule {
                draft.cache().release(other);
            }
            told.push(tale.told);
        }
    }
    Ok(told)
}

/// Returns the next token of each story with its log-likelihood.
fn step(
    target: &mut Model,
    rule: &mut Rule<'_>,
    sampling: &Sampling,
    open: &mut [&mut Tale<'_>],
    scratch: &mut Scratch,
) -> Result<Vec<(u32, f64)>, crate::Fault> {
    let temperature = f64::from(sampling.temperature);
    let p = forward(target, 0, open)?;
    let p = p.map(|row| (row, softmax(row, temperature)));
    let mut choose = |tale: &mut Tale<'_>, row: &[f32]| {
        let index = tale.told.tokens.len();
        sample(row, &tale.history, sampling, None, tale.noise, index, scratch)
    };
    let choices: Vec<(usize, Vec<f64>)> = match rule {
        Rule::Target => {
            let chosen = p.zip(open).map(|((row, p), tale)| Some((choose(tale, row)? as usize, p)));
            chosen.collect::<Option<Vec<_>>>().ok_or("no token to choose")?
        }
        Rule::Ratio { draft, sharpness, drawn } => {
            let p: Vec<Vec<f64>> = p.map(|(_, p)| p).collect();
            let q = forward(draft, 1, open)?;
            let q: Vec<Vec<f64>> = q.map(|row| softmax(row, temperature / *sharpness)).collect();
            let both = p.into_iter().zip(&q).zip(open);
            both.map(|((p, q), tale)| (tale.by_ratio(&p, q, *drawn), p)).collect()
        }
    };
    Ok(choices.into_iter().map(|(token, p)| (token as u32, libm::log(p[token]))).collect())
}

/// Returns the logits after each story's last token.
fn forward<'a>(
    model: &'a mut Model,
    which: usize,
    open: &mut [&mut Tale<'_>],
) -> Result<impl Iterator<Item = &'a [f32]> + use<'a>, crate::Fault> {
    let mut chunks = Vec::new();
    for tale in open {
        let Tale { prompt, told, tables, .. } = &mut **tale;
        let table = &mut tables[which];
        let tokens = if table.is_empty() { *prompt } else { &told.tokens[told.tokens.len() - 1..] };
        if !model.cache().reserve(table, tokens.len()) {
            return Err("too few blocks".into());
        }
        chunks.push(Chunk { table, tokens, logits: 1 });
    }
    Ok(model.forward(&mut chunks).map_err(|error| error.to_string())?.rows())
}

impl<'a> Tale<'a> {
    fn new((prompt, seed): (&&'a [u32], u64)) -> Self {
        Self {
            prompt,
            told: Told::default(),
            history: History::new(prompt),
            tables: Default::default(),
            // The first token is the target's own.
            kept: DRAFT_TOKENS,
            noise: Noise::new(seed, prompt),
            dice: Dice(seed << 32),
        }
    }

    /// Returns a token by the ratio test, or the target's own after [`DRAFT_TOKENS`] accepted ones.
    fn by_ratio(&mut self, p: &[f64], q: &[f64], drawn: bool) -> usize {
        let dice = &mut self.dice;
        if self.kept == DRAFT_TOKENS {
            self.kept = 0;
            return at_height(p, dice.roll());
        }
        let drafted = if drawn { at_height(q, dice.roll()) } else { likeliest(q) };
        if dice.roll() < kept(p, q, drafted) {
            self.kept += 1;
            return drafted;
        }
        self.kept = 0;
        at_height(&residual(p, q), dice.roll())
    }

    fn push(&mut self, token: u32, log_likelihood: f64) {
        self.told.tokens.push(token);
        self.told.log_likelihood += log_likelihood;
        self.history.push(token);
    }
}

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014), for the same stories in each run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Returns a number from 0 to below 1.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{DRAFT_TOKENS, Tale};
    use crate::rules::{distance, emitted};

    #[test]
    fn tokens_come_as_often_as_the_closed_form_says() {
        let (p, q) = ([0.5, 0.3, 0.2], [0.6, 0.2, 0.2]);
        let likeliest = emitted(&p, &q, 0);
        for (kept, drawn, expected) in [
            (0, false, likeliest.as_slice()),
            (DRAFT_TOKENS - 1, false, &likeliest),
            (0, true, &p),
            (DRAFT_TOKENS, false, &p),
        ] {
            let mut tale = Tale::new((&[].as_slice(), 1));
            let mut shares = [0.0; 3];
            for _ in 0..20_000 {
                tale.kept = kept;
                let token = tale.by_ratio(&p, &q, drawn);
                assert!(tale.kept == 0 || tale.kept == kept + 1);
                shares[token] += 1.0 / 20_000.0;
            }
            assert!(distance(&shares, expected) < 0.01, "{shares:?}, not {expected:?}");
        }
    }
}
