//! Which copy of a request a run is of.
//!
//! The job key is the request's id and the salt of its sealing. A handler is told the id and the
//! number of its attempt, not the salt; but the frame that opens its stream can only be opened
//! with the reply root of its copy, and names its worker and attempt in what is sealed. So the
//! copies come from what clients enqueued, the streams from the tap, and the round's keyring ties
//! them together. Most requests are enqueued once, and then there is nothing to tie.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use nsbridge_crypto::{KeyProvider, Keyring, ReplyOpener, ReplyRoot, RequestFrame};
use nsbridge_protocol::Open;

use crate::clock::SECOND;
use crate::journal::{Line, Run, What, from_hex};

/// The keyring's name in the folder of a round.
pub(crate) const KEYRING: &str = "keys.json";

/// The tap may be heard a little after the run that it announces.
const LATE: u64 = SECOND / 2;

/// What is known of the copies of a round.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The salts of each request's copies, in the order in which they were enqueued.
    salts: HashMap<String, Vec<String>>,
    /// Streams by worker, request and attempt: when they were opened, and for which salt.
    streams: HashMap<(String, String, u32), Vec<(u64, String)>>,
}

impl Copies {
    pub(super) fn read(dir: &Path, lines: &[Line]) -> Result<Self> {
        let keys = Keyring::load(&dir.join(KEYRING))?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(Self::of(&keys, lines))
    }

    async fn of(keys: &Keyring, lines: &[Line]) -> Result<Self> {
        let mut copies = Self::default();
        let mut roots: BTreeMap<String, Vec<(String, ReplyRoot)>> = BTreeMap::new();
        for line in lines {
            let What::Enqueue { request, frame } = &line.what else { continue };
            let bytes = from_hex(frame).context("an enqueued request is no hex")?;
            let parsed = RequestFrame::parse(&bytes)?;
            let opened = parsed.open(&keys.open_key(&parsed).await?)?;
            let salt = opened.job_key.salt.0.map(|byte| format!("{byte:02x}")).concat();
            let known = copies.salts.entry(request.clone()).or_default();
            // The same bytes may be published again.
            if !known.contains(&salt) {
                known.push(salt.clone());
                roots.entry(request.clone()).or_default().push((salt, opened.reply_root));
            }
        }
        for line in lines {
            let What::Frame { request, open: Some(frame), .. } = &line.what else { continue };
            let bytes = from_hex(frame).context("a frame is no hex")?;
            let tried = roots.get(request).into_iter().flatten();
            for (salt, root) in tried {
                let Ok((opener, content)) = ReplyOpener::accept(root, &bytes) else { continue };
                let open: Open = serde_json::from_slice(&content)?;
                let stream = (open.worker, request.clone(), opener.attempt().0);
                copies.streams.entry(stream).or_default().push((line.at, salt.clone()));
            }
        }
        Ok(copies)
    }

    /// The job key of a run that began at `start`. One that nothing is known of is held to be of
    /// the first copy: that may accuse, and never hides.
    pub(super) fn key(&self, run: &Run, start: u64) -> String {
        let Run { worker, request, attempt, .. } = run;
        let salts = self.salts.get(request).map_or(&[][..], Vec::as_slice);
        let streams = self.streams.get(&(worker.clone(), request.clone(), *attempt));
        let before = streams.and_then(|streams| {
            let heard = |stream: &&(u64, String)| stream.0 <= start + LATE;
            Some(&streams.iter().rev().find(heard)?.1)
        });
        let salt = if salts.len() > 1 { before.or(salts.first()) } else { salts.first() };
        format!("{request} {}", salt.map_or("", String::as_str))
    }
}
