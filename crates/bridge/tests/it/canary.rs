//! Plaintext of the user appears only at the two ends.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nsbridge_handler::Models;
use nsbridge_protocol::topology::model_queue;
use nsbridge_testkit::system::client::{Error, Request};
use nsbridge_testkit::system::{Running, Setup};
use tracing_subscriber::fmt::MakeWriter;

use crate::script::{Script, Scripted, submit};

const CANARY: &str = "canary-in-the-prompt";

/// Captured log output.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// Log of this process, once a test has captured it.
static CAPTURED: OnceLock<Log> = OnceLock::new();

impl Log {
    /// Captures all log output of this process, once.
    pub(crate) fn shared() -> Self {
        let capture = || {
            let log = Self::default();
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_writer(log.clone())
                .finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            log
        };
        CAPTURED.get_or_init(capture).clone()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_the_user_wrote_is_in_a_queue_or_a_log() {
    let log = Log::shared();
    let broker = crate::rabbit();
    let setup = Setup::new().unwrap();
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    worker.stop().await.unwrap();

    // While no worker runs, the request waits in the queue, where any user of the broker can read
    // it.
    let refuse = Script::Refuse(CANARY.into());
    let reply = submit(&client, &setup, refuse.clone()).await.unwrap();
    let mut odd = Request::new(setup.model.clone(), setup.tenant()).input(CANARY);
    odd.timeout = Duration::from_secs(20);
    let misfit = client.submit::<String>(odd).await.unwrap();
    let connection = broker.connect("eavesdropper").await.unwrap();
    let mut tap = connection.consume(&model_queue(&setup.model), 2).await.unwrap();
    for _ in 0..2 {
        let seen = tap.recv().await.unwrap();
        assert!(!contains(&seen.message.body, CANARY));
        assert!(!format!("{:?}", seen.message.properties).contains(CANARY));
        drop(seen);
    }
    drop(tap);

    // All failures that could quote the input: the handler's refusal, an input of the wrong type, a
    // panic, a retry.
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    assert!(reply.collect().await.unwrap_err().to_string().contains(CANARY), "the client is told");
    let ended = misfit.collect().await;
    assert!(matches!(ended, Err(Error::Failed { .. })), "{ended:?}");
    worker.stop().await.unwrap();
    connection.close().await;

    let log = log.bytes();
    assert!(contains(&log, "taking requests"), "the log was caught");
    let text = String::from_utf8_lossy(&log);
    for what in ["the handler was called", "a request ended"] {
        let mut lines = text.lines().filter(|line| line.contains(what));
        assert!(lines.all(|line| line.contains("request{trace=")), "{what} names no trace");
        assert!(text.contains(what));
    }
    assert!(!contains(&log, CANARY), "what the user wrote is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_errors_of_a_handler_are_logged_on_request_alone() {
    const CAUSE: &str = "invalid digit found in string";
    let log = Log::shared();
    let broker = crate::rabbit();
    for is_shown in [false, true] {
        let setup = Setup::new().unwrap();
        let builder = setup.builder(broker.clone()).show_errors(is_shown);
        let worker = builder.start::<Scripted>((), Models::default()).await.unwrap();
        let worker = Running::start(worker).await.unwrap();
        let client = setup.client(broker.clone()).await.unwrap();
        let reply = submit(&client, &setup, Script::FailForGood).await.unwrap();
        reply.collect().await.unwrap_err();
        worker.stop().await.unwrap();
        assert_eq!(contains(&log.bytes(), CAUSE), is_shown);
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
