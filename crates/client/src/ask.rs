//! What a caller asks for.

use std::time::Duration;

use nsbridge_protocol::{ModelName, RequestId, Revision, Tenant, TraceParent};

/// A request before it is sealed.
#[derive(Clone, Debug)]
pub struct Ask<I> {
    /// The model that is to answer.
    pub model: ModelName,
    /// Who it is for.
    pub tenant: Tenant,
    /// The handler's input.
    pub input: I,
    /// What the reply's randomness grows from; drawn here if absent, so that every attempt at the
    /// request has the same.
    pub seed: Option<u64>,
    /// The only revision of the model that may answer; any if absent.
    pub revision: Option<Revision>,
    /// How long it may take, from now to its end.
    pub timeout: Duration,
    /// The span of the caller's that the worker's are children of; a new trace if absent.
    pub trace: Option<TraceParent>,
    /// The request that died and is asked again by this one: a word for people who look at a
    /// queue.
    pub replay_of: Option<RequestId>,
}

impl<I> Ask<I> {
    /// Five minutes, any seed.
    pub fn new(model: ModelName, tenant: Tenant, input: I) -> Self {
        let timeout = Duration::from_secs(300);
        let (seed, revision, trace, replay_of) = (None, None, None, None);
        Self { model, tenant, input, seed, revision, timeout, trace, replay_of }
    }

    /// The same request with another input.
    pub fn with_input<J>(self, input: J) -> Ask<J> {
        let Self { model, tenant, seed, revision, timeout, trace, replay_of, .. } = self;
        Ask { model, tenant, input, seed, revision, timeout, trace, replay_of }
    }
}
