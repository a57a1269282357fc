//! Multipart uploads.

use anyhow::{Context as _, Result, ensure};
use aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder;
use aws_sdk_s3::types::{
    ChecksumAlgorithm, ChecksumMode, ChecksumType, CompletedMultipartUpload, CompletedPart,
};

use super::{Place, refused};

/// Minimum size of a part that is not the last one, in bytes.
const MIN_PART_BYTES: usize = 5 << 20;

/// Checksums of two parts, that many zeros and `123456789`: the MD5 of their MD5s, the SHA-256 of
/// their SHA-256s, and the CRC-64/NVME of all bytes. Other programs computed the values.
const ETAG: &str = "\"4f71ea28b759fb81d89dfa86e3a269cb-2\"";
const SHA256: &str = "CfwSQNlfMZO+f/tihNmdkizt6IcT1SUofwEv27lZC3o=-2";
const CRC64NVME: &str = "2Cx3jK5cd8E=";

pub(super) async fn begin(place: &Place, key: &str) -> Result<String> {
    let begun = place.client.create_multipart_upload().bucket(&place.bucket).key(key);
    begun.send().await?.upload_id.context("an upload has a name")
}

pub(super) async fn send(
    place: &Place,
    key: &str,
    id: &str,
    number: i32,
    bytes: Vec<u8>,
) -> Result<CompletedPart> {
    let part = place.client.upload_part().bucket(&place.bucket).key(key).upload_id(id);
    let sent = part.part_number(number).body(bytes.into()).send().await?;
    Ok(CompletedPart::builder()
        .part_number(number)
        .set_e_tag(sent.e_tag)
        .set_checksum_crc32(sent.checksum_crc32)
        .set_checksum_sha256(sent.checksum_sha256)
        .set_checksum_crc64_nvme(sent.checksum_crc64_nvme)
        .build())
}

pub(super) fn complete(
    place: &Place,
    key: &str,
    id: &str,
    parts: Vec<CompletedPart>,
) -> CompleteMultipartUploadFluentBuilder {
    let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = place.client.complete_multipart_upload().bucket(&place.bucket).key(key);
    complete.upload_id(id).multipart_upload(parts)
}

fn whole() -> Vec<u8> {
    [&vec![0; MIN_PART_BYTES][..], b"123456789"].concat()
}

pub(super) async fn parts_become_one_object(place: Place) -> Result<()> {
    let id = begin(&place, "k").await?;
    // The parts arrive out of order, and one of them twice.
    let second = send(&place, "k", &id, 2, b"123456789".to_vec()).await?;
    send(&place, "k", &id, 1, b"never seen".to_vec()).await?;
    let first = send(&place, "k", &id, 1, vec![0; MIN_PART_BYTES]).await?;
    let list = place.client.list_parts().bucket(&place.bucket).key("k").upload_id(&id);
    let listed = list.send().await?;
    let sizes: Vec<_> =
        listed.parts().iter().map(|part| (part.part_number(), part.size())).collect();
    ensure!(sizes == [(Some(1), Some(MIN_PART_BYTES as i64)), (Some(2), Some(9))], "{sizes:?}");
    refused(
        place.client.get_object().bucket(&place.bucket).key("k").send().await,
        404,
        Some("NoSuchKey"),
    )?;
    let done = complete(&place, "k", &id, vec![first, second]).send().await?;
    ensure!(done.e_tag() == Some(ETAG), "{done:?}");
    ensure!(place.get("k").await? == whole());
    Ok(())
}

pub(super) async fn a_part_can_be_read_by_its_number(place: Place) -> Result<()> {
    let id = begin(&place, "k").await?;
    let first = send(&place, "k", &id, 1, vec![0; MIN_PART_BYTES]).await?;
    let second = send(&place, "k", &id, 2, b"123456789".to_vec()).await?;
    complete(&place, "k", &id, vec![first, second]).send().await?;
    let get = place.client.get_object().bucket(&place.bucket).key("k").part_number(2);
    let got = get.send().await?;
    ensure!(got.parts_count() == Some(2), "{got:?}");
    ensure!(got.content_length() == Some(9), "{got:?}");
    ensure!(got.body.collect().await?.to_vec() == b"123456789");
    Ok(())
}

pub(super) async fn parts_have_a_composite_checksum_or_one_of_the_whole(
    place: Place,
) -> Result<()> {
    let kinds = [ChecksumAlgorithm::Sha256, ChecksumAlgorithm::Crc64Nvme];
    for algorithm in kinds {
        let begun = place.client.create_multipart_upload().bucket(&place.bucket).key("k");
        let begun = begun.checksum_algorithm(algorithm.clone()).send().await?;
        let id = begun.upload_id.context("an upload has a name")?;
        let mut parts = Vec::new();
        for (number, bytes) in [(1, vec![0; MIN_PART_BYTES]), (2, b"123456789".to_vec())] {
            let part = place.client.upload_part().bucket(&place.bucket).key("k").upload_id(&id);
            let part = part.checksum_algorithm(algorithm.clone()).part_number(number);
            let sent = part.body(bytes.into()).send().await?;
            let part = CompletedPart::builder().part_number(number).set_e_tag(sent.e_tag);
            let part = part.set_checksum_sha256(sent.checksum_sha256);
            parts.push(part.set_checksum_crc64_nvme(sent.checksum_crc64_nvme).build());
        }
        complete(&place, "k", &id, parts).send().await?;
        let head = place.client.head_object().bucket(&place.bucket).key("k");
        let head = head.checksum_mode(ChecksumMode::Enabled).send().await?;
        let (sum, kind) = match algorithm {
            ChecksumAlgorithm::Sha256 => {
                (head.checksum_sha256() == Some(SHA256), ChecksumType::Composite)
            }
            _ => (head.checksum_crc64_nvme() == Some(CRC64NVME), ChecksumType::FullObject),
        };
        ensure!(sum && head.checksum_type() == Some(&kind), "{head:?}");
    }
    Ok(())
}

pub(super) async fn what_is_given_up_leaves_nothing_behind(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let id = begin(&place, "k").await?;
    send(&place, "k", &id, 1, b"123456789".to_vec()).await?;
    let listed = client.list_multipart_uploads().bucket(bucket).send().await?;
    let [upload] = listed.uploads() else { anyhow::bail!("{listed:?}") };
    ensure!((upload.key(), upload.upload_id()) == (Some("k"), Some(&*id)), "{upload:?}");
    client.abort_multipart_upload().bucket(bucket).key("k").upload_id(&id).send().await?;
    let listed = client.list_multipart_uploads().bucket(bucket).send().await?;
    ensure!(listed.uploads().is_empty(), "{listed:?}");
    let late = client.list_parts().bucket(bucket).key("k").upload_id(&id).send().await;
    refused(late, 404, Some("NoSuchUpload"))?;
    let late = client.upload_part().bucket(bucket).key("k").upload_id(&id).part_number(1);
    refused(late.body(b"x".to_vec().into()).send().await, 404, Some("NoSuchUpload"))?;
    let listed = client.list_objects_v2().bucket(bucket).send().await?;
    ensure!(listed.contents().is_empty(), "{listed:?}");
    Ok(())
}

pub(super) async fn a_part_that_is_too_small_or_unknown_is_refused(place: Place) -> Result<()> {
    let id = begin(&place, "k").await?;
    let first = send(&place, "k", &id, 1, b"too small".to_vec()).await?;
    let second = send(&place, "k", &id, 2, b"123456789".to_vec()).await?;
    let both = vec![first.clone(), second.clone()];
    refused(complete(&place, "k", &id, both).send().await, 400, Some("EntityTooSmall"))?;
    let swapped = vec![second.clone(), first];
    refused(complete(&place, "k", &id, swapped).send().await, 400, Some("InvalidPartOrder"))?;
    let tag = "\"00000000000000000000000000000000\"";
    let unknown = CompletedPart::builder().part_number(2).e_tag(tag).build();
    refused(complete(&place, "k", &id, vec![unknown]).send().await, 400, Some("InvalidPart"))?;
    complete(&place, "k", &id, vec![second]).send().await?;
    ensure!(place.get("k").await? == b"123456789");
    Ok(())
}
