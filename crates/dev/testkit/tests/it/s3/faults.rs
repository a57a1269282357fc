//! Tests of the injected faults, and of the requests that they spare.

use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use nsbridge_testkit::s3::{Fault, Faults, Kind, Rule, S3Server, When};

use super::{client_of, pattern};

const OBJECT_BYTES: usize = 1_000_000;

struct Stage {
    server: S3Server,
    client: Client,
    bytes: Vec<u8>,
}

impl Stage {
    fn with(faults: impl Into<Faults>) -> Self {
        let server = S3Server::start().unwrap();
        let bytes = pattern(OBJECT_BYTES);
        server.put("models", "k", bytes.clone());
        server.faults(faults);
        Self { client: client_of(&server), server, bytes }
    }

    fn striking(fault: Fault) -> Self {
        Self::with(Rule::new(fault).when(When::Nth(1)))
    }

    /// Reads the bytes from 1000 on; returns status and code of an error response.
    async fn ask(&self) -> Result<GetObjectOutput, (u16, String)> {
        let get = self.client.get_object().bucket("models").key("k").range("bytes=1000-");
        get.send().await.map_err(|error| {
            let status = error.raw_response().map_or(0, |response| response.status().as_u16());
            (status, error.code().unwrap_or_default().to_owned())
        })
    }

    /// Checks that the request after the struck one succeeds.
    async fn recovers(&self) {
        let (bytes, error) = read(self.ask().await.unwrap()).await;
        assert!(bytes == self.bytes[1000..] && error.is_none(), "{} {error:?}", bytes.len());
        assert_eq!(self.server.counts().faults, 1);
        assert_eq!(self.server.counts().gets, 2);
    }
}

/// Reads the body; returns its bytes and the error that ended it.
async fn read(output: GetObjectOutput) -> (Vec<u8>, Option<String>) {
    let (mut body, mut bytes) = (output.body, Vec::new());
    loop {
        match body.next().await {
            Some(Ok(frame)) => bytes.extend_from_slice(&frame),
            Some(Err(error)) => return (bytes, Some(format!("{error:?}"))),
            None => return (bytes, None),
        }
    }
}

#[tokio::test]
async fn a_refusal_has_its_status_and_code() {
    let cases = [
        (Fault::SLOW_DOWN, (503, "SlowDown")),
        (Fault::INTERNAL_ERROR, (500, "InternalError")),
        (Fault::EXPIRED_TOKEN, (400, "ExpiredToken")),
        (Fault::Refuse(403, "AccessDenied"), (403, "AccessDenied")),
    ];
    for (fault, (status, code)) in cases {
        let stage = Stage::striking(fault);
        assert_eq!(stage.ask().await.unwrap_err(), (status, code.to_owned()));
        stage.recovers().await;
    }
}

#[tokio::test]
async fn a_connection_that_is_reset_at_once_gives_no_status() {
    let stage = Stage::striking(Fault::ResetAtOnce);
    assert_eq!(stage.ask().await.unwrap_err().0, 0);
    stage.recovers().await;
    assert_eq!(stage.server.counts().connections, 2);
}

#[tokio::test]
async fn a_reset_or_a_cut_in_the_body_gives_what_came_before_it() {
    for after in [0, 1, 70_000] {
        for fault in [Fault::Reset(after), Fault::Truncate(after)] {
            let stage = Stage::striking(fault.clone());
            let (bytes, error) = read(stage.ask().await.unwrap()).await;
            assert_eq!(bytes.len() as u64, after, "{fault:?}");
            assert_eq!(bytes, stage.bytes[1000..1000 + bytes.len()]);
            let error = error.unwrap();
            assert_eq!(error.contains("reset"), matches!(fault, Fault::Reset(_)), "{error}");
            stage.recovers().await;
        }
    }
}

#[tokio::test]
async fn a_stall_ends_when_its_time_is_over() {
    let time = Duration::from_millis(300);
    let stage = Stage::striking(Fault::Stall(5000, time));
    let started = Instant::now();
    let (bytes, error) = read(stage.ask().await.unwrap()).await;
    assert!(bytes == stage.bytes[1000..] && error.is_none(), "{error:?}");
    assert!(started.elapsed() >= time);
    stage.recovers().await;
}

#[tokio::test]
async fn a_slow_body_comes_whole_in_its_time() {
    let stage = Stage::striking(Fault::Slow(4_000_000));
    let started = Instant::now();
    let (bytes, error) = read(stage.ask().await.unwrap()).await;
    assert!(bytes == stage.bytes[1000..] && error.is_none(), "{error:?}");
    // Five pieces; the first comes at once, the others every 50 ms.
    assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());
    stage.recovers().await;
}

#[tokio::test]
async fn an_endless_body_has_no_length_and_goes_on_behind_the_object() {
    let stage = Stage::striking(Fault::Endless);
    let output = stage.ask().await.unwrap();
    assert_eq!(output.content_length(), None);
    let mut body = output.body;
    let mut bytes = Vec::new();
    while bytes.len() < 2 * OBJECT_BYTES {
        bytes.extend_from_slice(&body.next().await.unwrap().unwrap());
    }
    assert_eq!(bytes[..OBJECT_BYTES - 1000], stage.bytes[1000..]);
    drop(body);
    stage.recovers().await;
}

#[tokio::test]
async fn a_longer_body_says_its_length_and_keeps_to_it() {
    let stage = Stage::striking(Fault::Longer(100_000));
    let output = stage.ask().await.unwrap();
    assert_eq!(output.content_length(), Some((OBJECT_BYTES - 1000 + 100_000) as i64));
    assert_eq!(output.content_range(), Some("bytes 1000-999999/1000000"));
    let (bytes, error) = read(output).await;
    assert!(error.is_none() && bytes.len() == OBJECT_BYTES - 1000 + 100_000, "{error:?}");
    assert_eq!(bytes[..OBJECT_BYTES - 1000], stage.bytes[1000..]);
    stage.recovers().await;
}

#[tokio::test]
async fn a_flipped_byte_is_one_bit_of_the_object() {
    for at in [1000, 300_000, OBJECT_BYTES - 1] {
        let stage = Stage::striking(Fault::Flip(at as u64));
        let (bytes, error) = read(stage.ask().await.unwrap()).await;
        let differ = |index: &usize| bytes[*index] != stage.bytes[1000 + index];
        let different: Vec<_> = (0..bytes.len()).filter(differ).collect();
        assert!(error.is_none() && different == [at - 1000], "{error:?} {different:?}");
        stage.recovers().await;
    }
    // If the byte is not in the range, the response is correct.
    let stage = Stage::striking(Fault::Flip(999));
    let (bytes, _) = read(stage.ask().await.unwrap()).await;
    assert_eq!(bytes, stage.bytes[1000..]);
}

#[tokio::test]
async fn an_object_that_changes_has_other_bytes_and_another_etag() {
    let stage =
        Stage::with(Rule::new(Fault::Change("new".into())).of("models/k").when(When::Nth(3)));
    let before = stage.server.etag("models", "k").unwrap();
    let get = |tag: &str| stage.client.get_object().bucket("models").key("k").if_match(tag).send();
    for _ in 0..2 {
        get(&before).await.unwrap();
    }
    let status = get(&before).await.unwrap_err().raw_response().map(|it| it.status().as_u16());
    assert_eq!(status, Some(412));
    let now = stage.server.etag("models", "k").unwrap();
    assert_ne!(now, before);
    let (bytes, _) = read(get(&now).await.unwrap()).await;
    assert_eq!(bytes, b"new");
}

#[tokio::test]
async fn an_ignored_range_gives_all_bytes_and_says_so() {
    let stage = Stage::striking(Fault::IgnoreRange);
    let output = stage.ask().await.unwrap();
    assert_eq!(
        (output.content_range(), output.content_length()),
        (None, Some(OBJECT_BYTES as i64))
    );
    let (bytes, error) = read(output).await;
    assert!(bytes == stage.bytes && error.is_none(), "{error:?}");
    stage.recovers().await;
}

#[tokio::test]
async fn a_wrong_range_is_in_the_header_alone() {
    let stage = Stage::striking(Fault::WrongRange);
    let output = stage.ask().await.unwrap();
    assert_eq!(output.content_range(), Some("bytes 1001-1000000/1000001"));
    let (bytes, _) = read(output).await;
    assert_eq!(bytes, stage.bytes[1000..]);
    stage.recovers().await;
}

#[tokio::test]
async fn a_write_is_struck_as_well_and_leaves_nothing() {
    let stage = Stage::with(Rule::new(Fault::SLOW_DOWN).on([Kind::Put]).when(When::Nth(1)));
    let put = || {
        let body = pattern(OBJECT_BYTES).into();
        stage.client.put_object().bucket("models").key("new").body(body).send()
    };
    assert_eq!(put().await.unwrap_err().code(), Some("SlowDown"));
    assert_eq!(stage.server.objects("models"), ["k"]);
    put().await.unwrap();
    assert_eq!(stage.server.objects("models"), ["k", "new"]);
    assert_eq!(stage.server.get("models", "new").unwrap(), pattern(OBJECT_BYTES));
}

#[tokio::test]
async fn counts_tell_what_was_asked_and_sent() {
    let stage = Stage::with(Faults::none());
    read(stage.ask().await.unwrap()).await;
    let counts = stage.server.counts();
    assert_eq!((counts.gets, counts.connections, counts.most_at_once), (1, 1, 1));
    assert_eq!(counts.bytes_sent, (OBJECT_BYTES - 1000) as u64);
    assert!((counts.bytes_sent..counts.bytes_sent + 2000).contains(&counts.wire_bytes));
    let of_key = counts.of("models/k");
    assert_eq!((of_key.gets, of_key.bytes_sent), (1, counts.bytes_sent));
    let seen = stage.server.seen();
    assert_eq!((seen[0].kind, seen[0].range.as_deref()), (Kind::Get, Some("bytes=1000-")));

    stage.server.reset_counts();
    stage.client.head_object().bucket("models").key("k").send().await.unwrap();
    let counts = stage.server.counts();
    assert_eq!((counts.gets, counts.heads, counts.bytes_sent), (0, 1, 0));
}
