//! Known-answer tests for features that are newer than the first vectors: opens with content, piece
//! frames, moved streams, control frames, derived keys and hints. The Python client's own
//! implementation made the vectors.

use nsbridge_protocol::{AttemptNo, ControlKind, ErrorCode, RequestId};
use serde::Deserialize;

use crate::derive::ReplyRoot;
use crate::hint::ErrorHint;
use crate::key::Salt;
use crate::pad::ContentType;
use crate::reply::tests::unhex;
use crate::reply::{ReplyKind, ReplySealer};
use crate::{control, derive};

#[derive(Deserialize)]
struct File {
    request_id: String,
    reply_root: String,
    replies: Vec<Stream>,
    controls: Vec<Control>,
    tenant_key: TenantKey,
    run_record: RunRecord,
    hint: Hint,
}

#[derive(Deserialize)]
struct Stream {
    attempt_no: u32,
    attempt_salt: String,
    stream_id: String,
    frames: Vec<Frame>,
}

#[derive(Deserialize)]
struct Frame {
    kind: u8,
    content_type: u8,
    content: String,
    frame: String,
}

#[derive(Deserialize)]
struct Control {
    kind: u8,
    salt: String,
    content: String,
    frame: String,
}

#[derive(Deserialize)]
struct TenantKey {
    master: String,
    tenant: String,
    model: String,
    key: String,
    master_check: String,
    key_check: String,
}

#[derive(Deserialize)]
struct RunRecord {
    reply_to: String,
    number: String,
}

#[derive(Deserialize)]
struct Hint {
    number: u16,
    frame: String,
}

fn load() -> (File, RequestId, ReplyRoot) {
    let file: File =
        serde_json::from_str(include_str!("../vectors/wire-v1-additions.json")).unwrap();
    let id = RequestId::from_bytes(fixed(&file.request_id));
    let root = ReplyRoot(fixed::<32>(&file.reply_root).into());
    (file, id, root)
}

fn fixed<const N: usize>(hex: &str) -> [u8; N] {
    unhex(hex).try_into().unwrap()
}

#[test]
fn streams_with_bodies_pieces_and_every_end_are_reproduced() {
    let (file, id, root) = load();
    for stream in file.replies {
        let (attempt, salt) = (AttemptNo(stream.attempt_no), Salt(fixed(&stream.attempt_salt)));
        let (open, rest) = stream.frames.split_first().unwrap();
        let content = unhex(&open.content);
        let (mut sealer, frame) =
            ReplySealer::start_with_salt(&root, id, attempt, &content, salt).unwrap();
        assert_eq!(frame, unhex(&open.frame));
        assert_eq!(sealer.stream().to_string(), stream.stream_id);
        for known in rest {
            let kind = ReplyKind::from_byte(known.kind).unwrap();
            let content_type =
                if known.content_type == 2 { ContentType::Pieces } else { ContentType::Plain };
            let write = |out: &mut Vec<u8>| out.extend(unhex(&known.content));
            let frame = sealer.seal(kind, &[], content_type, write).unwrap();
            assert_eq!(frame, unhex(&known.frame), "{kind:?}");
        }
    }
}

#[test]
fn control_frames_are_reproduced() {
    let (file, id, root) = load();
    for known in file.controls {
        let kind = ControlKind::from_byte(known.kind).unwrap();
        let (content, salt) = (unhex(&known.content), Salt(fixed(&known.salt)));
        let frame = control::seal_with_salt(&root, id, kind, &content, salt).unwrap();
        assert_eq!(frame, unhex(&known.frame), "{kind:?}");
    }
}

#[test]
fn derived_keys_check_values_and_hints_are_reproduced() {
    let (file, id, _) = load();
    let TenantKey { master, tenant, model, key, master_check, key_check } = file.tenant_key;
    let derived = derive::tenant(&fixed(&master), &tenant, &model);
    assert_eq!(*derived, fixed(&key));
    assert_eq!(derive::check_value(&fixed(&master)), fixed(&master_check));
    assert_eq!(derive::check_value(&derived), fixed(&key_check));
    let code = ErrorCode::from_number(file.hint.number).unwrap();
    assert_eq!(ErrorHint { request: id, code }.encode(), unhex(&file.hint.frame));
}

#[test]
fn the_number_of_a_run_record_is_reproduced() {
    let (file, _, root) = load();
    let RunRecord { reply_to, number } = file.run_record;
    assert_eq!(format!("{:032x}", root.run_record(&reply_to)), number);
    assert_ne!(root.run_record("another queue"), root.run_record(&reply_to));
}
