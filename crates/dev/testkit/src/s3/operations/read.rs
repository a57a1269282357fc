//! `GetObject` and `HeadObject`.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use s3s::dto::{
    ChecksumMode, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput,
    Range as Asked, StreamingBlob, Timestamp,
};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Request, S3Response, S3Result, StdError, s3_error};

use super::{Answer, IgnoreRange, Operations};
use crate::s3::checksum::tell;
use crate::s3::store::{Conditions, Object};

/// Frame size of a body in bytes, large enough that the cost of a frame does not matter.
const FRAME: usize = 256 << 10;

/// Stream over a slice of an object; its frames are slices too, without a copy.
struct Frames(Bytes);

impl Stream for Frames {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let length = self.0.len().min(FRAME);
        Poll::Ready((length > 0).then(|| Ok(self.0.split_to(length))))
    }
}

impl ByteStream for Frames {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.0.len())
    }
}

/// Requested part of an object.
struct Part {
    bytes: Range<usize>,
    /// Value of `Content-Range`; `None` for the whole object.
    range: Option<String>,
}

impl Part {
    fn whole(object: &Object) -> Self {
        Self { bytes: 0..object.bytes.len(), range: None }
    }

    fn of(object: &Object, bytes: Range<usize>) -> Self {
        let (last, all) = (bytes.end.saturating_sub(1), object.bytes.len());
        Self { range: Some(format!("bytes {}-{last}/{all}", bytes.start)), bytes }
    }

    fn find(object: &Object, range: Option<Asked>, number: Option<i32>) -> S3Result<Self> {
        let all = object.bytes.len();
        match (range, number) {
            (None, None) => Ok(Self::whole(object)),
            (Some(_), Some(_)) => {
                Err(s3_error!(InvalidRequest, "Cannot specify both Range header and partNumber"))
            }
            (Some(range), None) => {
                let found = range.check(all as u64).ok().filter(|found| !found.is_empty());
                let Some(found) = found else {
                    return Err(s3_error!(InvalidRange, "The range is not satisfiable"));
                };
                Ok(Self::of(object, found.start as usize..found.end as usize))
            }
            (None, Some(number)) => {
                let sizes = if object.parts.is_empty() { &[all][..] } else { &object.parts };
                let index = usize::try_from(number - 1).ok().filter(|index| *index < sizes.len());
                let Some(index) = index else {
                    return Err(s3_error!(InvalidPart, "There is no part {number}."));
                };
                let start = sizes[..index].iter().sum();
                Ok(Self::of(object, start..start + sizes[index]))
            }
        }
    }
}

fn wants_checksum(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

/// Builds the fields that both outputs share.
macro_rules! describe {
    ($output:ident, $object:expr, $part:expr, $mode:expr, $number:expr) => {{
        let output = $output {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some($part.bytes.len() as i64),
            content_range: $part.range.clone(),
            content_type: $object.content_type.clone(),
            e_tag: Some($object.tag()),
            last_modified: Some(Timestamp::from($object.modified)),
            metadata: $object.metadata.clone(),
            version_id: $object.version.clone(),
            parts_count: $number.map(|_| $object.parts.len().max(1) as i32),
            ..Default::default()
        };
        let mut output = output;
        // S3 has no checksum for a part of an object.
        if $part.range.is_none() && wants_checksum($mode.as_ref()) {
            tell!(output, $object.sum);
            output.checksum_type = Some($object.sum.kind());
        }
        output
    }};
}

impl Operations {
    pub(super) fn read(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let range = match request.extensions.get::<IgnoreRange>() {
            Some(IgnoreRange) => None,
            None => request.input.range,
        };
        let input = request.input;
        let on = Conditions { matches: input.if_match, matches_not: input.if_none_match };
        let object = self.find(&input.bucket, &input.key, input.version_id.as_deref(), &on)?;
        let part = Part::find(&object, range, input.part_number)?;
        let mut output =
            describe!(GetObjectOutput, object, part, input.checksum_mode, input.part_number);
        output.body = Some(StreamingBlob::new(Frames(object.bytes.slice(part.bytes))));
        Ok(S3Response::new(output))
    }

    pub(super) fn head(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        let input = request.input;
        let on = Conditions { matches: input.if_match, matches_not: input.if_none_match };
        let object = self.find(&input.bucket, &input.key, input.version_id.as_deref(), &on)?;
        let part = Part::find(&object, input.range, input.part_number)?;
        Ok(S3Response::new(describe!(
            HeadObjectOutput,
            object,
            part,
            input.checksum_mode,
            input.part_number
        )))
    }

    fn find(
        &self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        on: &Conditions,
    ) -> S3Result<Object> {
        self.store.within(bucket, |bucket| {
            let object = bucket.object(key, version)?;
            on.to_read(object)?;
            Ok(object.clone())
        })
    }
}
