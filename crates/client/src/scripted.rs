//! Worker's side of a reply, for tests.

use nsbridge_crypto::{DataKey, Key, ReplyRoot, ReplySealer, RequestHead};
use nsbridge_protocol::{
    AttemptNo, Fingerprint, Finish, Open, Pieces, Priority, RequestId, Summary, TraceParent,
};

use crate::merge::Merge;
use crate::pending::Original;

pub(crate) const ID: RequestId = RequestId(nsbridge_protocol::Uuid::from_bytes([3; 16]));

/// Root of a newly sealed request.
pub(crate) fn root() -> ReplyRoot {
    original().seal().unwrap().reply_root
}

/// Original from which the request is sealed.
pub(crate) fn original() -> Original {
    let head = RequestHead {
        id: ID,
        created_at_ms: 0,
        expires_at_ms: 1,
        model: "m".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        key_id: "k".parse().unwrap(),
    };
    let trace = TraceParent::root([7; 16], [7; 8]).unwrap();
    let key = DataKey::of_keyring(head.key_id.clone(), Key::from_bytes([1; 32]));
    let (priority, content) = (Priority::Interactive, b"{}".to_vec());
    Original { head, priority, key, content, trace, epoch: 0 }
}

/// Worker's side of one attempt.
pub(crate) struct Sender {
    pub(crate) sealer: ReplySealer,
    pub(crate) open: Vec<u8>,
    pub(crate) next: u32,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
}

impl Sender {
    pub(crate) fn new(root: &ReplyRoot, attempt: u32, opened_at_ms: u64) -> Self {
        Self::of(root, attempt, opened_at_ms, None)
    }

    /// Opens a stream as a worker with this fingerprint.
    pub(crate) fn of(
        root: &ReplyRoot,
        attempt: u32,
        opened_at_ms: u64,
        fingerprint: Option<Fingerprint>,
    ) -> Self {
        // Each attempt has another revision.
        let revision = format!("r{attempt}").parse().ok();
        let mut open = Open::new("w", opened_at_ms);
        (open.fingerprint, open.revision) = (fingerprint, revision);
        let open = serde_json::to_vec(&open).unwrap();
        let (sealer, open) = ReplySealer::start(root, ID, AttemptNo(attempt), &open).unwrap();
        Self { sealer, open, next: 0, chunks: 0, bytes: 0 }
    }

    pub(crate) fn send(&mut self, text: &str) -> Vec<u8> {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        let first = self.next;
        self.next += pieces.len() as u32;
        self.bytes += text.len() as u64;
        self.chunks += 1;
        self.sealer.seal_pieces(|out| Pieces::write(out, first, pieces.into_iter())).unwrap()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let summary = self.summary();
        self.sealer.seal_final_ok(&serde_json::to_vec(&summary).unwrap()).unwrap()
    }

    pub(crate) fn moved(self) -> Vec<u8> {
        self.sealer.seal_moved().unwrap()
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut summary = Summary::new(Finish::STOP);
        (summary.chunks, summary.bytes) = (self.chunks, self.bytes);
        summary.pieces = u64::from(self.next);
        summary
    }

    pub(crate) fn sealer_with_open(self, merge: &mut Merge) -> ReplySealer {
        merge.accept(&self.open);
        self.sealer
    }
}
