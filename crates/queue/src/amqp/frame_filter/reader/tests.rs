//! Valid and invalid frames of brokers.

use super::*;

/// Encodes a frame of this kind.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind, 0, 1], &size[..], payload, &[0xce]].concat()
}

fn sized(letter: &[u8], bytes: &[u8]) -> Vec<u8> {
    let size = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [letter, &size, bytes].concat()
}

fn entry(name: &str, value: &[u8]) -> Vec<u8> {
    [&[u8::try_from(name.len()).unwrap()], name.as_bytes(), value].concat()
}

/// Encodes a content header with a type, an encoding, these headers and a delivery mode.
fn header(headers: &[u8]) -> Vec<u8> {
    let head = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], &0xf000_u16.to_be_bytes()[..]].concat();
    let before = entry("application/octet-stream", &entry("F", b""));
    frame(2, &[&head, &before, &sized(b"", headers)[..], &[2]].concat())
}

/// Encodes an array within a table, nested this many times; the outermost is an entry of the
/// headers.
fn nested(pairs: usize) -> Vec<u8> {
    let mut value = b"t\x01".to_vec();
    for _ in 0..pairs {
        value = sized(b"A", &[&b"V"[..], &sized(b"F", &entry("k", &value))].concat());
    }
    entry("deep", &value)
}

fn usual() -> Vec<u8> {
    let values: [&[u8]; 8] = [
        b"t\x01",
        b"u\0\x01",
        b"I\0\0\0\x01",
        b"D\x02\0\0\0\x01",
        b"l\0\0\0\0\0\0\0\x01",
        b"V",
        b"S\0\0\0\x03AFA",
        b"x\0\0\0\x02FF",
    ];
    let mut headers: Vec<u8> = values.into_iter().flat_map(|value| entry("A", value)).collect();
    headers.extend(nested(1));
    headers.extend(entry("F", b"F\0\0\0\0"));
    headers
}

/// Returns the output of the parser for input in chunks of `by` bytes.
fn read(bytes: &[u8], by: usize) -> Vec<u8> {
    read_with(&Arc::default(), bytes, by).unwrap()
}

fn read_with(bodies: &Arc<Bodies>, bytes: &[u8], by: usize) -> io::Result<Vec<u8>> {
    let (mut reader, mut passed) = (Reader::new(Arc::clone(bodies)), Vec::new());
    for chunk in bytes.chunks(by) {
        reader.read(chunk, &mut passed)?;
    }
    assert!(reader.is_between_frames(), "{reader:?}");
    Ok(passed)
}

/// Encodes the method frame of a delivery.
fn deliver(tag: u64) -> Vec<u8> {
    let exchange_and_key = entry("", &entry("queue", b""));
    let method = [&[0, 60, 0, 60][..], &entry("consumer", b""), &tag.to_be_bytes(), &[0]].concat();
    frame(1, &[method, exchange_and_key].concat())
}

/// Encodes the header of a body of this size, with a delivery mode.
fn sized_header(size: u64) -> Vec<u8> {
    frame(2, &[&[0, 60, 0, 0][..], &size.to_be_bytes(), &0x1000_u16.to_be_bytes(), &[2]].concat())
}

#[test]
fn m3_a_body_beyond_its_limit_is_dropped_and_remembered() {
    let body = [7; 60];
    let delivery = |tag, size: u64, frames: &[&[u8]]| {
        let frames: Vec<u8> = frames.iter().flat_map(|part| frame(3, part)).collect();
        [deliver(tag), sized_header(size), frames].concat()
    };
    let small = delivery(1, 50, &[&body[..50]]);
    // The last frame has fewer bytes than a heartbeat.
    let large = delivery(2, 121, &[&body, &body, &body[..1]]);
    let bytes = [&small[..], &large, &small, &frame(8, b"")].concat();
    let heartbeats = HEARTBEAT.repeat(3);
    let told = [deliver(2), sized_header(0), heartbeats].concat();
    let expected = [&small[..], &told, &small, &frame(8, b"")].concat();
    for by in [1, 2, 3, 7, 64, bytes.len()] {
        let bodies = Arc::new(Bodies::default());
        bodies.limit(1, 50);
        assert_eq!(read_with(&bodies, &bytes, by).unwrap(), expected, "cut by {by}");
        assert_eq!(bodies.take(1, 1), None);
        assert_eq!(bodies.take(1, 2), Some(121));
        assert_eq!(bodies.take(1, 2), None, "it is forgotten");
    }
}

#[test]
fn m3_a_length_that_no_machine_has_is_dropped_without_a_subscription() {
    let bytes = [deliver(1), sized_header(u64::MAX), frame(3, b"body"), deliver(2)].concat();
    let told = [&deliver(1)[..], &sized_header(0), &HEARTBEAT, &deliver(2)].concat();
    assert_eq!(read(&bytes, 5), told);
    // Another frame from the broker ends an incomplete body.
    let bytes = [deliver(2), sized_header(9), frame(3, b"what a re")].concat();
    assert_eq!(read(&bytes, 3), bytes);
}

/// Encodes `connection.start` with these server properties.
fn start(properties: &[u8]) -> Vec<u8> {
    let texts = [sized(b"", b"PLAIN AMQPLAIN"), sized(b"", b"en_US")].concat();
    frame(1, &[&[0, 10, 0, 10, 0, 9][..], &sized(b"", properties), &texts].concat())
}

#[test]
fn l12_a_brokers_first_words_are_read_no_deeper_than_headers() {
    let usual = start(&usual());
    assert_eq!(read(&usual, 1), usual);
    let bytes = [start(&nested(2000)), header(&nested(DEEPEST))].concat();
    for by in [1, 9, bytes.len()] {
        let changed = read(&bytes, by);
        let different = bytes.iter().zip(&changed).filter(|(a, b)| a != b).count();
        assert_eq!(different, 2, "one letter in each of the two");
    }
}

#[test]
fn l12_a_table_where_only_clients_send_one_ends_the_connection() {
    for (class, method) in CLIENTS {
        let ids = [0, u8::try_from(class).unwrap(), 0, u8::try_from(method).unwrap()];
        let refused = read_with(&Arc::default(), &frame(1, &[&ids[..], &nested(9)].concat()), 2);
        assert!(refused.unwrap_err().to_string().contains(&format!("{class}.{method}")));
    }
}

#[test]
fn a_frame_that_is_too_short_does_not_lead_astray() {
    let short = [frame(1, b"\0\x3c"), frame(2, b"\0\x3c\0"), frame(2, &[0; 13]), frame(1, b"")];
    let bytes = [short.concat(), header(&nested(DEEPEST))].concat();
    let changed = read(&bytes, 1);
    assert_eq!(bytes.len(), changed.len());
    assert_ne!(changed, bytes, "the last frame is read");
}

#[test]
fn what_is_usual_stays_as_it_is() {
    let body = [b"AAAAFFFF".repeat(40), header(&nested(DEEPEST))].concat();
    let frames = [frame(1, b"\0\x3c\0\x3cFFFF"), header(&usual()), frame(3, &body), frame(8, b"")];
    let bytes = [&frames.concat()[..], &header(&nested(DEEPEST / 2 - 1)), &header(b"")].concat();
    for by in [1, 2, 3, 7, 64, bytes.len()] {
        assert_eq!(read(&bytes, by), bytes);
    }
}

#[test]
fn what_is_too_deep_becomes_bytes_and_what_follows_is_read_on() {
    for pairs in [DEEPEST / 2, DEEPEST, 2000] {
        let bytes =
            [header(&[nested(pairs), nested(pairs), usual()].concat()), header(&usual())].concat();
        let changed = read(&bytes, 1);
        assert_eq!(read(&bytes, 11), changed);
        let different: Vec<_> = (0..bytes.len()).filter(|i| bytes[*i] != changed[*i]).collect();
        // The headers themselves are the first level, so level 17 is the table of the eighth pair.
        assert_eq!(different.len(), 2, "{pairs}: one in each of the two");
        assert!(different.iter().all(|i| changed[*i] == b'x' && bytes[*i] != b'x'));
    }
}

#[test]
fn lengths_that_lie_do_not_lead_astray() {
    let too_long = entry("k", b"A\0\0\xff\xffAAAA");
    for headers in [&too_long[..], &entry("k", b"S\xff\xff\xff\xffxx"), &entry("k", b"?AFAF")] {
        let bytes = [header(headers), header(&nested(DEEPEST))].concat();
        for by in [1, 5] {
            let changed = read(&bytes, by);
            assert_eq!(changed[..header(headers).len()], bytes[..header(headers).len()]);
            assert_ne!(changed, bytes, "the next frame is read again");
        }
    }
}
