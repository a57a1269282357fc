//! Request as a caller describes it.

use std::time::Duration;

use nsbridge_protocol::{ModelName, RequestId, Revision, Tenant, TraceParent};

/// Request before it is sealed.
#[derive(Clone, Debug)]
pub struct Ask<I> {
    /// Model that answers.
    pub model: ModelName,
    /// Tenant of the request.
    pub tenant: Tenant,
    /// Input of the handler.
    pub input: I,
    /// Seed of all randomness in the reply. If absent, the client draws one, so that every attempt
    /// uses the same seed.
    pub seed: Option<u64>,
    /// Revision of the model that must answer; any revision if absent.
    pub revision: Option<Revision>,
    /// Time limit, from now to the end of the reply.
    pub timeout: Duration,
    /// Caller's span, the parent of the worker's spans; a new trace if absent.
    pub trace: Option<TraceParent>,
    /// Id of the dead request that this one repeats. A hint for operators who inspect a queue.
    pub replay_of: Option<RequestId>,
}

impl<I> Ask<I> {
    /// Creates a request with a time limit of five minutes and a random seed.
    pub fn new(model: ModelName, tenant: Tenant, input: I) -> Self {
        let timeout = Duration::from_secs(300);
        let (seed, revision, trace, replay_of) = (None, None, None, None);
        Self { model, tenant, input, seed, revision, timeout, trace, replay_of }
    }

    /// Returns the same request with another input.
    pub fn with_input<J>(self, input: J) -> Ask<J> {
        let Self { model, tenant, seed, revision, timeout, trace, replay_of, .. } = self;
        Ask { model, tenant, input, seed, revision, timeout, trace, replay_of }
    }
}
