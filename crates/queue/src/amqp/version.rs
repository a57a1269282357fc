//! Broker version, which lapin does not expose.
//!
//! The version is part of the first frame that a broker sends, before any login. Reading it takes
//! one short connection per [`AmqpBroker`](super::AmqpBroker).

use std::io;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lapin::tcp::AMQPUriTcpExt;
use lapin::uri::AMQPUri;

use super::address::TlsFiles;

/// First RabbitMQ version that counts nacks in `x-acquired-count` and nowhere else.
const COUNTS_ACQUIRED: (u32, u32) = (4, 3);

const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Table entry `version`: its name as a short string, then `S` for a long string. The length
/// follows.
const KEY: &[u8] = b"\x07versionS";

/// Maximum number of bytes read from the first frame, more than any broker sends.
const MOST_BYTES: u64 = 64 << 10;

/// Returns true if the broker at `uri` sets `x-acquired-count` itself.
pub(super) async fn counts_acquired(uri: &AMQPUri, tls: &TlsFiles) -> io::Result<bool> {
    let version = version(&first_frame(uri, tls).await?);
    Ok(version.is_some_and(|version| version >= COUNTS_ACQUIRED))
}

async fn first_frame(uri: &AMQPUri, tls: &TlsFiles) -> io::Result<Vec<u8>> {
    let runtime = lapin::runtime::default_runtime().map_err(io::Error::other)?;
    let tls = tls.read()?;
    let mut stream = uri.connect_with_config_async(tls.as_ref(), &runtime).await?;
    stream.write_all(GREETING).await?;
    stream.flush().await?;
    let mut head = [0; 7];
    stream.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut frame = Vec::new();
    stream.take(u64::from(length).min(MOST_BYTES)).read_to_end(&mut frame).await?;
    Ok(frame)
}

/// Returns major and minor version from the first frame.
fn version(frame: &[u8]) -> Option<(u32, u32)> {
    let place = frame.windows(KEY.len()).position(|window| window == KEY)?;
    let (length, rest) = frame[place + KEY.len()..].split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let mut numbers = std::str::from_utf8(rest.get(..length)?).ok()?.split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(version: &str) -> Vec<u8> {
        let length = u32::try_from(version.len()).unwrap().to_be_bytes();
        [b"\x07productS\0\0\0\x01R".as_slice(), KEY, &length, version.as_bytes(), b"\x01x"].concat()
    }

    #[tokio::test]
    async fn a_real_broker_tells_its_version() {
        let uri = nsbridge_testkit::amqp_url().parse().unwrap();
        let frame = first_frame(&uri, &TlsFiles::default()).await.unwrap();
        assert!(version(&frame).is_some_and(|version| version >= (3, 8)), "{:?}", version(&frame));
    }

    #[test]
    fn the_version_is_read_from_the_first_frame() {
        assert_eq!(version(&frame("3.10.8")), Some((3, 10)));
        assert_eq!(version(&frame("4.3.0-rc.1")), Some((4, 3)));
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

    #[test]
    fn versions_compare_as_numbers() {
        let counts = |text| version(&frame(text)).unwrap() >= COUNTS_ACQUIRED;
        assert!(!counts("3.10.8") && !counts("4.2.9"));
        assert!(counts("4.3.0") && counts("4.10.0") && counts("10.0.1"));
    }
}
