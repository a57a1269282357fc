//! Upload of files to a bucket, part by part. A push continues where an earlier one stopped.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use aws_smithy_types::byte_stream::ByteStream;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::{Push, Pushing, read_part};
use crate::digest::ChunkHasher;
use crate::error::{Fault, StoreError};
use crate::fetch::Fetcher;
use crate::manifest::{Manifest, ManifestFile, hex};
use crate::objects::Objects;
use crate::objects::s3::S3;

/// Metadata key for the BLAKE3 of an object's content.
const DIGEST: &str = "nsb-blake3";

/// Number of files that are sent at once. The store's semaphore bounds the total.
const FILES_AT_ONCE: usize = 4;
/// Number of parts of one file that are sent at once.
const PARTS_AT_ONCE: usize = 16;

/// Nominal body size of the request that assembles the parts, in bytes. It determines the time
/// limit of that request.
const GATHERED: u64 = 20_000_000;

/// Sends the files that are not there yet and sets the ETag of each. Returns the number of bytes
/// sent.
pub(super) async fn files(
    within: &S3,
    fetcher: &Fetcher,
    push: &Push,
    manifest: &mut Manifest,
    progress: &(dyn Fn(Pushing) + Send + Sync),
) -> Result<u64, StoreError> {
    let (chunk_bytes, force) = (manifest.chunk_bytes, push.force);
    let sent = AtomicU64::new(0);
    let send = |file: &ManifestFile| {
        let (file, sent) = (file.clone(), &sent);
        async move {
            let (path, file) = (&push.from.join(&file.path), &file);
            let sender = Sender { within, fetcher, path, file, chunk_bytes, force, sent };
            sender.send(progress).await
        }
    };
    let sends = stream::iter(manifest.files.iter().map(send).collect::<Vec<_>>());
    let etags: Vec<_> = sends.buffered(FILES_AT_ONCE).try_collect().await?;
    for (file, etag) in manifest.files.iter_mut().zip(etags) {
        file.etag = etag;
    }
    Ok(sent.load(Ordering::Relaxed))
}

/// ETag and checksum of each uploaded part, by part number.
type Parts = HashMap<usize, (String, String)>;

/// Upload of one file.
struct Sender<'a> {
    within: &'a S3,
    fetcher: &'a Fetcher,
    path: &'a Path,
    file: &'a ManifestFile,
    chunk_bytes: u64,
    /// True to send the file even if it is there already.
    force: bool,
    sent: &'a AtomicU64,
}

impl Sender<'_> {
    /// Sends the file unless it is there already, and returns the object's ETag.
    async fn send(
        &self,
        progress: &(dyn Fn(Pushing) + Send + Sync),
    ) -> Result<Option<String>, StoreError> {
        if !self.force
            && let Some(etag) = self.patiently(|| self.find_whole()).await?
        {
            progress(Pushing::There(self.file.size));
            return Ok(etag);
        }
        if self.file.chunks.len() <= 1 {
            let body = if self.file.size == 0 { Bytes::new() } else { self.part(0).await? };
            let etag = self.patiently(|| self.put_whole(body.clone())).await?;
            progress(Pushing::There(self.file.size));
            return Ok(etag);
        }
        let (upload, there) = self.upload().await?;
        let send = |number: usize| {
            let (upload, there) = (&upload, &there);
            async move {
                // The permit is taken before the part is read, so a waiting part takes no memory.
                let _permit = self.fetcher.gate.acquire().await;
                let body = self.part(number).await?;
                let bytes = body.len() as u64;
                let checksum = checksum(&body);
                let known = there.get(&number).filter(|part| part.1 == checksum);
                let etag = if let Some((etag, _)) = known {
                    etag.clone()
                } else {
                    let put = || self.put_part(upload, number, body.clone(), &checksum);
                    self.patiently(put).await?
                };
                progress(Pushing::There(bytes));
                let part = CompletedPart::builder().part_number(number as i32 + 1);
                Ok::<_, StoreError>(part.e_tag(etag).checksum_crc32_c(checksum).build())
            }
        };
        let parts = stream::iter(0..self.file.chunks.len()).map(send);
        let parts: Vec<_> = parts.buffered(PARTS_AT_ONCE).try_collect().await?;
        self.patiently(|| self.complete(&upload, parts.clone())).await
    }

    /// Returns an unfinished upload of this file with its parts, or a new upload.
    async fn upload(&self) -> Result<(String, Parts), StoreError> {
        if let Some(upload) = self.patiently(|| self.find_upload()).await? {
            let there = self.patiently(|| self.list_parts(&upload)).await?;
            let mut ours = !there.is_empty();
            for (&number, (_, known)) in &there {
                ours = ours
                    && number < self.file.chunks.len()
                    && checksum(&self.part(number).await?) == *known;
            }
            if ours {
                return Ok((upload, there));
            }
            // Its metadata names another content, and the completed object would keep that
            // metadata.
            self.patiently(|| self.abort(&upload)).await?;
        }
        Ok((self.patiently(|| self.create_upload()).await?, Parts::new()))
    }

    async fn abort(&self, upload: &str) -> Result<(), Fault> {
        let client = self.within.client();
        let request = client.abort_multipart_upload().bucket(self.within.bucket()).key(self.key());
        match self.within.ask(&self.file.path, request.upload_id(upload).send()).await {
            Ok(_) | Err(Fault::Lasting(StoreError::Missing { .. })) => Ok(()),
            Err(other) => Err(other),
        }
    }

    async fn patiently<T, F>(&self, request: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        self.fetcher.patiently(&self.within.address(&self.file.path), request).await
    }

    /// Reads a chunk of the file and checks that it still has the digest that was computed before.
    async fn part(&self, number: usize) -> Result<Bytes, StoreError> {
        let start = number as u64 * self.chunk_bytes;
        let end = self.file.size.min(start + self.chunk_bytes);
        let bytes = read_part(self.path, start..end).await?;
        let mut hasher = ChunkHasher::new(start, self.file.chunks.len() == 1);
        hasher.update(&bytes);
        if hasher.finish() != self.file.chunks[number] {
            return Err(StoreError::Changed { object: self.path.display().to_string() });
        }
        Ok(bytes.into())
    }

    fn key(&self) -> String {
        self.within.key(&self.file.path)
    }

    /// Returns the object's ETag if the object is there and its metadata names these bytes.
    async fn find_whole(&self) -> Result<Option<Option<String>>, Fault> {
        let request =
            self.within.client().head_object().bucket(self.within.bucket()).key(self.key());
        let head = match self.within.ask(&self.file.path, request.send()).await {
            Err(Fault::Lasting(StoreError::Missing { .. })) => return Ok(None),
            other => other?,
        };
        let digest = head.metadata().and_then(|all| all.get(DIGEST));
        let same = digest.is_some_and(|digest| *digest == hex(&self.file.blake3))
            && head.content_length().and_then(|n| u64::try_from(n).ok()) == Some(self.file.size);
        Ok(same.then(|| head.e_tag().map(str::to_owned)))
    }

    async fn put_whole(&self, body: Bytes) -> Result<Option<String>, Fault> {
        let request = self
            .within
            .client()
            .put_object()
            .bucket(self.within.bucket())
            .key(self.key())
            .metadata(DIGEST, hex(&self.file.blake3))
            .checksum_algorithm(ChecksumAlgorithm::Crc32C)
            .checksum_crc32_c(checksum(&body))
            .body(ByteStream::from(body));
        let send = self.within.send(self.file.size, &self.file.path, request.send());
        let put = send.await?;
        self.sent.fetch_add(self.file.size, Ordering::Relaxed);
        Ok(put.e_tag().map(str::to_owned))
    }

    /// Returns the id of an unfinished upload of this file.
    async fn find_upload(&self) -> Result<Option<String>, Fault> {
        let client = self.within.client();
        let request =
            client.list_multipart_uploads().bucket(self.within.bucket()).prefix(self.key());
        let listed = match self.within.ask(&self.file.path, request.send()).await {
            // Some stores do not list uploads. The file is then sent from the start.
            Err(Fault::Lasting(_)) => return Ok(None),
            other => other?,
        };
        let key = self.key();
        let ours = listed.uploads().iter().find(|upload| upload.key() == Some(key.as_str()));
        Ok(ours.and_then(|upload| upload.upload_id()).map(str::to_owned))
    }

    async fn create_upload(&self) -> Result<String, Fault> {
        let request = self
            .within
            .client()
            .create_multipart_upload()
            .bucket(self.within.bucket())
            .key(self.key())
            .metadata(DIGEST, hex(&self.file.blake3))
            .checksum_algorithm(ChecksumAlgorithm::Crc32C);
        let created = self.within.ask(&self.file.path, request.send()).await?;
        let none = || StoreError::unusable(self.key(), "the store began an upload without a name");
        Ok(created.upload_id().ok_or_else(none)?.to_owned())
    }

    /// Lists the parts of an upload.
    async fn list_parts(&self, upload: &str) -> Result<Parts, Fault> {
        let mut parts = Parts::new();
        let mut next = None;
        loop {
            let client = self.within.client();
            let request = client.list_parts().bucket(self.within.bucket()).key(self.key());
            let request = request.upload_id(upload).set_part_number_marker(next);
            let page = match self.within.ask(&self.file.path, request.send()).await {
                // Some stores cannot list parts. All parts are then sent.
                Err(Fault::Lasting(_)) => return Ok(parts),
                other => other?,
            };
            parts.extend(page.parts().iter().filter_map(|part| {
                let number = usize::try_from(part.part_number()?).ok()?.checked_sub(1)?;
                Some((number, (part.e_tag()?.to_owned(), part.checksum_crc32_c()?.to_owned())))
            }));
            next = page.next_part_number_marker().map(str::to_owned);
            if !page.is_truncated().unwrap_or(false) || next.is_none() {
                return Ok(parts);
            }
        }
    }

    async fn put_part(
        &self,
        upload: &str,
        number: usize,
        body: Bytes,
        checksum: &str,
    ) -> Result<String, Fault> {
        let bytes = body.len() as u64;
        self.fetcher.rate_limit.wait(body.len()).await;
        let request = self
            .within
            .client()
            .upload_part()
            .bucket(self.within.bucket())
            .key(self.key())
            .upload_id(upload)
            .part_number(number as i32 + 1)
            .checksum_algorithm(ChecksumAlgorithm::Crc32C)
            .checksum_crc32_c(checksum)
            .body(ByteStream::from(body));
        let send = self.within.send(bytes, &self.file.path, request.send());
        let sent = send.await?;
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        Ok(sent.e_tag().unwrap_or_default().to_owned())
    }

    async fn complete(
        &self,
        upload: &str,
        parts: Vec<CompletedPart>,
    ) -> Result<Option<String>, Fault> {
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        let request = self
            .within
            .client()
            .complete_multipart_upload()
            .bucket(self.within.bucket())
            .key(self.key())
            .upload_id(upload)
            .multipart_upload(parts);
        // The store assembles the parts, which may take minutes.
        let send = self.within.send(GATHERED, &self.file.path, request.send());
        let done = match send.await {
            // It was completed by an earlier try whose response was lost, or by another push.
            Err(Fault::Lasting(StoreError::Missing { object })) => {
                let missing = StoreError::Missing { object };
                return self.find_whole().await?.ok_or(Fault::Lasting(missing));
            }
            other => other?,
        };
        Ok(done.e_tag().map(str::to_owned))
    }
}

/// Returns the CRC-32C in the format of S3. It guards the transfer; the manifest guards what is
/// stored.
fn checksum(bytes: &[u8]) -> String {
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    STANDARD.encode((checksum as u32).to_be_bytes())
}
