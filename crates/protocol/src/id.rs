//! Identifiers of requests, reply streams and of the arithmetic behind a reply.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// Identifier of a request: a UUIDv7, so that identifiers sort by time.
///
/// ```
/// use nsbridge_protocol::RequestId;
///
/// let id: RequestId = "0193a3a0-7b5e-7d4e-8c6f-0123456789ab".parse()?;
/// assert_eq!(RequestId::from_bytes(*id.as_bytes()), id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub Uuid);

impl RequestId {
    /// Creates the identifier from its sixteen bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// Returns the sixteen bytes that a frame carries.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

impl FromStr for RequestId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

/// Defines a sixteen-byte identifier that is written as 32 hex digits.
macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                sixteen_bytes(&text)
                    .map(Self)
                    .ok_or_else(|| de::Error::custom("expected 32 hexadecimal digits"))
            }
        }
    };
}

hex_id! {
    /// Identifier of a reply stream, derived from the reply root and the stream salt: unique to the stream.
    StreamId
}

hex_id! {
    /// Fingerprint of a worker: a digest of everything besides the request that determines the
    /// pieces.
    ///
    /// The handler computes it, for example from weights, model files, options and the version of
    /// the arithmetic. Equal fingerprints promise equal pieces.
    Fingerprint
}

fn sixteen_bytes(hex: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    (hex.len() == 32 && hex.is_ascii()).then_some(())?;
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::Fingerprint;

    #[test]
    fn a_fingerprint_reads_as_hex_both_ways() {
        let print = Fingerprint(*b"0123456789abcdef");
        let json = serde_json::to_string(&print).unwrap();
        assert_eq!(json, "\"30313233343536373839616263646566\"");
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), print);
        for bad in ["\"3031\"", "\"zz313233343536373839616263646566\"", "7"] {
            assert!(serde_json::from_str::<Fingerprint>(bad).is_err(), "{bad}");
        }
    }
}
