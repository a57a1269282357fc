//! Process that measures this build of the bridge when it is asked. A comparison of two builds asks
//! both of them in turns.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::cancel::{Stops, Way};
use crate::flood::Flood;
use crate::ours::System;

/// Question; the answer is a list of numbers.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    /// Frames per second of `streams` replies with `frames` frames each.
    Chunks { streams: usize, frames: usize },
    /// Times to the first piece in milliseconds.
    First { requests: usize },
    /// Times from a cancel to the stop of the handler in milliseconds.
    Cancel { requests: usize },
    /// Times from the drop of a reply to the stop of the handler in milliseconds.
    Gone { requests: usize },
}

/// Answers each line of standard input with a line.
pub(crate) async fn serve(url: &str) -> Result<()> {
    let flood = System::start::<Flood>(url).await?;
    let mut stops = Stops::start(url).await?;
    println!("ready");
    loop {
        let line = spawn_blocking(|| std::io::stdin().lines().next().transpose()).await??;
        let Some(line) = line else { break };
        let answer = match serde_json::from_str(&line).context("a question that is none")? {
            Question::Chunks { streams, frames } => {
                vec![flood.frames_per_s(streams, frames).await?]
            }
            Question::First { requests } => flood.first_piece_ms(requests).await?,
            Question::Cancel { requests } => stops.stop_ms(Way::Cancel, requests).await?,
            Question::Gone { requests } => stops.stop_ms(Way::Drop, requests).await?,
        };
        println!("{}", serde_json::to_string(&answer)?);
    }
    stops.stop().await?;
    flood.stop().await
}
