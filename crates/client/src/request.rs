//! Request as a caller describes it.

use std::time::Duration;

use nsbridge_protocol::{ModelName, Priority, RequestId, Revision, Tenant, TraceParent};

/// Request before it is sealed.
///
/// ```
/// use std::time::Duration;
///
/// use nsbridge_client::{Request, TextInput};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let request = Request::new("tale-7m".parse()?, "acme".parse()?)
///     .input(TextInput::prompt("Once a bear"))
///     .seed(7)
///     .timeout(Duration::from_secs(60));
/// assert_eq!(request.seed, Some(7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request<I = ()> {
    /// Model that answers.
    pub model: ModelName,
    /// Tenant of the request.
    pub tenant: Tenant,
    /// Input of the handler.
    pub input: I,
    /// Id of the request; a new one if absent. A caller that stores a request before it submits it
    /// chooses the id.
    pub id: Option<RequestId>,
    /// Seed of all randomness in the reply. If absent, the client draws one, so that every attempt
    /// uses the same seed.
    pub seed: Option<u64>,
    /// Revision of the model that must answer; any revision if absent.
    pub revision: Option<Revision>,
    /// Priority class of the request. Workers take bulk requests only into slots that no
    /// interactive request needs.
    pub priority: Priority,
    /// Time limit, from now to the end of the reply.
    pub timeout: Duration,
    /// Caller's span, the parent of the worker's spans; a new trace if absent.
    pub trace: Option<TraceParent>,
    /// Id of the dead request that this one repeats. A hint for operators who inspect a queue.
    pub replay_of: Option<RequestId>,
}

impl Request {
    /// Creates an interactive request without input, with a time limit of five minutes and a random
    /// seed.
    pub fn new(model: ModelName, tenant: Tenant) -> Self {
        Self {
            model,
            tenant,
            input: (),
            id: None,
            seed: None,
            revision: None,
            priority: Priority::Interactive,
            timeout: Duration::from_secs(300),
            trace: None,
            replay_of: None,
        }
    }
}

impl<I> Request<I> {
    /// Sets the input, which must be of the type that the model's handler reads.
    pub fn input<J>(self, input: J) -> Request<J> {
        let Self { model, tenant, id, seed, revision, priority, timeout, trace, replay_of, .. } =
            self;
        Request { model, tenant, input, id, seed, revision, priority, timeout, trace, replay_of }
    }

    /// Sets the id of the request, which must be new.
    #[must_use]
    pub fn id(self, id: RequestId) -> Self {
        Self { id: Some(id), ..self }
    }

    /// Sets the seed of all randomness in the reply.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets the revision of the model that must answer.
    #[must_use]
    pub fn revision(self, revision: Revision) -> Self {
        Self { revision: Some(revision), ..self }
    }

    /// Sets the priority class.
    #[must_use]
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Sets the time limit, from the submission to the end of the reply.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the caller's span, the parent of the worker's spans.
    #[must_use]
    pub fn trace(self, trace: TraceParent) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// Sets the id of the dead request that this one repeats.
    #[must_use]
    pub fn replay_of(self, dead: RequestId) -> Self {
        Self { replay_of: Some(dead), ..self }
    }
}
