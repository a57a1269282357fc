//! S3 checksums: one per object, over its bytes (full object) or over its parts' checksums
//! (composite).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto::ChecksumType;
use s3s::{S3Error, S3ErrorCode, S3Result, TrailingHeaders, s3_error};

/// Checksum algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

/// Checksum of an object or of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) algorithm: Algorithm,
    /// Value in base64; a composite checksum ends with a dash and the number of parts.
    pub(super) value: String,
    /// True for a full-object checksum, false for a composite one.
    pub(super) whole: bool,
}

/// Collects the checksums in an input of the S3 API.
macro_rules! given {
    ($input:expr) => {{
        use $crate::s3::checksum::Algorithm;
        let fields = [
            (Algorithm::Crc32, &$input.checksum_crc32),
            (Algorithm::Crc32c, &$input.checksum_crc32c),
            (Algorithm::Crc64Nvme, &$input.checksum_crc64nvme),
            (Algorithm::Sha1, &$input.checksum_sha1),
            (Algorithm::Sha256, &$input.checksum_sha256),
        ];
        let given =
            fields.into_iter().filter_map(|(algorithm, sum)| Some((algorithm, sum.clone()?)));
        given.collect::<Vec<_>>()
    }};
}

/// Writes a checksum into an output of the S3 API.
macro_rules! tell {
    ($output:expr, $sum:expr) => {{
        use $crate::s3::checksum::Algorithm;
        let field = match $sum.algorithm {
            Algorithm::Crc32 => &mut $output.checksum_crc32,
            Algorithm::Crc32c => &mut $output.checksum_crc32c,
            Algorithm::Crc64Nvme => &mut $output.checksum_crc64nvme,
            Algorithm::Sha1 => &mut $output.checksum_sha1,
            Algorithm::Sha256 => &mut $output.checksum_sha256,
        };
        *field = Some($sum.value.clone());
    }};
}

pub(super) use {given, tell};

impl Algorithm {
    const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// Returns the name of the algorithm in the S3 API.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Crc32 => Crc32::checksum(bytes).to_vec(),
            Self::Crc32c => Crc32c::checksum(bytes).to_vec(),
            Self::Crc64Nvme => Crc64Nvme::checksum(bytes).to_vec(),
            Self::Sha1 => Sha1::checksum(bytes).to_vec(),
            Self::Sha256 => Sha256::checksum(bytes).to_vec(),
        }
    }

    /// Computes the full-object checksum of these bytes.
    pub(super) fn whole(self, bytes: &[u8]) -> Sum {
        Sum { algorithm: self, value: STANDARD.encode(self.digest(bytes)), whole: true }
    }

    /// Computes the composite checksum of these parts.
    pub(super) fn composite<'a>(self, parts: impl Iterator<Item = &'a Bytes>) -> Sum {
        let digests: Vec<_> = parts.map(|part| self.digest(part)).collect();
        let value = STANDARD.encode(self.digest(&digests.concat()));
        Sum { algorithm: self, value: format!("{value}-{}", digests.len()), whole: false }
    }
}

impl Sum {
    pub(super) fn kind(&self) -> ChecksumType {
        let kind = if self.whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
        ChecksumType::from_static(kind)
    }

    /// Returns the checksum if its value is `given`.
    ///
    /// # Errors
    ///
    /// Returns `BadDigest` if the value differs.
    pub(super) fn expect(self, given: &str) -> S3Result<Self> {
        if self.value == given {
            return Ok(self);
        }
        let name = self.algorithm.name();
        Err(s3_error!(BadDigest, "The {name} you specified did not match the calculated checksum."))
    }
}

/// Checksums that a request declares for its body. Trailers are available once the body has ended.
pub(super) struct Claim {
    pub(super) given: Vec<(Algorithm, String)>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) md5: Option<String>,
    pub(super) trailers: Option<TrailingHeaders>,
}

impl Claim {
    /// Returns the body's checksum: the declared one after a check, otherwise one with the default
    /// algorithm of S3.
    ///
    /// # Errors
    ///
    /// Returns `BadDigest` if a declared checksum is wrong, and `InvalidRequest` if there are
    /// several.
    pub(super) fn check(mut self, bytes: &[u8]) -> S3Result<Sum> {
        if let Some(md5) = &self.md5
            && STANDARD.encode(Md5::checksum(bytes)) != *md5
        {
            let said = "The Content-MD5 you specified did not match what we received.";
            return Err(S3Error::with_message(S3ErrorCode::BadDigest, said));
        }
        let trailers = self.trailers.as_ref().and_then(TrailingHeaders::take).unwrap_or_default();
        for algorithm in Algorithm::ALL {
            let name = format!("x-amz-checksum-{}", algorithm.name().to_lowercase());
            let value = trailers.get(name).and_then(|value| value.to_str().ok());
            self.given.extend(value.map(|value| (algorithm, value.to_owned())));
        }
        match self.given.as_slice() {
            [] => Ok(self.algorithm.unwrap_or(Algorithm::Crc64Nvme).whole(bytes)),
            [(algorithm, given)] => algorithm.whole(bytes).expect(given),
            _ => Err(s3_error!(InvalidRequest, "Expecting a single x-amz-checksum- header.")),
        }
    }
}

/// Returns the MD5 of the bytes in hexadecimal digits, the ETag of an object in one part.
pub(super) fn md5_hex(bytes: &[u8]) -> String {
    hex(&Md5::checksum(bytes))
}

/// Returns the ETag of a multipart object: the MD5 of its parts' MD5s, a dash, and the number of
/// parts.
pub(super) fn etag_of_parts<'a>(parts: impl Iterator<Item = &'a Bytes>) -> String {
    let digests: Vec<_> = parts.map(|part| Md5::checksum(part)).collect();
    format!("{}-{}", hex(&Md5::checksum(&digests.concat())), digests.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
