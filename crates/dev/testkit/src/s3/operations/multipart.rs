//! Multipart uploads.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::BytesMut;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType,
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput, MultipartUpload, Part as Listed,
    Timestamp, UploadPartInput, UploadPartOutput,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::write::receive;
use super::{Answer, Operations};
use crate::s3::checksum::{Algorithm, Claim, Sum, etag_of_parts, given, md5_hex, tell};
use crate::s3::store::{Bucket, Conditions, Object, Part, Upload};

/// Minimum size of every part but the last, in bytes.
const MIN_PART_BYTES: usize = 5 << 20;

fn find<'a>(bucket: &'a mut Bucket, key: &str, id: &str) -> S3Result<&'a mut Upload> {
    let found = bucket.uploads.get_mut(id).filter(|upload| upload.key == key);
    found.ok_or_else(|| s3_error!(NoSuchUpload, "The specified upload does not exist."))
}

fn kind(whole: bool) -> ChecksumType {
    let kind = if whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    ChecksumType::from_static(kind)
}

impl Operations {
    pub(super) fn begin(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let input = request.input;
        let asked = input.checksum_algorithm.as_ref();
        let algorithm = asked.and_then(|name| Algorithm::named(name.as_str()));
        let full = |kind: &ChecksumType| kind.as_str() == ChecksumType::FULL_OBJECT;
        let upload = Upload {
            key: input.key.clone(),
            algorithm,
            // CRC-64/NVME is the default of S3 and has no composite form.
            whole: matches!(algorithm, None | Some(Algorithm::Crc64Nvme))
                || input.checksum_type.as_ref().is_some_and(full),
            content_type: input.content_type,
            metadata: input.metadata,
            began: SystemTime::now(),
            parts: BTreeMap::new(),
        };
        let output = CreateMultipartUploadOutput {
            bucket: Some(input.bucket.clone()),
            key: Some(input.key),
            upload_id: Some(self.store.name("u")),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: algorithm.map(|_| kind(upload.whole)),
            ..Default::default()
        };
        self.store.within(&input.bucket, |bucket| {
            bucket.uploads.insert(output.upload_id.clone().unwrap_or_default(), upload);
            Ok(())
        })?;
        Ok(S3Response::new(output))
    }

    pub(super) async fn take_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> Answer<UploadPartOutput> {
        let input = request.input;
        let id = input.upload_id;
        let declared = self
            .store
            .within(&input.bucket, |bucket| Ok(find(bucket, &input.key, &id)?.algorithm))?;
        let claim = Claim {
            given: given!(input),
            algorithm: declared,
            md5: input.content_md5,
            trailers: request.trailing_headers,
        };
        let bytes = receive(input.body, input.content_length).await?;
        let sum = claim.check(&bytes)?;
        let part = Part { etag: md5_hex(&bytes), bytes, sum, modified: SystemTime::now() };
        let tag = Some(ETag::Strong(part.etag.clone()));
        let mut output = UploadPartOutput { e_tag: tag, ..Default::default() };
        tell!(output, part.sum);
        self.store.within(&input.bucket, |bucket| {
            find(bucket, &input.key, &id)?.parts.insert(input.part_number, part);
            Ok(())
        })?;
        Ok(S3Response::new(output))
    }

    pub(super) fn complete(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let input = request.input;
        let given = given!(input);
        let id = input.upload_id;
        let listed = input.multipart_upload.and_then(|parts| parts.parts).unwrap_or_default();
        let on = Conditions { matches: input.if_match, matches_not: input.if_none_match };
        let mut object = self.store.within(&input.bucket, |bucket| {
            let upload = find(bucket, &input.key, &id)?;
            joined(upload, &listed)
        })?;
        if let [(_, given)] = given.as_slice() {
            object.sum = object.sum.expect(given)?;
        }
        let mut output = CompleteMultipartUploadOutput {
            bucket: Some(input.bucket.clone()),
            key: Some(input.key.clone()),
            e_tag: Some(object.tag()),
            checksum_type: Some(object.sum.kind()),
            ..Default::default()
        };
        tell!(output, object.sum);
        self.store.within(&input.bucket, |bucket| {
            object.version = bucket.versioned.then(|| self.store.name("v"));
            output.version_id = object.version.clone();
            bucket.put(&input.key, object, &on)?;
            bucket.uploads.remove(&id);
            Ok(())
        })?;
        Ok(S3Response::new(output))
    }

    pub(super) fn abort(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        let input = request.input;
        self.store.within(&input.bucket, |bucket| {
            find(bucket, &input.key, &input.upload_id)?;
            bucket.uploads.remove(&input.upload_id);
            Ok(())
        })?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    pub(super) fn parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        let input = request.input;
        let output = self.store.within(&input.bucket, |bucket| {
            let upload = find(bucket, &input.key, &input.upload_id)?;
            let parts = upload.parts.iter().map(|(number, part)| {
                let mut listed = Listed {
                    part_number: Some(*number),
                    size: Some(part.bytes.len() as i64),
                    e_tag: Some(ETag::Strong(part.etag.clone())),
                    last_modified: Some(Timestamp::from(part.modified)),
                    ..Default::default()
                };
                tell!(listed, part.sum);
                listed
            });
            Ok(ListPartsOutput {
                parts: Some(parts.collect()),
                is_truncated: Some(false),
                checksum_algorithm: upload
                    .algorithm
                    .map(|algorithm| ChecksumAlgorithm::from(algorithm.name().to_owned())),
                checksum_type: upload.algorithm.map(|_| kind(upload.whole)),
                ..Default::default()
            })
        })?;
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            ..output
        }))
    }

    pub(super) fn uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let uploads = self.store.within(&input.bucket, |bucket| {
            let under = bucket.uploads.iter().filter(|(_, upload)| upload.key.starts_with(&prefix));
            let listed = under.map(|(id, upload)| MultipartUpload {
                key: Some(upload.key.clone()),
                upload_id: Some(id.clone()),
                initiated: Some(Timestamp::from(upload.began)),
                ..Default::default()
            });
            Ok(listed.collect())
        })?;
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix,
            uploads: Some(uploads),
            is_truncated: Some(false),
            ..Default::default()
        }))
    }
}

/// Assembles the object from the listed parts.
fn joined(upload: &Upload, listed: &[CompletedPart]) -> S3Result<Object> {
    let numbers: Vec<_> = listed.iter().filter_map(|part| part.part_number).collect();
    if numbers.is_empty() || numbers.len() != listed.len() {
        return Err(s3_error!(MalformedXML, "A list of numbered parts is missing."));
    }
    if !numbers.is_sorted_by(|a, b| a < b) {
        return Err(s3_error!(InvalidPartOrder, "The list of parts was not in ascending order."));
    }
    let parts: Vec<_> =
        listed.iter().map(|listed| part(upload, listed)).collect::<S3Result<_>>()?;
    let too_small = parts
        .split_last()
        .is_some_and(|(_, before)| before.iter().any(|part| part.bytes.len() < MIN_PART_BYTES));
    if too_small {
        return Err(s3_error!(EntityTooSmall, "A part but the last is smaller than 5 MiB."));
    }
    let all = || parts.iter().map(|part| &part.bytes);
    let mut bytes = BytesMut::with_capacity(all().map(|part| part.len()).sum());
    all().for_each(|part| bytes.extend_from_slice(part));
    let bytes = bytes.freeze();
    let algorithm = upload.algorithm.unwrap_or(Algorithm::Crc64Nvme);
    let sum: Sum = if upload.whole { algorithm.whole(&bytes) } else { algorithm.composite(all()) };
    Ok(Object {
        bytes,
        etag: etag_of_parts(all()),
        sum,
        modified: SystemTime::now(),
        parts: all().map(|part| part.len()).collect(),
        content_type: upload.content_type.clone(),
        metadata: upload.metadata.clone(),
        version: None,
    })
}

/// Returns the uploaded part if its ETag and checksum are the listed ones.
fn part<'a>(upload: &'a Upload, listed: &CompletedPart) -> S3Result<&'a Part> {
    let found = listed.part_number.and_then(|number| upload.parts.get(&number));
    let meant = found.filter(|part| {
        let same_tag = listed.e_tag.as_ref().is_none_or(|tag| tag.value() == part.etag);
        let claims = given!(listed);
        let same_sum = claims
            .iter()
            .all(|(algorithm, value)| *algorithm == part.sum.algorithm && *value == part.sum.value);
        same_tag && same_sum
    });
    meant.ok_or_else(|| {
        s3_error!(InvalidPart, "A part is missing, or its ETag or checksum is another one.")
    })
}
