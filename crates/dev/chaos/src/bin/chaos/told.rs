//! Handler for requests of text, as gateways and `nsbridge ask` send them: their text is the order.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use nsbridge_handler::{
    Error, Fingerprint, Finish, Handler, Job, Models, Result, TextInput, TextPiece, Usage,
};
use serde::Deserialize;

use crate::calls::Runs;
use crate::journal::{Journal, What};
use crate::order::{Order, piece};

/// `[handler]` table of the configuration.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Options {
    /// Folder of the journal.
    dir: PathBuf,
    worker: String,
    slots: usize,
}

/// Input of a request.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Input {
    /// Order of a client process.
    Order(Order),
    Text(Box<TextInput>),
}

/// Scripted handler whose pieces are tokens.
#[derive(Debug)]
pub(crate) struct Told {
    journal: Journal,
    runs: Runs,
    slots: usize,
}

impl Handler for Told {
    type Options = Options;
    type Input = Input;
    type Output = TextPiece;

    fn load(options: Options, _models: Models) -> Result<Self> {
        let Options { dir, worker, slots } = options;
        let journal = Journal::in_dir(&dir).map_err(Error::fatal)?;
        Ok(Self { journal, runs: Runs::in_dir(&dir, worker)?, slots })
    }

    fn handle(&self, input: Input, job: &mut Job<TextPiece>) -> Result<Finish> {
        let order = match input {
            Input::Order(order) => order,
            Input::Text(input) => {
                let text = input.messages.last().map(|message| &*message.content);
                serde_json::from_str(text.unwrap_or_default())
                    .map_err(|_| Error::bad_input("the text of the request is no order"))?
            }
        };
        let from = if order.deaf { 0 } else { job.accept_resume().len() };
        let mut call = self.runs.begin(order.n, job.info(), from);
        let seed = job.info().seed;
        let _ = self.journal.note(What::Seed { request: job.info().id.to_string(), seed });
        for index in from..order.pieces {
            sleep(Duration::from_millis(order.every_ms));
            if let Err(stop) = job.emit(TextPiece::new(index as u32, piece(seed, index))) {
                call.how = stop.to_string();
                return Err(stop.into());
            }
            call.pieces = index + 1;
        }
        call.how = "ok".to_owned();
        let output_tokens = order.pieces as u64;
        Ok(Finish::STOP.with_usage(Usage::new(1, output_tokens)))
    }

    fn threads(&self) -> usize {
        self.slots
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(*b"chaos' handler 2"))
    }
}
