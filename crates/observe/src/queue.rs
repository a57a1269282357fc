//! Queues of models, by their names.

use nsbridge_protocol::ModelName;

/// Fill level of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// Name of the queue.
    pub name: String,
    /// Messages that wait.
    pub ready: u64,
    /// Consumers.
    pub consumers: u64,
    /// Messages that were delivered and are not settled; the management API alone knows them.
    pub unacked: Option<u64>,
    /// Messages that came in since the broker began to count; the management API alone knows them.
    pub published_total: Option<u64>,
    /// Messages per second that come in; the management API alone knows them.
    pub published: Option<f64>,
    /// Messages per second that are settled; the management API alone knows them.
    pub settled: Option<f64>,
}

/// Use of a model's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Interactive requests.
    Requests,
    /// Bulk requests.
    Bulk,
    /// Requests that wait for another try.
    Retry,
    /// Dead letters.
    Dead,
}

/// Returns the model of a queue and its use; `None` for queues of clients, workers and runs.
pub fn model_of(queue: &str) -> Option<(&str, Use)> {
    let name = queue.strip_prefix("nsbridge.")?;
    let (model, of) = if let Some(model) = name.strip_suffix(".dead") {
        (model, Use::Dead)
    } else if let Some((model, _)) = name.rsplit_once(".retry.") {
        (model.strip_suffix(".bulk").unwrap_or(model), Use::Retry)
    } else if let Some(model) = name.strip_suffix(".bulk") {
        (model, Use::Bulk)
    } else {
        (name, Use::Requests)
    };
    // The names of other queues are no names of models.
    model.parse::<ModelName>().ok().map(|_| (model, of))
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::topology::{
        RETRY_TIERS, control_queue, dead_queue, reply_queue, request_queue, retry_queue, run_record,
    };
    use nsbridge_protocol::{ModelName, Priority};

    use super::{Use, model_of};

    fn names(model: &ModelName) -> impl Iterator<Item = String> {
        let of_class = move |priority| {
            let retries = RETRY_TIERS.map(|tier| retry_queue(model, priority, tier));
            [request_queue(model, priority)].into_iter().chain(retries)
        };
        Priority::ALL.into_iter().flat_map(of_class).chain([dead_queue(model)])
    }

    #[test]
    fn each_queue_of_a_model_leads_back_to_it() {
        for model in ["tale-7m", "llama-3.1-70b"] {
            let name = model.parse().unwrap();
            let uses: Vec<_> = names(&name)
                .map(|queue| {
                    let (found, of) = model_of(&queue).unwrap();
                    assert_eq!(found, model, "{queue}");
                    of
                })
                .collect();
            let count = |of| uses.iter().filter(|known| **known == of).count();
            assert_eq!(uses.len(), 9);
            let counts = [Use::Requests, Use::Bulk, Use::Retry, Use::Dead].map(count);
            assert_eq!(counts, [1, 1, 6, 1]);
            assert_eq!(model_of(&run_record(&name, 7)), None);
        }
    }

    #[test]
    fn other_queues_have_no_model() {
        for queue in [reply_queue(7), control_queue(7), "amq.gen-7".into(), "nsbridge.".into()] {
            assert_eq!(model_of(&queue), None, "{queue}");
        }
    }
}
