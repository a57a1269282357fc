//! Conformance tests, run on both backends.

use nsbridge_queue::Limits;
use nsbridge_queue::testing::Bench;

mod memory {
    use std::sync::Arc;

    use nsbridge_queue::MemoryBroker;

    use super::{Bench, Limits};

    async fn bench(limits: Limits) -> Bench {
        let broker = MemoryBroker::with_limits(limits);
        let faults = broker.clone();
        Bench::new(Arc::new(broker), move || faults.cut(Bench::CONNECTION))
    }

    nsbridge_queue::conformance! { bench, #[tokio::test(start_paused = true)] }
}

mod amqp {
    use std::sync::Arc;

    use nsbridge_queue::AmqpBroker;

    use super::{Bench, Limits};
    use crate::amqp::proxied;

    async fn bench(limits: Limits) -> Bench {
        let (proxy, url) = proxied();
        let broker = AmqpBroker::with_limits(&url, limits).unwrap();
        Bench::new(Arc::new(broker), move || proxy.cut())
    }

    nsbridge_queue::conformance! { bench, #[tokio::test] }
}
