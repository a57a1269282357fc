//! Requests that may not run: each becomes a sealed dead letter with a reason, and the worker goes
//! on.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_crypto::{Entry, Key, Keyring, RequestHead, State, seal_request};
use nsbridge_protocol::topology::{
    self, RETRY_TIERS, dead_queue, header, model_queue, reply_queue, retry_queue,
};
use nsbridge_protocol::{ErrorCode, Priority, RequestId, Uuid};
use nsbridge_queue::{
    Broker, Confirmation, Connection, Delivery, Header, Limits, MemoryBroker, Message,
};
use nsbridge_testkit::system::client::Client;
use nsbridge_testkit::system::{Running, Setup};

use crate::script::{Script, said, submit, system};
use crate::stories;

stories! {
    r2_garbage_is_a_dead_letter,
    m5_garbage_is_buried_without_its_body,
    m3_an_oversized_request_is_a_dead_letter_without_its_body,
    m3_the_client_of_an_oversized_request_gets_a_hint,
    r2_a_changed_request_is_a_dead_letter,
    r2_another_version_is_a_dead_letter,
    r3_an_unknown_key_is_a_dead_letter_after_its_retries,
    r2_a_wrong_key_under_a_known_name_is_a_dead_letter,
    r2_another_models_request_is_a_dead_letter,
    r2_a_key_out_of_its_scope_is_a_dead_letter,
    r2_an_expired_request_is_a_dead_letter,
    r2_a_request_from_the_future_is_a_dead_letter,
    r2_a_request_without_a_reply_queue_is_a_dead_letter,
    r2_a_copy_that_was_changed_or_misled_gets_no_sealed_word,
}

struct Stage {
    setup: Setup,
    _worker: Running,
    client: Client,
    connection: Arc<dyn Connection>,
}

impl Stage {
    async fn new(broker: Arc<dyn Broker>) -> Self {
        let (setup, worker, client) = system(broker.clone()).await;
        let connection = broker.connect("attacker").await.unwrap();
        Self { setup, _worker: worker, client, connection }
    }

    fn head(&self) -> RequestHead {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        RequestHead {
            id: RequestId(Uuid::from_u128(u128::from(now))),
            created_at_ms: now,
            expires_at_ms: now + 60_000,
            model: self.setup.model.clone(),
            tenant: self.setup.tenant(),
            key_id: "test".parse().unwrap(),
        }
    }

    fn key(&self) -> Key {
        key_of(&self.setup.keys)
    }

    fn sealed(&self, head: &RequestHead, key: &Key) -> Message {
        let frame = seal_request(key, head, br#"{"seed":1,"input":"canary"}"#).unwrap().frame;
        self.message(frame)
    }

    fn message(&self, frame: Vec<u8>) -> Message {
        let mut message = Message::new(frame);
        message.properties.reply_to = Some(self.client.reply_queue());
        message.properties.persistent = true;
        message
    }

    /// Publishes `message`, expects a dead letter with this reason and the unchanged body, and
    /// checks that the worker still works.
    async fn check(&self, message: Message, reason: ErrorCode) {
        let body = message.body.clone();
        let letter = self.died_of(message, reason).await;
        assert_eq!(letter.body, body, "a dead letter is the sealed request, unchanged");
    }

    /// Publishes a malformed or oversized message and expects a dead letter with its size but
    /// without its body.
    async fn check_without_body(&self, message: Message, reason: ErrorCode) {
        let bytes = i64::try_from(message.body.len()).unwrap();
        let letter = self.died_of(message, reason).await;
        assert!(letter.body.is_empty(), "{} bytes were kept", letter.body.len());
        assert_eq!(letter.properties.int(header::BYTES), Some(bytes));
    }

    async fn died_of(&self, message: Message, reason: ErrorCode) -> Message {
        let publisher = self.connection.publisher().await.unwrap();
        let queue = model_queue(&self.setup.model);
        publisher.publish("", &queue, message).await.unwrap().await.unwrap();
        let letter = self.dead_letter().await;
        assert_eq!(letter.message.properties.text(header::REASON), Some(reason.as_str()));
        assert!(!format!("{:?}", letter.message.properties).contains("canary"));
        let died = letter.message.clone();
        letter.ack().await.unwrap();
        let say = Script::Say { pieces: 3, every_ms: 0 };
        let next = submit(&self.client, &self.setup, say).await.unwrap();
        assert_eq!(next.collect().await.unwrap().0, said(7, 3), "the worker lives on");
        died
    }

    async fn dead_letter(&self) -> Delivery {
        let queue = dead_queue(&self.setup.model);
        let mut dead = self.connection.consume(&queue, 1).await.unwrap();
        let waited = tokio::time::timeout(Duration::from_secs(5), dead.recv()).await;
        waited.expect("no dead letter within five seconds").unwrap()
    }
}

/// Extracts the ring's only key from its JSON form.
fn key_of(ring: &Keyring) -> Key {
    let json: serde_json::Value = serde_json::from_str(&ring.to_json()).unwrap();
    let text = json["keys"][0]["key"].as_str().unwrap();
    let bytes = base64(text);
    Key::from_bytes(bytes.try_into().unwrap())
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let bits = text.trim_end_matches('=').bytes().map(digit);
    let (mut out, mut word, mut held) = (Vec::new(), 0u32, 0);
    for bit in bits {
        word = word << 6 | u32::from(bit);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((word >> held) as u8);
        }
    }
    out
}

async fn r2_garbage_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    stage.check(stage.message(Vec::new()), ErrorCode::Malformed).await;
}

async fn m5_garbage_is_buried_without_its_body(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let letter = stage.message(b"canary".to_vec());
    stage.check_without_body(letter, ErrorCode::Malformed).await;
    // This body has the maximum size of a request.
    let longest = stage.message(vec![0; topology::REQUEST_BODY]);
    stage.check_without_body(longest, ErrorCode::Malformed).await;
}

async fn m3_an_oversized_request_is_a_dead_letter_without_its_body(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    stage.check_without_body(stage.message(vec![0; 9 << 20]), ErrorCode::Oversized).await;
    stage
        .check_without_body(
            stage.message(vec![0; topology::REQUEST_BODY + 1]),
            ErrorCode::Oversized,
        )
        .await;
}

/// The worker never sees the body, so the hint relies on the message properties.
async fn m3_the_client_of_an_oversized_request_gets_a_hint(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let queue = reply_queue(u128::from(stage.head().created_at_ms));
    stage.connection.declare_reply_queue(&queue).await.unwrap();
    let mut replies = stage.connection.consume(&queue, 8).await.unwrap();
    let mut large = stage.message(vec![0; topology::REQUEST_BODY + 1]);
    let id = stage.head().id;
    large.properties.message_id = Some(id.to_string());
    large.properties.reply_to = Some(queue);
    stage.check_without_body(large, ErrorCode::Oversized).await;
    let word = replies.recv().await.unwrap();
    assert_eq!(word.message.body[..4], *b"NSBE");
    assert_eq!(word.message.body[8..], *id.as_bytes());
    word.ack().await.unwrap();
}

async fn r2_a_changed_request_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let mut message = stage.sealed(&stage.head(), &stage.key());
    *message.body.last_mut().unwrap() ^= 1;
    stage.check(message, ErrorCode::Tampered).await;
}

async fn r2_another_version_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let mut message = stage.sealed(&stage.head(), &stage.key());
    message.body[4] = 2;
    stage.check(message, ErrorCode::UnsupportedVersion).await;
}

async fn r3_an_unknown_key_is_a_dead_letter_after_its_retries(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let head = stage.head();
    // There is time for the first retry, after 1 s, but not for the second, after 10 s.
    let expires_at_ms = head.created_at_ms + 4_000;
    let head = RequestHead { key_id: "stranger".parse().unwrap(), expires_at_ms, ..head };
    stage.check(stage.sealed(&head, &stage.key()), ErrorCode::UnknownKey).await;
}

async fn r2_a_wrong_key_under_a_known_name_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let message = stage.sealed(&stage.head(), &Key::generate().unwrap());
    stage.check(message, ErrorCode::WrongKey).await;
}

async fn r2_another_models_request_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let head = RequestHead { model: "another".parse().unwrap(), ..stage.head() };
    stage.check(stage.sealed(&head, &stage.key()), ErrorCode::WrongModel).await;
}

async fn r2_a_key_out_of_its_scope_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let mut setup = Setup::new().unwrap();
    let key = Key::generate().unwrap();
    let mut narrow = Entry::new("test".parse().unwrap(), key.clone(), State::Primary);
    narrow.tenants = Some(vec![setup.tenant()]);
    setup.keys = Arc::new(Keyring::of(vec![narrow]).unwrap());
    let _worker = setup.worker::<crate::script::Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let connection = broker.connect("attacker").await.unwrap();
    let stage = Stage { setup, _worker, client, connection };
    let head = RequestHead { tenant: "other".parse().unwrap(), ..stage.head() };
    stage.check(stage.sealed(&head, &key), ErrorCode::KeyScope).await;
}

async fn r2_an_expired_request_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let head = stage.head();
    let (created_at_ms, expires_at_ms) =
        (head.created_at_ms - 900_000, head.created_at_ms - 600_000);
    let head = RequestHead { created_at_ms, expires_at_ms, ..head };
    stage.check(stage.sealed(&head, &stage.key()), ErrorCode::Expired).await;
}

async fn r2_a_request_from_the_future_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let head = stage.head();
    let (created_at_ms, expires_at_ms) =
        (head.created_at_ms + 600_000, head.created_at_ms + 900_000);
    let head = RequestHead { created_at_ms, expires_at_ms, ..head };
    stage.check(stage.sealed(&head, &stage.key()), ErrorCode::ClockSkew).await;
}

async fn r2_a_request_without_a_reply_queue_is_a_dead_letter(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let mut message = stage.sealed(&stage.head(), &stage.key());
    message.properties.reply_to = None;
    stage.check(message, ErrorCode::Malformed).await;
}

/// Any observer of a request can publish such a modified copy. A sealed error would end the reply.
async fn r2_a_copy_that_was_changed_or_misled_gets_no_sealed_word(broker: Arc<dyn Broker>) {
    let stage = Stage::new(broker).await;
    let queue = reply_queue(u128::from(stage.head().created_at_ms));
    stage.connection.declare_reply_queue(&queue).await.unwrap();
    let mut replies = stage.connection.consume(&queue, 8).await.unwrap();
    let mut changed = stage.sealed(&stage.head(), &stage.key());
    *changed.body.last_mut().unwrap() ^= 1;
    let head = RequestHead { model: "another".parse().unwrap(), ..stage.head() };
    let misled = stage.sealed(&head, &stage.key());
    let cases = [(changed, ErrorCode::Tampered), (misled, ErrorCode::WrongModel)];
    for (mut message, reason) in cases {
        message.properties.reply_to = Some(queue.clone());
        stage.check(message, reason).await;
        let word = replies.recv().await.unwrap();
        assert_eq!(word.message.body[..4], *b"NSBE", "{reason}");
        word.ack().await.unwrap();
    }
    let more = tokio::time::timeout(Duration::from_millis(200), replies.recv()).await;
    assert!(more.is_err(), "there was more than the two hints");
}

/// A channel that knows only a dead leader of the retry queue is refused, also when the queue has room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_retried_on_a_new_channel_where_the_old_one_is_stale() {
    let broker = MemoryBroker::new();
    let stage = Stage::new(Arc::new(broker.clone())).await;
    let head = RequestHead { key_id: "stranger".parse().unwrap(), ..stage.head() };
    let message = stage.sealed(&head, &stage.key());
    broker.strand();
    let publisher = stage.connection.publisher().await.unwrap();
    let queue = model_queue(&stage.setup.model);
    publisher.publish("", &queue, message).await.unwrap().await.unwrap();
    let [first, ..] = RETRY_TIERS;
    let retries = retry_queue(&stage.setup.model, Priority::Interactive, first);
    let mut copies = stage.connection.consume(&retries, 1).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(5), copies.recv()).await;
    let copy = waited.expect("no copy in the retry queue").unwrap();
    assert_eq!(copy.message.properties.int(header::TRIES), Some(1));
}

/// A full retry queue does not block the worker. Such requests are unverified, so they become dead
/// letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_an_unknown_key_is_a_dead_letter_at_once_where_its_retry_queue_is_full() {
    let limits = Limits { retry_queue_bytes: 10, ..Limits::default() };
    let stage = Stage::new(Arc::new(MemoryBroker::with_limits(limits))).await;
    let [.., longest] = RETRY_TIERS;
    let queue = retry_queue(&stage.setup.model, Priority::Interactive, longest);
    let publisher = stage.connection.publisher().await.unwrap();
    let filler = Message::new(vec![0; 10]);
    let filled = publisher.publish("", &queue, filler).await.unwrap().await.unwrap();
    assert_eq!(filled, Confirmation::Ack);
    let head = RequestHead { key_id: "stranger".parse().unwrap(), ..stage.head() };
    let head = RequestHead { expires_at_ms: head.created_at_ms + 600_000, ..head };
    let mut message = stage.sealed(&head, &stage.key());
    message.properties.headers.insert(header::TRIES.into(), Header::Int(2));
    stage.check(message, ErrorCode::UnknownKey).await;
}
