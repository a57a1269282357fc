//! `PutObject`, `CopyObject`, `DeleteObject`.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, DeleteObjectInput,
    DeleteObjectOutput, PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::{Answer, Operations};
use crate::s3::checksum::{Algorithm, Claim, given, md5_hex, tell};
use crate::s3::store::{Conditions, Object};

/// Collects a request body.
pub(super) async fn receive(body: Option<StreamingBlob>, length: Option<i64>) -> S3Result<Bytes> {
    let mut received = BytesMut::with_capacity(length.unwrap_or(0).clamp(0, 1 << 30) as usize);
    let Some(mut body) = body else { return Ok(received.freeze()) };
    while let Some(frame) = body.next().await {
        let frame =
            frame.map_err(|error| s3_error!(IncompleteBody, "the body broke off: {error}"))?;
        received.extend_from_slice(&frame);
    }
    Ok(received.freeze())
}

impl Operations {
    pub(super) async fn write(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> Answer<PutObjectOutput> {
        let input = request.input;
        let claim = Claim {
            given: given!(input),
            algorithm: input.checksum_algorithm.and_then(|name| Algorithm::named(name.as_str())),
            md5: input.content_md5,
            trailers: request.trailing_headers,
        };
        let bytes = receive(input.body, input.content_length).await?;
        let sum = claim.check(&bytes)?;
        let mut object = Object {
            etag: md5_hex(&bytes),
            bytes,
            sum,
            modified: SystemTime::now(),
            parts: Vec::new(),
            content_type: input.content_type,
            metadata: input.metadata,
            version: None,
        };
        let on = Conditions { matches: input.if_match, matches_not: input.if_none_match };
        let mut output = PutObjectOutput { e_tag: Some(object.tag()), ..Default::default() };
        tell!(output, object.sum);
        output.checksum_type = Some(object.sum.kind());
        self.store.within(&input.bucket, |bucket| {
            object.version = bucket.versioned.then(|| self.store.name("v"));
            output.version_id = object.version.clone();
            bucket.put(&input.key, object, &on)
        })?;
        Ok(S3Response::new(output))
    }

    pub(super) fn copy(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        let input = request.input;
        let CopySource::Bucket { bucket, key, version_id } = input.copy_source else {
            return Err(s3_error!(NotImplemented, "Only what lies in a bucket can be copied."));
        };
        let on = Conditions {
            matches: input.copy_source_if_match,
            matches_not: input.copy_source_if_none_match,
        };
        let mut object = self.store.within(&bucket, |bucket| {
            let object = bucket.object(&key, version_id.as_deref())?;
            on.to_read(object)?;
            Ok(object.clone())
        })?;
        object.modified = SystemTime::now();
        // A copy has one part, even if its source was a multipart object.
        object.parts = Vec::new();
        object.etag = md5_hex(&object.bytes);
        object.sum = object.sum.algorithm.whole(&object.bytes);
        let result = CopyObjectResult {
            e_tag: Some(object.tag()),
            last_modified: Some(Timestamp::from(object.modified)),
            ..Default::default()
        };
        self.store.within(&input.bucket, |bucket| {
            object.version = bucket.versioned.then(|| self.store.name("v"));
            bucket.put(&input.key, object, &Conditions::default())
        })?;
        let output = CopyObjectOutput { copy_object_result: Some(result), ..Default::default() };
        Ok(S3Response::new(output))
    }

    pub(super) fn delete(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> Answer<DeleteObjectOutput> {
        let input = request.input;
        self.store.within(&input.bucket, |bucket| {
            bucket.delete(&input.key, input.version_id.as_deref());
            Ok(())
        })?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }
}
