//! Handler that emits without a delay.

use nsbridge_handler::{Finish, Handler, Job, Models, Result, Slots};
use serde::{Deserialize, Serialize};

/// Number and size of the pieces of a reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) pieces: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Flood;

impl Handler for Flood {
    type Options = ();
    type Input = Order;
    type Output = String;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, order: Order, job: &mut Job<String>) -> Result<Finish> {
        for _ in 0..order.pieces {
            job.emit("x".repeat(order.bytes)).await?;
        }
        Ok(Finish::STOP)
    }

    fn slots(&self) -> Slots {
        Slots::Tasks(super::STREAMS)
    }
}
