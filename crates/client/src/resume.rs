//! State from which a client continues a request that another client submitted.

use std::fmt;
use std::time::SystemTime;

use nsbridge_protocol::{Fingerprint, RequestId};

/// State of a request, from which [`Client::reattach`](crate::Client::reattach) continues it.
///
/// A process that stores this state beside the request survives its own end: the next process, on
/// any machine, continues the reply with the next piece. Without stored pieces, the reply starts
/// over with equal pieces.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResumePoint {
    /// Id of the request.
    pub id: RequestId,
    /// Seed of the request, which every copy must have.
    pub seed: u64,
    /// Time of the first submission.
    pub created_at: SystemTime,
    /// Time by which the reply must be complete.
    pub expires_at: SystemTime,
    /// Number of clients that submitted the request before this one, at least 1. Workers wait for
    /// the pieces of a client that is not the first.
    pub clients: u16,
    /// Fingerprint of the worker that produced the last piece, by
    /// [`Reply::fingerprint`](crate::Reply::fingerprint). Without it, the pieces are only compared.
    pub fingerprint: Option<Fingerprint>,
    /// Pieces received so far, with the bytes that the worker sent.
    pub pieces: Vec<Vec<u8>>,
}

impl ResumePoint {
    /// Creates the state of a request without stored pieces, submitted once.
    pub fn new(id: RequestId, seed: u64, created_at: SystemTime, expires_at: SystemTime) -> Self {
        let (clients, fingerprint, pieces) = (1, None, Vec::new());
        Self { id, seed, created_at, expires_at, clients, fingerprint, pieces }
    }

    /// Sets the pieces received so far, and the fingerprint of the worker of the last one.
    #[must_use]
    pub fn pieces(self, pieces: Vec<Vec<u8>>, fingerprint: Option<Fingerprint>) -> Self {
        Self { pieces, fingerprint, ..self }
    }

    /// Sets the number of clients that submitted the request before.
    #[must_use]
    pub fn clients(self, clients: u16) -> Self {
        Self { clients: clients.max(1), ..self }
    }
}

impl fmt::Debug for ResumePoint {
    /// Omits the seed and the text of the reply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumePoint")
            .field("id", &self.id)
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}
