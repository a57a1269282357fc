//! Handler that emits without a delay.

use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models, Result};
use serde::{Deserialize, Serialize};

/// Number and size of the pieces of a reply, and the time between two of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) pieces: usize,
    pub(crate) bytes: usize,
    pub(crate) every_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Flood;

impl AsyncHandler for Flood {
    type Options = ();
    type Input = Order;
    type Output = String;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, order: Order, job: &mut AsyncJob<String>) -> Result<Finish> {
        for _ in 0..order.pieces {
            job.emit("x".repeat(order.bytes)).await?;
        }
        Ok(Finish::STOP)
    }

    fn tasks(&self) -> usize {
        super::STREAMS
    }
}
