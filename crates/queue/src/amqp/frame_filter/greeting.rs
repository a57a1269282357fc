//! First frame of a broker, which tells its version.

use std::sync::{Arc, OnceLock};

/// Major and minor version of a broker.
pub(crate) type Version = (u32, u32);

/// Table entry `version`: its name as a short string, then `S` for a long string. The length
/// follows.
const VERSION_KEY: &[u8] = b"\x07versionS";

/// Length of a frame's type, channel and size.
const HEAD_BYTES: usize = 7;

/// Maximum number of bytes kept of the first frame, more than any broker sends.
const MOST_BYTES: usize = 64 << 10;

/// Reader of the version in a broker's first frame, which lapin does not expose.
#[derive(Debug)]
pub(super) struct Greeting {
    /// Bytes so far; none once the frame is complete.
    bytes: Option<Vec<u8>>,
    version: Arc<OnceLock<Version>>,
}

impl Greeting {
    pub(super) fn new(version: Arc<OnceLock<Version>>) -> Self {
        Self { bytes: Some(Vec::new()), version }
    }

    /// Takes bytes from the socket.
    pub(super) fn read(&mut self, came: &[u8]) {
        let Some(bytes) = &mut self.bytes else { return };
        bytes.extend_from_slice(&came[..came.len().min(MOST_BYTES - bytes.len())]);
        let Some(size) = bytes.get(3..HEAD_BYTES).and_then(|size| size.try_into().ok()) else {
            return;
        };
        let end = HEAD_BYTES.saturating_add(u32::from_be_bytes(size) as usize).min(MOST_BYTES);
        if bytes.len() < end {
            return;
        }
        if let Some(version) = version(&bytes[HEAD_BYTES..end]) {
            // There is one first frame, so no other value was set.
            let _ = self.version.set(version);
        }
        self.bytes = None;
    }
}

/// Returns the version in a frame without its head.
fn version(frame: &[u8]) -> Option<Version> {
    let place = frame.windows(VERSION_KEY.len()).position(|window| window == VERSION_KEY)?;
    let (length, rest) = frame[place + VERSION_KEY.len()..].split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let mut numbers = std::str::from_utf8(rest.get(..length)?).ok()?.split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(version: &str) -> Vec<u8> {
        let length = u32::try_from(version.len()).unwrap().to_be_bytes();
        [b"\x07productS\0\0\0\x01R".as_slice(), VERSION_KEY, &length, version.as_bytes(), b"\x01x"]
            .concat()
    }

    /// Returns the frame with its head and the beginning of the next one.
    fn sent(version: &str) -> Vec<u8> {
        let frame = frame(version);
        let size = u32::try_from(frame.len()).unwrap().to_be_bytes();
        [&[1, 0, 0], size.as_slice(), &frame, &[0xce, 1, 0]].concat()
    }

    #[track_caller]
    fn check_read(parts: &[&[u8]], expected: Option<Version>) {
        let version = Arc::default();
        let mut greeting = Greeting::new(Arc::clone(&version));
        parts.iter().for_each(|part| greeting.read(part));
        assert_eq!(version.get().copied(), expected);
    }

    #[test]
    fn the_version_is_read_however_the_first_frame_arrives() {
        let whole = sent("4.3.0-rc.1");
        check_read(&[&whole], Some((4, 3)));
        for at in 0..whole.len() {
            check_read(&[&whole[..at], &whole[at..]], Some((4, 3)));
        }
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        check_read(&bytes, Some((4, 3)));
    }

    #[test]
    fn later_frames_have_no_version() {
        check_read(&[&sent("next"), &sent("4.3.0")], None);
        check_read(&[&[1, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0; MOST_BYTES], &sent("4.3.0")], None);
    }

    #[test]
    fn a_frame_without_a_version_or_cut_short_has_none() {
        assert_eq!(version(b""), None);
        assert_eq!(version(&frame("next")), None);
        let whole = frame("4.3.0");
        for end in 0..whole.len() - 2 {
            assert_eq!(version(&whole[..end]), None, "cut after {end} bytes");
        }
    }
}
