//! Tests of requests: known answers, and attacks that are possible on the broker.

use nsbridge_protocol::{ModelName, RequestId};
use proptest::prelude::{any, prop, proptest};

use super::{MAX_WRAPPED, RequestFrame, RequestHead, seal_request, seal_with_salt};
use crate::error::Error;
use crate::key::{DataKey, Key, Provider, Salt};
use crate::reply::tests::{unhex, vectors};

fn head() -> RequestHead {
    RequestHead {
        id: RequestId::from_bytes([1; 16]),
        created_at_ms: 1_700_000_000_000,
        expires_at_ms: 1_700_000_900_000,
        model: "tale-7m".parse().unwrap(),
        tenant: "acme".parse().unwrap(),
        key_id: "dev-1".parse().unwrap(),
    }
}

fn data(head: &RequestHead, key: &Key) -> DataKey {
    DataKey::of_keyring(head.key_id.clone(), key.clone())
}

#[test]
fn the_known_answer_is_reproduced_byte_for_byte() {
    let known = vectors();
    let frame = RequestFrame::parse(&known.request).unwrap();
    let (head, salt) = (frame.head().clone(), frame.job_key().salt);
    assert_eq!(head.model.as_str(), "llama-3.1-70b");
    assert_eq!((head.tenant.as_str(), head.key_id.as_str()), ("acme", "dev-1"));

    let opened = frame.open(&known.key).unwrap();
    assert_eq!(opened.content, br#"{"prompt":"hi"}"#);
    assert_eq!(*opened.reply_root.0, known.reply_root);
    let sealed = seal_with_salt(&data(&head, &known.key), salt, &head, &opened.content).unwrap();
    assert_eq!(sealed.frame, known.request);
}

/// Known answers in `vectors/wire-v1-kms.json`, made by the Python client's own implementation.
#[test]
fn the_known_answer_with_a_wrapped_key_is_reproduced_byte_for_byte() {
    #[derive(serde::Deserialize)]
    struct File {
        key: String,
        wrapped: String,
        salt: String,
        content: String,
        request: String,
        reply_root: String,
    }
    let file: File = serde_json::from_str(include_str!("../../vectors/wire-v1-kms.json")).unwrap();
    let fixed = |hex: &str| <[u8; 32]>::try_from(unhex(hex)).unwrap();
    let (request, key) = (unhex(&file.request), Key::from_bytes(fixed(&file.key)));
    let frame = RequestFrame::parse(&request).unwrap();
    assert_eq!(frame.provider(), Provider::Kms);
    assert_eq!(frame.wrapped_key(), unhex(&file.wrapped));
    let opened = frame.open(&key).unwrap();
    assert_eq!(opened.content, unhex(&file.content));
    assert_eq!(*opened.reply_root.0, fixed(&file.reply_root));
    let (provider, wrapped) = (Provider::Kms, unhex(&file.wrapped));
    let data = DataKey { id: frame.head().key_id.clone(), key, provider, wrapped };
    let salt = Salt(fixed(&file.salt));
    let sealed = seal_with_salt(&data, salt, frame.head(), &opened.content).unwrap();
    assert_eq!(sealed.frame, request);
}

fn wrapped(bytes: usize) -> DataKey {
    let (key, wrapped) = (Key::generate().unwrap(), vec![7; bytes]);
    DataKey { id: head().key_id, key, provider: Provider::Kms, wrapped }
}

#[test]
fn a_changed_wrapped_key_or_provider_is_refused() {
    let data = wrapped(100);
    let sealed = data.seal(&head(), b"x").unwrap();
    let at = sealed.frame.windows(100).position(|bytes| bytes == data.wrapped).unwrap();
    for changed in [6, at - 1, at, at + 99] {
        let mut frame = sealed.frame.clone();
        frame[changed] ^= 1;
        assert!(RequestFrame::parse(&frame).and_then(|frame| frame.open(&data.key)).is_err());
    }
}

#[test]
fn a_wrapped_key_that_no_header_holds_is_refused_on_both_ends() {
    let largest = wrapped(MAX_WRAPPED).seal(&head(), b"x").unwrap();
    assert!(RequestFrame::parse(&largest.frame).is_ok());
    for bytes in [MAX_WRAPPED + 1, 1 << 16] {
        let sealed = wrapped(bytes).seal(&head(), b"x");
        assert_eq!(sealed.map(drop), Err(Error::Malformed { what: "wrapped key" }));
    }
}

#[test]
fn every_single_bit_flip_is_refused() {
    let key = Key::generate().unwrap();
    let sealed = seal_request(&key, &head(), b"{\"seed\":1}").unwrap();
    for bit in 0..sealed.frame.len() * 8 {
        let mut changed = sealed.frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let opened = RequestFrame::parse(&changed).and_then(|frame| frame.open(&key));
        assert!(opened.is_err(), "bit {bit}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let key = Key::generate().unwrap();
    let sealed = seal_request(&key, &head(), b"{\"seed\":1}").unwrap();
    for end in 0..sealed.frame.len() {
        let opened = RequestFrame::parse(&sealed.frame[..end]).and_then(|frame| frame.open(&key));
        assert!(opened.is_err(), "cut at {end}");
    }
}

#[test]
fn the_wrong_key_is_told_from_changed_bytes() {
    let key = Key::generate().unwrap();
    let sealed = seal_request(&key, &head(), b"x").unwrap();
    let open = |frame: &[u8], key: &Key| RequestFrame::parse(frame).unwrap().open(key).map(drop);
    assert_eq!(open(&sealed.frame, &Key::generate().unwrap()), Err(Error::WrongKey));
    let mut changed = sealed.frame;
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(open(&changed, &key), Err(Error::Tampered));
    // The header is authentic, so the client can still receive an error.
    assert!(RequestFrame::parse(&changed).unwrap().reply_root(&key).is_some());
}

#[test]
fn two_sealings_of_one_request_share_nothing() {
    let key = Key::generate().unwrap();
    let [one, two] = [(); 2].map(|()| seal_request(&key, &head(), b"x").unwrap());
    assert_ne!(one.job_key, two.job_key);
    assert_ne!(*one.reply_root.0, *two.reply_root.0);
    assert_ne!(one.frame, two.frame);
}

#[test]
fn more_than_a_request_holds_is_refused_on_both_ends() {
    let key = Key::generate().unwrap();
    let big = vec![0; nsbridge_protocol::MAX_REQUEST_BYTES + 1];
    let sealed = seal_request(&key, &head(), &big);
    assert!(matches!(sealed, Err(Error::Oversized { .. })));
    let frame = vec![0; nsbridge_protocol::MAX_REQUEST_BYTES * 2];
    assert!(matches!(RequestFrame::parse(&frame), Err(Error::Oversized { .. })));
    let largest = seal_request(&key, &head(), &big[1..]).unwrap();
    assert!(RequestFrame::parse(&largest.frame).unwrap().open(&key).is_ok());
}

#[test]
fn the_longest_request_is_let_through_by_the_queue() {
    let name = |length: usize| "n".repeat(length);
    let head = RequestHead {
        model: name(100).parse().unwrap(),
        tenant: name(255).parse().unwrap(),
        key_id: name(255).parse().unwrap(),
        ..head()
    };
    let key = Key::from_bytes([7; 32]);
    let wrapped = vec![0; super::MAX_WRAPPED];
    let data = DataKey { id: head.key_id.clone(), key, provider: Provider::Kms, wrapped };
    let most = vec![0; nsbridge_protocol::MAX_REQUEST_BYTES];
    let longest = data.seal(&head, &most).unwrap().frame;
    assert!(longest.len() <= nsbridge_protocol::topology::REQUEST_BODY);
    assert!(RequestFrame::parse(&longest).is_ok());
}

#[test]
fn nothing_secret_shows_in_debug() {
    let key = Key::from_bytes([0x5a; 32]);
    let sealed = seal_with_salt(&data(&head(), &key), Salt([1; 32]), &head(), b"canary").unwrap();
    let opened = RequestFrame::parse(&sealed.frame).unwrap().open(&key).unwrap();
    let shown = format!("{key:?} {opened:?}");
    assert!(!shown.contains("canary") && !shown.contains("90, 90"), "{shown}");
}

proptest! {
    #[test]
    fn what_was_sealed_is_opened(
        content in prop::collection::vec(any::<u8>(), 0..300),
        model in "[a-z0-9]{1,40}",
    ) {
        let key = Key::generate().unwrap();
        let model: ModelName = model.parse().unwrap();
        let sealed = seal_request(&key, &RequestHead { model, ..head() }, &content).unwrap();
        let opened = RequestFrame::parse(&sealed.frame).unwrap().open(&key).unwrap();
        assert_eq!(opened.content, content);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(
        tail in prop::collection::vec(any::<u8>(), 0..200),
        cut in 0usize..8,
    ) {
        let bytes = [&b"NSBQ\x01\x01\x00\x00"[..8 - cut], &tail].concat();
        let _ = RequestFrame::parse(&bytes).and_then(|f| f.open(&Key::from_bytes([0; 32])));
    }
}
