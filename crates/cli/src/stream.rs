//! Output of a reply while it arrives.

use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use nsbridge_client::{Event, Reply};
use nsbridge_protocol::{ErrorCode, FinishReason, Revision, Summary, TextPiece, Usage};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::ctrl_c;

use crate::failure::{INTERRUPTED, note};
use crate::terminal::{print, print_line};

/// Time from the first token to the last, in seconds, from which a rate can be told.
const SHORTEST_DECODING_S: f64 = 0.001;

/// Line of the `--json` output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Piece {
        token: u32,
        text: &'a str,
    },
    #[serde(rename = "piece")]
    Value {
        piece: &'a serde_json::Value,
    },
    Restarted {
        kept: usize,
    },
    Summary(&'a Figures),
    #[serde(rename = "summary")]
    End {
        pieces: u64,
        finish_reason: FinishReason,
        usage: Usage,
        sealed_bytes: u64,
    },
}

/// Text and figures of a finished reply.
#[derive(Serialize)]
struct Figures {
    text: String,
    tokens: u64,
    finish_reason: FinishReason,
    ttft_ms: f64,
    tokens_per_s: f64,
    sealed_bytes: u64,
    /// Drafted and accepted tokens; `None` if the worker drafted none.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafted: Option<Drafted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<Revision>,
}

/// Number of drafted tokens and how many of them were accepted.
#[derive(Clone, Copy, Serialize)]
struct Drafted {
    tokens: u64,
    accepted: u64,
}

impl Drafted {
    fn of(usage: Usage) -> Option<Self> {
        let Usage { drafted_tokens: tokens, accepted_tokens: accepted, .. } = usage;
        (tokens > 0).then_some(Self { tokens, accepted })
    }
}

/// Writes the text to stdout and the figures to stderr, or both as JSON lines to stdout.
pub(crate) async fn show(reply: Reply<TextPiece>, json: bool) -> Result<ExitCode> {
    Shown::new(json).all_of(reply).await.map(|(_, code)| code)
}

/// Shows a reply of a conversation and returns its text, as far as it came before Ctrl-C.
pub(crate) async fn show_turn(reply: Reply<TextPiece>) -> Result<String> {
    Shown::new(false).all_of(reply).await.map(|(text, _)| text)
}

/// Writes each piece as a JSON value on its own line; with `json`, as a line of the `--json` output, and
/// then a summary.
pub(crate) async fn show_values(
    mut reply: Reply<serde_json::Value>,
    json: bool,
) -> Result<ExitCode> {
    // One future serves the whole reply. Otherwise a signal between two events would be lost.
    let mut interrupt = pin!(ctrl_c());
    loop {
        let Some(event) = next(&mut reply, interrupt.as_mut()).await else {
            return Ok(ExitCode::from(INTERRUPTED));
        };
        match event.transpose()? {
            Some(Event::Piece(piece)) if json => line(&Line::Value { piece: &piece })?,
            Some(Event::Piece(piece)) => line(&piece)?,
            Some(Event::Restarted { kept }) => line(&Line::Restarted { kept })?,
            Some(Event::Done(summary)) => {
                if json {
                    let Summary { pieces, finish_reason, usage, .. } = summary;
                    let sealed_bytes = reply.sealed_bytes();
                    line(&Line::End { pieces, finish_reason, usage, sealed_bytes })?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            Some(Event::Waiting) => note(&waiting(&reply)),
            Some(Event::Hint(code)) => note(&hint(code)),
            Some(_) => {}
            None => return Ok(ExitCode::FAILURE),
        }
    }
}

fn waiting<O: DeserializeOwned>(reply: &Reply<O>) -> String {
    format!("waiting: no worker has been heard for {} s", reply.silence().as_secs())
}

fn hint(code: ErrorCode) -> String {
    let why = match code {
        ErrorCode::WrongRevision => "no worker of this revision has taken it yet",
        ErrorCode::UnknownKey | ErrorCode::WrongKey => {
            "compare the check values of client and worker: nsbridge keys list"
        }
        ErrorCode::KeyScope | ErrorCode::KeyDenied => {
            "the worker's keyring does not permit this key here"
        }
        ErrorCode::Oversized => "the request is larger than 8 MiB",
        _ => "docs/operating.md lists the codes",
    };
    format!("an unsealed hint says `{code}`: {why}")
}

/// Returns the next event, or `None` after Ctrl-C, which cancels the request.
async fn next<O: DeserializeOwned>(
    reply: &mut Reply<O>,
    interrupt: Pin<&mut impl Future<Output = std::io::Result<()>>>,
) -> Option<Option<Next<O>>> {
    tokio::select! {
        event = reply.next() => Some(event),
        _ = interrupt => {
            reply.cancel();
            note("\ncancelled");
            // The runtime's threads send the cancel message, which takes a moment.
            tokio::time::sleep(Duration::from_millis(200)).await;
            None
        }
    }
}

type Next<O> = Result<Event<O>, nsbridge_client::Error>;

struct Shown {
    json: bool,
    started: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    texts: Vec<String>,
}

impl Shown {
    fn new(json: bool) -> Self {
        Self { json, started: Instant::now(), first: None, last: None, texts: Vec::new() }
    }

    /// Shows all events of a reply, and returns its text and the exit code.
    async fn all_of(mut self, mut reply: Reply<TextPiece>) -> Result<(String, ExitCode)> {
        // One future serves the whole reply. Otherwise a signal between two events would be lost.
        let mut interrupt = pin!(ctrl_c());
        loop {
            let Some(event) = next(&mut reply, interrupt.as_mut()).await else {
                return Ok((self.texts.concat(), ExitCode::from(INTERRUPTED)));
            };
            match event.transpose()? {
                Some(Event::Piece(piece)) => self.piece(piece)?,
                Some(Event::Restarted { kept }) => self.restart(kept)?,
                Some(Event::Done(summary)) => {
                    self.finish(&summary, &reply)?;
                    return Ok((self.texts.concat(), ExitCode::SUCCESS));
                }
                Some(Event::Waiting) => note(&waiting(&reply)),
                Some(Event::Hint(code)) => note(&hint(code)),
                Some(_) => {}
                None => return Ok((self.texts.concat(), ExitCode::FAILURE)),
            }
        }
    }

    fn piece(&mut self, piece: TextPiece) -> Result<()> {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        if self.json {
            line(&Line::Piece { token: piece.token, text: &piece.text })?;
        } else {
            print(&piece.text)?;
        }
        self.texts.push(piece.text);
        Ok(())
    }

    fn restart(&mut self, kept: usize) -> Result<()> {
        self.texts.truncate(kept);
        if self.json {
            return line(&Line::Restarted { kept });
        }
        note("\n[another worker made another text; it starts again here]");
        Ok(print(&self.texts.concat())?)
    }

    fn finish(&self, summary: &Summary, reply: &Reply<TextPiece>) -> Result<()> {
        let tokens = self.texts.len() as u64;
        let first = self.first.unwrap_or_else(Instant::now);
        let since = |start: Instant| self.last.map_or(0.0, |last| (last - start).as_secs_f64());
        // A short reply may come as one frame, which has no time between its tokens.
        let decoding = Some(since(first)).filter(|time| *time >= SHORTEST_DECODING_S);
        let decoding = decoding.unwrap_or_else(|| since(self.started));
        let figures = Figures {
            text: self.texts.concat(),
            tokens,
            finish_reason: summary.finish_reason,
            ttft_ms: round((first - self.started).as_secs_f64() * 1000.0),
            // The time to the first token is that of the prefill; the other tokens are decoded.
            tokens_per_s: round(tokens.saturating_sub(1) as f64 / decoding.max(1e-9)),
            sealed_bytes: reply.sealed_bytes(),
            drafted: Drafted::of(summary.usage),
            revision: reply.revision(),
        };
        if self.json {
            return line(&Line::Summary(&figures));
        }
        print("\n")?;
        let Figures { tokens, ttft_ms, tokens_per_s, sealed_bytes, drafted, revision, .. } =
            figures;
        let drafted = drafted.map_or_else(String::new, |Drafted { tokens, accepted }| {
            format!(", {accepted} of {tokens} drafted tokens accepted")
        });
        let revision = revision.map_or_else(String::new, |id| format!(", revision {id}"));
        note(&format!(
            "\n{tokens} tokens, {tokens_per_s} tokens/s, first after {ttft_ms} ms, \
             {sealed_bytes} bytes sealed{drafted}{revision}"
        ));
        Ok(())
    }
}

fn line(line: &impl Serialize) -> Result<()> {
    Ok(print_line(&serde_json::to_string(line)?)?)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
