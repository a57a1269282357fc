//! Replies to lines of batches: found again by the name of their line, in memory or in the store.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_gateway_access::Caller;
use nsbridge_protocol::{RequestId, Uuid};

use super::{Ask, Entry, Replies, RequestContext, SEED_BITS, unreadable};
use crate::failure::Result;
use crate::record::Record;
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Reader, ReplyLog};

/// Line of a batch, as a request.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name that no other line has.
    pub name: String,
    /// Time by which its reply must be complete.
    pub until: SystemTime,
}

impl Line {
    /// Returns the beginning of the names of a batch's lines.
    pub fn of(batch: Uuid) -> String {
        format!("{} ", batch.simple())
    }
}

/// Hash by which a reply is found again, and what follows from it.
struct Derived {
    retry_hash: [u8; 32],
    id: RequestId,
    seed: u64,
}

impl Replies {
    /// Starts the reply to a line, or finds the one that the line has. Id and seed follow from the
    /// name of the line, so a reply of another process is found again, and a reply of which nothing
    /// was kept has equal text.
    pub(super) async fn start_line(
        self: &Arc<Self>,
        kind: &str,
        ask: Ask,
        caller: &Caller,
        context: &RequestContext,
        line: &Line,
        body: &[u8],
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let now = SystemTime::now();
        let mut tries = 0;
        let derived = loop {
            let derived = self.derived(kind, line, tries);
            self.table.lock().lines.entry(line.name.clone()).or_default().insert(derived.id);
            let Some(entry) = self.find_line(derived.id).await? else { break derived };
            match entry.log.end() {
                Some(ReplyEnd::Done(_)) => return Ok((entry.log.clone(), entry.log.reader())),
                // Workers do not run a request after its deadline: the next try is a new request.
                _ if entry.record.expires_at <= now => tries += 1,
                _ => return self.join(&entry, caller, ask.tokens).await,
            }
        };
        let reservation = self.reserve(caller, ask.tokens)?;
        let seed = ask.seed.unwrap_or(self.derived(kind, line, 0).seed);
        let content = *blake3::keyed_hash(&self.hash_key, body).as_bytes();
        let ask = Ask { seed: Some(seed), background: false, ..ask };
        // Replies to lines are not read by their ids.
        let record =
            self.record(kind, ask, caller, (derived.retry_hash, content), String::new())?;
        let expires_at = line.until.min(record.expires_at);
        let record = Record { id: derived.id, expires_at, of_batch: true, ..record };
        self.admit(&record)?;
        let (Ok(entry) | Err(entry)) = self.add(record, false);
        self.begin(&entry, reservation, context.trace).await
    }

    /// Forgets the replies to a line. Those in progress are canceled.
    pub fn forget_line(&self, name: &str) {
        let ids = self.table.lock().lines.remove(name).unwrap_or_default();
        for id in ids {
            let entry = self.table.lock().entries.get(&id).cloned();
            if let Some(entry) = entry {
                drop(self.remove(&entry));
            }
        }
    }

    /// Forgets the replies to all lines whose name begins so.
    pub fn forget_lines(&self, beginning: &str) {
        let table = self.table.lock();
        let names = table.lines.keys().filter(|name| name.starts_with(beginning));
        let names: Vec<String> = names.cloned().collect();
        drop(table);
        names.iter().for_each(|name| self.forget_line(name));
    }

    /// Returns the reply of this id, which may be only on the disk.
    async fn find_line(&self, id: RequestId) -> Result<Option<Arc<Entry>>> {
        let known = self.table.lock().entries.get(&id).cloned();
        match (known, &self.stores.disk) {
            // A line that is begun again loses its stored end.
            (None, Some(disk)) => self.load_from(disk, id).await.map_err(|_| unreadable()),
            (known, _) => Ok(known),
        }
    }

    fn derived(&self, kind: &str, line: &Line, tries: u32) -> Derived {
        let mut hash = blake3::Hasher::new_keyed(&self.hash_key);
        for part in [b"line of a batch".as_slice(), kind.as_bytes(), line.name.as_bytes()] {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(&tries.to_be_bytes());
        let mut long = [0; 24];
        let mut reader = hash.finalize_xof();
        reader.fill(&mut long);
        let [id, seed] = [long.first_chunk::<16>(), long.last_chunk::<16>()]
            .map(|bytes| bytes.copied().unwrap_or_default());
        let seed = u128::from_be_bytes(seed) as u64 & SEED_BITS;
        let id = uuid_of(id);
        Derived { retry_hash: *hash.finalize().as_bytes(), id, seed }
    }
}

/// Returns random bytes as an id of version 8 (RFC 9562, section 5.8).
fn uuid_of(mut bytes: [u8; 16]) -> RequestId {
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    RequestId(Uuid::from_bytes(bytes))
}
