//! Conversation with a model in the terminal.

use std::io;
use std::pin::{Pin, pin};
use std::process::ExitCode;

use anyhow::Result;
use nsbridge_client::{Client, Request};
use nsbridge_protocol::{ChatMessage, TextInput};
use tokio::signal::ctrl_c;
use tokio::sync::mpsc;

use crate::failure::note;
use crate::prompt::Sampling;
use crate::stream;
use crate::terminal::print;

const HELP: &str = "Each line is a message, and the model sees the whole conversation.\n\
                    /new begins a new conversation, /exit ends; Ctrl-C stops a reply.";

/// Sends each line of the terminal as a message of one conversation, and shows the replies.
///
/// `request` makes a request with this input. `first` is the first message, if the command line
/// has one.
///
/// # Errors
///
/// Returns an error if the terminal cannot be read or written, or if a request cannot be sent. A
/// reply that fails is shown, and the conversation goes on without it.
pub(super) async fn converse(
    client: &Client,
    sampling: &Sampling,
    request: impl Fn(TextInput) -> Request<TextInput>,
    first: Option<String>,
) -> Result<ExitCode> {
    note(HELP);
    let mut lines = lines();
    let mut messages: Vec<ChatMessage> = Vec::new();
    let mut next = first;
    loop {
        let line = match next.take() {
            Some(line) => line,
            None => match read(&mut lines, pin!(ctrl_c())).await? {
                Some(line) => line,
                None => return Ok(ExitCode::SUCCESS),
            },
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(ExitCode::SUCCESS),
            "/new" => {
                messages.clear();
                note("a new conversation");
                continue;
            }
            command if command.starts_with('/') => {
                note(HELP);
                continue;
            }
            _ => {}
        }
        messages.push(message("user", line));
        let ask = request(sampling.conversation(messages.clone())?);
        let said = match client.submit(ask).await {
            Ok(reply) => stream::show_turn(reply).await,
            Err(error) => Err(error.into()),
        };
        match said {
            // A reply that Ctrl-C stopped stays in the conversation as far as it was shown.
            Ok(text) => messages.push(message("assistant", text)),
            Err(error) => {
                messages.pop();
                note(&format!("no reply: {error:#}; /new begins a new conversation"));
            }
        }
    }
}

fn message(role: &str, content: String) -> ChatMessage {
    ChatMessage::new(role, content)
}

/// Starts a thread that reads standard input. It reads one line ahead.
fn lines() -> mpsc::Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel(1);
    // Reading blocks until there is a line, so the thread ends with the process.
    std::thread::spawn(move || {
        for line in io::stdin().lines() {
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    lines
}

/// Returns the next line, or `None` at the end of the input and after Ctrl-C.
async fn read(
    lines: &mut mpsc::Receiver<io::Result<String>>,
    interrupt: Pin<&mut impl Future<Output = io::Result<()>>>,
) -> Result<Option<String>> {
    print("> ")?;
    tokio::select! {
        line = lines.recv() => Ok(line.transpose()?),
        _ = interrupt => {
            print("\n")?;
            Ok(None)
        }
    }
}
