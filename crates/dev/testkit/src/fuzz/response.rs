//! Fuzz target for HTTP responses of an object store: the result must not depend on the packet
//! boundaries.

use futures_executor::block_on;
use nsbridge_store::testing::read_response;

/// Maximum size in bytes of the body of an error.
const MAX_BODY_BYTES: u64 = 1000;

pub(super) fn read(bytes: &[u8]) {
    let cut = |part| {
        block_on(read_response(bytes, part, MAX_BODY_BYTES)).map_err(|error| error.to_string())
    };
    let whole = cut(bytes.len().max(1));
    for part in [1, 3, 64] {
        match (&whole, &cut(part)) {
            (Ok(whole), Ok(parts)) => assert_eq!(whole, parts, "in parts of {part}"),
            (Err(_), Err(_)) => {}
            (whole, parts) => panic!("{whole:?}, and in parts of {part} {parts:?}"),
        }
    }
    match whole {
        Ok((status, body)) => {
            assert!(body.len() <= bytes.len(), "{} of {}", body.len(), bytes.len());
            assert!(
                status < 300 || body.len() as u64 <= MAX_BODY_BYTES,
                "{} for an error",
                body.len()
            );
        }
        Err(why) => assert!(!why.contains(char::is_control), "{why:?}"),
    }
}
