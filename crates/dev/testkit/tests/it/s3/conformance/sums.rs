//! Checksums of objects in one part. The values are the published check values of the algorithms
//! for the text `123456789`.

use anyhow::{Result, ensure};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, ChecksumType};

use super::{Place, refused};

const TEXT: &[u8] = b"123456789";
const CRC32: &str = "y/Q5Jg==";
const CRC32C: &str = "4waSgw==";
const CRC64NVME: &str = "rosUhgp5mIg=";
const SHA256: &str = "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=";

pub(super) async fn a_checksum_is_kept_and_told(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let put = |key| client.put_object().bucket(bucket).key(key).body(TEXT.to_vec().into());
    put("crc32c").checksum_crc32_c(CRC32C).send().await?;
    put("crc64").checksum_crc64_nvme(CRC64NVME).send().await?;
    put("sha256").checksum_sha256(SHA256).send().await?;
    let head = |key| client.head_object().bucket(bucket).key(key);
    let enabled = ChecksumMode::Enabled;
    let crc32c = head("crc32c").checksum_mode(enabled.clone()).send().await?;
    ensure!(crc32c.checksum_crc32_c() == Some(CRC32C), "{crc32c:?}");
    ensure!(crc32c.checksum_type() == Some(&ChecksumType::FullObject), "{crc32c:?}");
    let crc64 = head("crc64").checksum_mode(enabled.clone()).send().await?;
    ensure!(crc64.checksum_crc64_nvme() == Some(CRC64NVME), "{crc64:?}");
    let get = client.get_object().bucket(bucket).key("sha256").checksum_mode(enabled);
    let sha256 = get.send().await?;
    ensure!(sha256.checksum_sha256() == Some(SHA256), "{sha256:?}");
    let unasked = head("crc32c").send().await?;
    ensure!(unasked.checksum_crc32_c().is_none(), "{unasked:?}");
    Ok(())
}

pub(super) async fn a_range_has_no_checksum(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let put = client.put_object().bucket(bucket).key("k").body(TEXT.to_vec().into());
    put.checksum_crc32_c(CRC32C).send().await?;
    let get = client.get_object().bucket(bucket).key("k").range("bytes=1-3");
    let got = get.checksum_mode(ChecksumMode::Enabled).send().await?;
    ensure!(got.checksum_crc32_c().is_none(), "{got:?}");
    ensure!(got.body.collect().await?.to_vec() == b"234");
    Ok(())
}

pub(super) async fn a_wrong_checksum_leaves_nothing_behind(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let put = || client.put_object().bucket(bucket).key("k").body(TEXT.to_vec().into());
    refused(put().checksum_crc32_c("AAAAAA==").send().await, 400, Some("BadDigest"))?;
    refused(put().checksum_crc64_nvme("AAAAAAAAAAA=").send().await, 400, Some("BadDigest"))?;
    let sha256 = format!("{}=", "A".repeat(43));
    refused(put().checksum_sha256(sha256).send().await, 400, Some("BadDigest"))?;
    let md5 = "AAAAAAAAAAAAAAAAAAAAAA==";
    refused(put().content_md5(md5).send().await, 400, Some("BadDigest"))?;
    let listed = client.list_objects_v2().bucket(bucket).send().await?;
    ensure!(listed.contents().is_empty(), "{listed:?}");
    Ok(())
}

/// The SDK sends a checksum that it computes while it streams as a trailer.
pub(super) async fn a_checksum_behind_the_body_is_checked(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), TEXT)?;
    let put = client.put_object().bucket(bucket).key("k");
    let put = put.checksum_algorithm(ChecksumAlgorithm::Crc32);
    let done = put.body(ByteStream::from_path(file.path()).await?).send().await?;
    ensure!(done.checksum_crc32() == Some(CRC32), "{done:?}");
    let head = client.head_object().bucket(bucket).key("k").checksum_mode(ChecksumMode::Enabled);
    let head = head.send().await?;
    ensure!(head.checksum_crc32() == Some(CRC32), "{head:?}");
    ensure!(place.get("k").await? == TEXT);
    Ok(())
}
