//! Models that have no worker yet, on RabbitMQ.

mod counted;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nsbridge_client::Priority;
use nsbridge_protocol::topology::request_queue;
use nsbridge_queue::{AmqpBroker, Broker, Depth, MemoryBroker};
use nsbridge_testkit::rabbit::{Rabbit, amqp_url};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use self::counted::Counted;
use crate::handler::{runs, said};
use crate::http::{Answer, TEST_TIMEOUT};
use crate::place::{Place, within};

const PATH: &str = "/v1/completions";

const RETRY: (&str, &str) = ("x-stainless-retry-count", "1");

fn rabbit() -> Arc<dyn Broker> {
    Arc::new(AmqpBroker::new(&amqp_url()).unwrap())
}

/// Starts a gateway whose model has queues and no worker.
async fn place(server: &str) -> Place {
    let place = Place::without_workers(rabbit(), server).await;
    declare(&place).await;
    place
}

async fn declare(place: &Place) {
    let connection = rabbit().connect("test").await.unwrap();
    connection.declare_model(place.model()).await.unwrap();
}

async fn depth(place: &Place) -> Depth {
    let connection = rabbit().connect("test").await.unwrap();
    connection.depth(&request_queue(place.model(), Priority::Interactive)).await.unwrap()
}

fn ask(prompt: &str, pieces: u32, stream: bool) -> Value {
    json!({ "model": "words", "prompt": prompt, "seed": 7, "max_tokens": pieces, "stream": stream })
}

/// Returns a request of each endpoint that computes a reply, with this prompt.
fn requests(prompt: &str, stream: bool) -> [(&'static str, Value); 5] {
    let messages = json!([{ "role": "user", "content": prompt }]);
    [
        (PATH, ask(prompt, 3, stream)),
        (
            "/v1/chat/completions",
            json!({ "model": "words", "messages": messages, "max_tokens": 3, "stream": stream }),
        ),
        (
            "/v1/messages",
            json!({ "model": "words", "messages": messages, "max_tokens": 3, "stream": stream }),
        ),
        (
            "/v1/responses",
            json!({ "model": "words", "input": prompt, "max_output_tokens": 3, "stream": stream }),
        ),
        (
            "/v1/models/words/run",
            json!({ "input": { "prompt": prompt, "max_tokens": 3 }, "stream": stream }),
        ),
    ]
}

/// Returns the result and the time that it took.
async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    (work.await, began.elapsed())
}

/// Checks that a request was refused because its model is starting, and returns the seconds after which
/// to try again.
#[track_caller]
fn refused(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.header("x-should-retry"), Some("true"));
    let after = answer.header("retry-after").unwrap().parse().unwrap();
    let told =
        format!("the model `words` is starting: no worker of it runs yet, try again in {after} s");
    assert_eq!(answer.json()["error"]["message"], told);
    after
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_shows_at_once_that_its_model_has_no_worker_and_has_the_reply_when_one_comes() {
    let place = place("").await;
    let mut streams = Vec::new();
    for (path, body) in requests("1 streams wait", true) {
        let mut stream = place.open(path, &body, &[]).await;
        timeout(Duration::from_secs(3), stream.until(": waiting\n")).await.expect(path);
        streams.push((path, stream));
    }
    let _worker = place.start_worker(rabbit()).await;
    for (path, stream) in streams {
        let answer = stream.end().await;
        assert_eq!(answer.status, 200, "{path}");
        // The next comment would come after 15 s.
        assert_eq!(answer.body.matches(": waiting").count(), 1, "{path}: {}", answer.body);
        let ends = ["data: [DONE]", "event: message_stop", "event: response.incomplete"];
        assert!(ends.iter().any(|end| answer.body.contains(end)), "{path}: {}", answer.body);
    }
    assert_eq!(runs("1 streams wait").len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_stream_is_refused_while_its_model_has_no_worker() {
    let (place, prompt) = (place("start_wait_s = 2").await, "1000 refused while none runs");
    let tokenize = ("/tokenize", json!({ "model": "words", "prompt": prompt }));
    let asked = requests(prompt, false).into_iter().chain([tokenize]);
    let asked: Vec<_> = asked.collect();
    let answers = asked.iter().map(|(path, body)| timed(place.post(path, body, &[])));
    for ((path, _), (answer, took)) in asked.iter().zip(join_all(answers).await) {
        let after = refused(&answer);
        assert!((20..30).contains(&after), "{path}: {after}");
        assert!((1.9..5.0).contains(&took.as_secs_f64()), "{path}: {took:?}");
        let kind = if *path == "/v1/messages" { "overloaded_error" } else { "server_error" };
        assert_eq!(answer.json()["error"]["type"], kind, "{path}");
        if kind == "server_error" {
            assert_eq!(answer.code(), "model_starting", "{path}");
        }
    }
    // The requests wait for the scaler to see them, and are canceled at the worker.
    assert_eq!(depth(&place).await.messages, 6);
    let _worker = place.start_worker(rabbit()).await;
    let (answer, took) = timed(place.post(PATH, &ask("1 after the others", 3, false), &[])).await;
    assert_eq!((answer.status, answer.text()), (200, said(7, 3)));
    let ended = || runs(prompt).iter().all(|run| run.ended);
    within(Duration::from_secs(2), "a canceled reply is computed", ended).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(depth(&place).await.messages, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_worker_starts_in_time_has_its_reply() {
    let place = place("start_wait_s = 6").await;
    let body = ask("1 in time", 3, false);
    let (answer, _worker) = tokio::join!(place.post(PATH, &body, &[]), async {
        sleep(Duration::from_secs(2)).await;
        place.start_worker(rabbit()).await
    });
    assert_eq!((answer.status, answer.text()), (200, said(7, 3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_a_refused_request_has_a_reply_of_its_own() {
    let (place, prompt) = (place("start_wait_s = 1").await, "1 refused and tried again");
    let body = ask(prompt, 3, false);
    for headers in [&[][..], &[RETRY, ("idempotency-key", "k")]] {
        refused(&place.post(PATH, &body, headers).await);
    }
    let _worker = place.start_worker(rabbit()).await;
    for headers in [&[RETRY][..], &[RETRY, ("idempotency-key", "k")]] {
        let answer = place.post(PATH, &body, headers).await;
        assert_eq!((answer.status, answer.text()), (200, said(7, 3)));
    }
    // A continued reply would leave its first copy to a worker, which would compute it for no client.
    let measured = place.measured().await;
    assert!(measured.contains("nsbridge_gateway_replies_reattached_total 0\n"), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_a_worker_that_drains_is_not_refused() {
    // The memory broker counts no consumer of a worker that drains, as classic queues do.
    let broker = Arc::new(MemoryBroker::new());
    let place = Place::without_workers(broker.clone(), "start_wait_s = 1").await;
    let worker = place.start_worker(broker).await;
    let prompt = "300 drained";
    let body = ask(prompt, 10, false);
    let (answer, ()) = tokio::join!(place.post(PATH, &body, &[]), async {
        within(TEST_TIMEOUT, "it does not start", || !runs(prompt).is_empty()).await;
        worker.stop().await.unwrap();
    });
    assert_eq!((answer.status, answer.text()), (200, said(7, 10)));
    assert_eq!(runs(prompt).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_that_a_client_announces_ends_its_wait() {
    let place = place("").await;
    for header in ["x-stainless-read-timeout", "x-stainless-timeout"] {
        let (body, headers) = (ask("1 announced", 3, false), [(header, "3.0")]);
        let (answer, took) = timed(place.post(PATH, &body, &headers)).await;
        refused(&answer);
        assert!((1.9..3.0).contains(&took.as_secs_f64()), "{header}: {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_for_a_busy_worker_without_a_word() {
    let place = place("start_wait_s = 1").await;
    let _worker = place.start_worker(rabbit()).await;
    let long = ask("600 busy", 10, false);
    // The worker has eight slots.
    let busy = join_all((0..8).map(|_| place.post(PATH, &long, &[])));
    let waiting = async {
        sleep(Duration::from_millis(500)).await;
        let (whole, stream) = (ask("1 waits", 3, false), ask("1 waits", 3, true));
        tokio::join!(timed(place.post(PATH, &whole, &[])), timed(place.post(PATH, &stream, &[])))
    };
    let (busy, ((whole, took), (stream, _))) = tokio::join!(busy, waiting);
    assert!(took > Duration::from_secs(4), "it did not wait: {took:?}");
    assert!(busy.iter().all(|answer| answer.status == 200));
    assert_eq!((whole.status, whole.text()), (200, said(7, 3)));
    assert_eq!((stream.status, stream.text()), (200, said(7, 3)));
    assert!(!stream.body.contains(": waiting"), "{}", stream.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_in_the_background_waits_for_the_first_worker() {
    let place = place("start_wait_s = 1").await;
    let body = json!({
        "model": "words", "input": "1 background waits", "max_output_tokens": 3, "background": true
    });
    let made = place.post("/v1/responses", &body, &[]).await.json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    sleep(Duration::from_secs(3)).await;
    assert_eq!(place.get(&path).await.json()["status"], "queued");
    let _worker = place.start_worker(rabbit()).await;
    let began = Instant::now();
    while place.get(&path).await.json()["status"] != "incomplete" {
        assert!(began.elapsed() < Duration::from_secs(10), "it has no reply");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_that_wait_ask_the_broker_a_few_times() {
    let counted = Arc::new(Counted::new(rabbit()));
    let place = Place::without_workers(counted.clone(), "start_wait_s = 2").await;
    declare(&place).await;
    let began = Instant::now();
    let mut asked = Vec::new();
    for index in 0..1000 {
        let stream = index % 2 == 0;
        let body = ask(&format!("1 of a thousand {index}"), 3, stream);
        let mut connection = place.open(PATH, &body, &[]).await;
        let shown = if stream { ": waiting\n" } else { "model_starting" };
        asked.push(async move { connection.until(shown).await });
    }
    join_all(asked).await;
    let took = began.elapsed();
    let questions = counted.questions.load(Ordering::Relaxed);
    let most = 1 + took.as_secs() / 3;
    assert!((1..=most).contains(&questions), "{questions} questions in {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_a_gateway_suffice_to_count_workers() {
    let rabbit = Rabbit::start().unwrap();
    rabbit.ctl(&["add_user", "gateway", "word"]).unwrap();
    // The patterns of docs/broker.md.
    let configure = r"^nsbridge\.(control|reply|reply\.[0-9a-f]{32})$";
    let write = r"^(amq\.default|nsbridge\.(control|reply\.[0-9a-f]{32}))$";
    let read = r"^nsbridge\.reply(\.[0-9a-f]{32})?$";
    rabbit.ctl(&["set_permissions", "-p", "/", "gateway", configure, write, read]).unwrap();
    let workers: Arc<dyn Broker> = Arc::new(AmqpBroker::new(&rabbit.url()).unwrap());
    let limited = rabbit.url().replace("guest:guest", "gateway:word");
    let limited = Arc::new(AmqpBroker::new(&limited).unwrap());
    let place = Place::without_workers(limited, "start_wait_s = 1").await;
    let connection = workers.connect("test").await.unwrap();
    connection.declare_model(place.model()).await.unwrap();
    refused(&place.post(PATH, &ask("1 with few rights", 3, false), &[]).await);
    let _worker = place.start_worker(workers).await;
    let answer = place.post(PATH, &ask("1 with few rights", 3, false), &[]).await;
    assert_eq!((answer.status, answer.text()), (200, said(7, 3)));
}
