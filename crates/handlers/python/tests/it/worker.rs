//! Worker with a model in Python, its client and its queue.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_python::{Options, Python};
use nsbridge_testkit::system::client::{Client, Error, Reply, Request};
use nsbridge_testkit::system::queue::{AmqpBroker, Broker, MemoryBroker};
use nsbridge_testkit::system::{Running, Setup};
use serde_json::{Value, json};

use crate::folder::Folder;

pub(crate) struct System {
    pub(crate) setup: Setup,
    pub(crate) client: Client,
    pub(crate) worker: Running,
}

impl System {
    /// Starts a worker on a queue in memory.
    pub(crate) async fn start(options: Options) -> Self {
        Self::on(Arc::new(MemoryBroker::new()), options).await
    }

    pub(crate) async fn on(broker: Arc<dyn Broker>, options: Options) -> Self {
        let setup = Setup::new().unwrap();
        let worker = setup.worker_async::<Python>(broker.clone(), options).await.unwrap();
        let client = setup.client(broker).await.unwrap();
        Self { setup, client, worker }
    }

    /// Submits a request with this time limit.
    pub(crate) async fn submit(&self, input: &Value, limit: Duration) -> Reply<Value> {
        let tenant = self.setup.tenant();
        let mut request = Request::new(self.setup.model.clone(), tenant).input(input.clone());
        request.timeout = limit;
        request.seed = Some(7);
        self.client.submit(request).await.unwrap()
    }

    pub(crate) async fn ask(&self, input: &Value) -> Result<Vec<Value>, Error> {
        let reply = self.submit(input, Duration::from_secs(60)).await;
        reply.collect().await.map(|(pieces, _)| pieces)
    }

    /// Returns the value of a metric of the handler.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.setup.observability.metrics.text();
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse().unwrap()
    }
}

/// A model of six lines.
const WORDS: &str = "
    class Model:
        def load(self, models):
            self.greeting = 'hello'
        def handle(self, input, job):
            for name in input:
                yield self.greeting + ' ' + name
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_of_six_lines_answers_through_rabbitmq() {
    let folder = Folder::with(WORDS);
    let broker = Arc::new(AmqpBroker::new(&nsbridge_testkit::amqp_url()).unwrap());
    let system = System::on(broker, folder.options()).await;
    let pieces = system.ask(&json!(["bear", "fox"])).await.unwrap();
    assert_eq!(pieces, [json!("hello bear"), json!("hello fox")]);
    let failed = system.ask(&json!(3)).await.unwrap_err();
    assert!(matches!(&failed, Error::Failed { .. }), "{failed:?}");
    assert!(!failed.to_string().contains("int"), "{failed}");
    system.worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_answer_many_clients_at_once() {
    let folder = Folder::with(
        "
        import os, time
        def handle(input, job):
            for i in range(20):
                time.sleep(0.001)
                yield [input, i]
            yield os.getpid()
        ",
    );
    let mut options = folder.options();
    (options.processes, options.slots) = (2, 4);
    let system = System::start(options).await;
    let asked: Vec<Value> = (0..40).map(|n| json!(n)).collect();
    let replies = asked.iter().map(|input| system.ask(input));
    let mut pids = std::collections::BTreeSet::new();
    for (n, reply) in futures_util::future::join_all(replies).await.into_iter().enumerate() {
        let mut pieces = reply.unwrap();
        pids.insert(pieces.pop().unwrap().to_string());
        assert_eq!(pieces, (0..20).map(|i| json!([n, i])).collect::<Vec<_>>());
    }
    assert_eq!(pids.len(), 2, "both processes are used");
}
