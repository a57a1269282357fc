//! Plan of a call: what the client still lacks, and which requests make it.

use std::sync::Arc;

use nsbridge_handler::{FinishReason, Result, TextInput, TextPiece};

use crate::fields::{has_prompt_pieces, replies};
use crate::prompt;
use crate::prompt_pieces::prompt_pieces;
use crate::reply::{Reply, Rules};
use crate::request::{Request, Wanted};
use crate::resume::{Begun, begun, continuation};
use crate::server::Server;
use crate::stops::StopFilter;
use crate::texts::Texts;

/// Factor that spreads the number of known tokens over the bits of a seed: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Plan of a call.
#[derive(Debug)]
pub(crate) struct Plan {
    /// True if the pieces that the client has are part of the reply.
    pub(crate) continues: bool,
    /// Number of tokens of the prompt, if it is known.
    pub(crate) prompt: Option<usize>,
    /// Pieces of the prompt that the client lacks.
    pub(crate) prompt_pieces: Vec<TextPiece>,
    pub(crate) replies: Vec<Start>,
    /// Maximum number of pieces of all replies, if it is known.
    pub(crate) most_pieces: Option<usize>,
}

/// Beginning of a reply.
#[derive(Debug)]
pub(crate) struct Start {
    /// Request, if the reply has not ended.
    pub(crate) request: Option<(Request, Reply)>,
    /// Number of pieces that the client has.
    pub(crate) known: usize,
    pub(crate) ended: Option<FinishReason>,
}

/// Input and parameters of a call.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) input: TextInput,
    pub(crate) rules: Rules,
    pub(crate) seed: u64,
    pub(crate) scope: Arc<str>,
    /// Pieces that the client has.
    pub(crate) offered: Vec<TextPiece>,
}

/// Makes the plan.
///
/// # Errors
///
/// Returns an error if the request cannot be answered, or if the server cannot be asked.
pub(crate) async fn plan(server: Arc<Server>, task: Task) -> Result<Plan> {
    let Some(texts) = &server.texts else { return without_tokens(&server, &task) };
    let tokens = prompt::tokens(&server, texts, &task.input).await?;
    let known = known(&task, texts).await?;
    let continues = known.is_some();
    let (mut starts, count) = (Vec::new(), replies(&task.input));
    if task.input.max_tokens == Some(0) {
        starts.push(Start { request: None, known: 0, ended: Some(FinishReason::Length) });
    } else {
        let fresh = || (0..count).map(|_| None).collect::<Vec<Option<Begun>>>();
        let known = known.map_or_else(fresh, |known| known.into_iter().map(Some).collect());
        for (index, begun) in (0..).zip(known) {
            starts.push(start(&server, &task, &tokens, index, begun)?);
        }
    }
    let mut of_prompt = Vec::new();
    if has_prompt_pieces(&task.input) {
        of_prompt = prompt_pieces(&server, texts, &task.input, &tokens, &task.scope).await?;
    }
    let has = if continues { task.offered.iter().filter(|piece| piece.prompt).count() } else { 0 };
    let prompt_pieces = of_prompt.split_off(has.min(of_prompt.len()));
    let room = server.context.map(|context| context.saturating_sub(tokens.len()));
    let longest = task.input.max_tokens.map(|most| most as usize).into_iter().chain(room).min();
    let most_pieces = longest.map(|longest| {
        longest.saturating_mul(count).saturating_add(has).saturating_add(prompt_pieces.len())
    });
    Ok(Plan { continues, prompt: Some(tokens.len()), prompt_pieces, replies: starts, most_pieces })
}

/// Returns the replies that continue. `None` if all of them start over.
async fn known(task: &Task, texts: &Texts) -> Result<Option<Vec<Begun>>> {
    let Some(known) = continuation(&task.input, true, &task.offered) else { return Ok(None) };
    let mut all = Vec::with_capacity(known.len());
    for pieces in known {
        match begun(&task.input, &task.rules, texts, &pieces).await? {
            Some(begun) => all.push(begun),
            None => return Ok(None),
        }
    }
    Ok(Some(all))
}

fn start(
    server: &Server,
    task: &Task,
    prompt: &[u32],
    index: u64,
    begun: Option<Begun>,
) -> Result<Start> {
    let begun = begun.unwrap_or_else(|| Begun {
        tokens: Vec::new(),
        filter: StopFilter::new(task.rules.stops.clone()),
        ended: None,
    });
    let known = begun.tokens.len();
    if begun.ended.is_some() {
        return Ok(Start { request: None, known, ended: begun.ended });
    }
    let tokens = [prompt, &begun.tokens].concat();
    if server.context.is_some_and(|context| tokens.len() >= context) && known > 0 {
        return Ok(Start { request: None, known, ended: Some(FinishReason::Length) });
    }
    let request = Request::new(server, &task.input, &wanted(task, Some(&tokens), known, index))?;
    let reply = Reply::new(task.rules.clone(), begun.filter);
    Ok(Start { request: Some((request, reply)), known, ended: None })
}

/// Makes the plan of a call to a server that tells no tokens: all replies start over.
fn without_tokens(server: &Server, task: &Task) -> Result<Plan> {
    let mut starts = Vec::new();
    for index in 0..replies(&task.input) as u64 {
        let request = Request::new(server, &task.input, &wanted(task, None, 0, index))?;
        let filter = StopFilter::new(task.rules.stops.clone());
        let reply = Reply::new(task.rules.clone(), filter);
        starts.push(Start { request: Some((request, reply)), known: 0, ended: None });
    }
    let prompt_pieces = Vec::new();
    Ok(Plan { continues: false, prompt: None, prompt_pieces, replies: starts, most_pieces: None })
}

fn wanted<'a>(task: &'a Task, tokens: Option<&'a [u32]>, known: usize, index: u64) -> Wanted<'a> {
    // The server's random numbers begin anew. Those that have made the known tokens must not come again.
    let seed = task.seed.wrapping_add(index) ^ (known as u64).wrapping_mul(SPREAD);
    Wanted { tokens, known, seed, scope: &task.scope }
}
