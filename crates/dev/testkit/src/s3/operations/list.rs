//! `ListObjectsV2`, and versioning of a bucket.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::dto::{
    BucketVersioningStatus, CommonPrefix, ListObjectsV2Input, ListObjectsV2Output,
    Object as Listed, PutBucketVersioningInput, PutBucketVersioningOutput, Timestamp,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::{Answer, Operations};
use crate::s3::store::Bucket;

/// Maximum number of keys on a page, as in S3.
const PAGE: i32 = 1000;

/// Page of a listing.
#[derive(Default)]
struct Page {
    contents: Vec<Listed>,
    prefixes: BTreeSet<String>,
    /// Last name on the page, if another page follows.
    more_after: Option<String>,
}

impl Page {
    fn new(bucket: &Bucket, prefix: &str, delimiter: &str, after: &str, most: usize) -> Self {
        let mut page = Self::default();
        let mut last = String::new();
        for (key, object) in bucket.objects() {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            let folder = match rest.find(delimiter) {
                Some(end) if !delimiter.is_empty() => {
                    Some(&key[..prefix.len() + end + delimiter.len()])
                }
                _ => None,
            };
            let name = folder.unwrap_or(key);
            if name <= after || page.prefixes.contains(name) {
                continue;
            }
            if page.contents.len() + page.prefixes.len() == most {
                page.more_after = Some(last);
                return page;
            }
            name.clone_into(&mut last);
            if let Some(folder) = folder {
                page.prefixes.insert(folder.to_owned());
            } else {
                page.contents.push(Listed {
                    key: Some(key.to_owned()),
                    size: Some(object.bytes.len() as i64),
                    e_tag: Some(object.tag()),
                    last_modified: Some(Timestamp::from(object.modified)),
                    ..Default::default()
                });
            }
        }
        page
    }
}

/// Returns the name after which the page begins. A continuation token is that name in base64.
fn begin(input: &ListObjectsV2Input) -> S3Result<String> {
    let Some(token) = &input.continuation_token else {
        return Ok(input.start_after.clone().unwrap_or_default());
    };
    let after = URL_SAFE_NO_PAD.decode(token).ok().and_then(|name| String::from_utf8(name).ok());
    after.ok_or_else(|| s3_error!(InvalidArgument, "The continuation token is incorrect"))
}

impl Operations {
    pub(super) fn list(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> Answer<ListObjectsV2Output> {
        let input = request.input;
        let after = begin(&input)?;
        let most = input.max_keys.unwrap_or(PAGE).clamp(0, PAGE);
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let page = self.store.within(&input.bucket, |bucket| {
            Ok(Page::new(bucket, &prefix, &delimiter, &after, most as usize))
        })?;
        let count = page.contents.len() + page.prefixes.len();
        let prefixes: Vec<_> =
            page.prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(prefix) }).collect();
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: input.prefix,
            delimiter: input.delimiter,
            max_keys: Some(most),
            key_count: Some(count as i32),
            continuation_token: input.continuation_token,
            start_after: input.start_after,
            is_truncated: Some(page.more_after.is_some()),
            next_continuation_token: page.more_after.map(|name| URL_SAFE_NO_PAD.encode(name)),
            contents: Some(page.contents),
            common_prefixes: (!prefixes.is_empty()).then_some(prefixes),
            ..Default::default()
        }))
    }

    pub(super) fn keep_versions(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> Answer<PutBucketVersioningOutput> {
        let input = request.input;
        let status = input.versioning_configuration.status;
        let enabled =
            status.is_some_and(|status| status.as_str() == BucketVersioningStatus::ENABLED);
        self.store.within(&input.bucket, |bucket| {
            bucket.versioned = enabled;
            Ok(())
        })?;
        Ok(S3Response::new(PutBucketVersioningOutput::default()))
    }
}
