//! Assignment of runs to the copies of a request.
//!
//! The job key consists of the request's id and the salt of its sealing. A handler receives the id
//! and the attempt number, not the salt. However, the frame that opens a run's stream can only be
//! opened with the reply root of its copy, and its sealed content names worker and attempt. So the
//! copies come from the enqueued requests, the streams from the tap, and the round's keyring
//! connects them. Most requests are enqueued once and need no assignment.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use nsbridge_crypto::{KeyProvider, Keyring, ReplyOpener, ReplyRoot, RequestFrame};
use nsbridge_protocol::Open;

use crate::clock::SECOND;
use crate::journal::{Line, Run, What, from_hex, to_hex};
use crate::stage::KEYRING;

/// Maximum delay of an opening frame: it may be recorded this much after the start of its run. A
/// first attempt starts while its stream opens, and the tap is late.
const LATE: u64 = SECOND / 2;

/// Copies and streams of a round.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Salts of each request's copies, in the order in which they were enqueued.
    salts: HashMap<String, Vec<String>>,
    /// Streams by worker, request and attempt: time of the opening frame, and salt.
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
            let salt = to_hex(&opened.job_key.salt.0);
            let known = copies.salts.entry(request.clone()).or_default();
            // The same sealed bytes may be published again.
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

    /// Returns the number of requests with more than one copy.
    pub(super) fn asked_again(&self) -> usize {
        self.salts.values().filter(|salts| salts.len() > 1).count()
    }

    /// Returns the job key of a run that began at `start`. The wire tap does not know a reply queue that
    /// the client takes in place of a lost one; a run without an opening frame is of the copy of its
    /// epoch. A run of no known copy counts as one of the first: this may report a false double run,
    /// but never hides one.
    pub(super) fn key(&self, run: &Run, start: u64) -> String {
        let Run { worker, request, attempt, .. } = run;
        let salts = self.salts.get(request).map_or(&[][..], Vec::as_slice);
        let streams = self.streams.get(&(worker.clone(), request.clone(), *attempt));
        let before = streams.and_then(|streams| {
            let heard = |stream: &&(u64, String)| stream.0 <= start + LATE;
            Some(&streams.iter().rev().find(heard)?.1)
        });
        let of_its_epoch = || salts.get((attempt >> 16) as usize).or(salts.first());
        let salt = before.or_else(of_its_epoch).filter(|_| salts.len() > 1).or(salts.first());
        format!("{request} {}", salt.map_or("", String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_crypto::{Entry, Key, Keyring, ReplySealer, RequestHead, State, seal_request};
    use nsbridge_protocol::{AttemptNo, Open, RequestId};

    use super::Copies;
    use crate::journal::{Line, Run, What, to_hex};

    /// One request is enqueued twice. Worker `w` opens a stream for the second copy only, with an
    /// attempt number that the first copy could have too.
    #[tokio::test]
    async fn a_run_is_of_the_copy_whose_root_opens_its_stream() {
        let id = RequestId::from_bytes([9; 16]);
        let head = RequestHead {
            id,
            created_at_ms: 1,
            expires_at_ms: 2,
            model: "m".parse().unwrap(),
            tenant: "t".parse().unwrap(),
            key_id: "k".parse().unwrap(),
        };
        let key = || Key::from_bytes([1; 32]);
        let keys = Entry::new("k".parse().unwrap(), key(), State::Primary);
        let keys = Keyring::of(vec![keys]).unwrap();
        let sealed = [0, 1].map(|_| seal_request(&key(), &head, b"{}").unwrap());
        let open = serde_json::to_vec(&Open::new("w", 1)).unwrap();
        let root = &sealed[1].reply_root;
        let (_, opened) = ReplySealer::start(root, id, AttemptNo(1), &open).unwrap();
        let request = id.to_string();
        let frame = What::Frame {
            request: request.clone(),
            stream: "s".to_owned(),
            seq: 0,
            hash: 0,
            open: Some(to_hex(&opened)),
        };
        let enqueue =
            |i: usize| What::Enqueue { request: request.clone(), frame: to_hex(&sealed[i].frame) };
        let whats = [enqueue(0), enqueue(0), enqueue(1), frame].into_iter().enumerate();
        let lines: Vec<Line> = whats.map(|(i, what)| Line { at: i as u64, what }).collect();
        let copies = Copies::of(&keys, &lines).await.unwrap();
        assert_eq!(copies.asked_again(), 1);
        let key_of = |worker: &str, attempt: u32| {
            let worker = worker.to_owned();
            let run = Run { pid: 1, call: 0, worker, request: request.clone(), attempt };
            copies.key(&run, 10)
        };
        let salt = |i: usize| to_hex(&sealed[i].job_key.salt.0);
        assert_eq!(key_of("w", 1), format!("{request} {}", salt(1)));
        for (attempt, copy) in [(1, 0), (1 << 16 | 1, 1), (2 << 16 | 1, 0)] {
            assert_eq!(key_of("unheard of", attempt), format!("{request} {}", salt(copy)));
        }
    }
}
