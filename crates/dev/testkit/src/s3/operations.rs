//! S3 operations on the in-memory store.

mod list;
mod multipart;
mod read;
mod write;

use std::sync::Arc;

use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput,
    CreateBucketOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteObjectInput,
    DeleteObjectOutput, GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput,
    HeadObjectInput, HeadObjectOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput,
    ListObjectsV2Input, ListObjectsV2Output, ListPartsInput, ListPartsOutput,
    PutBucketVersioningInput, PutBucketVersioningOutput, PutObjectInput, PutObjectOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result};

use super::store::Store;

type Answer<T> = S3Result<S3Response<T>>;

/// Implementation of the S3 API behind authentication.
#[derive(Clone, Debug)]
pub(super) struct Operations {
    pub(super) store: Arc<Store>,
}

/// Marker on a request whose range is ignored. Only this layer can inject this fault: the `Range`
/// header is signed, so it cannot be removed before the signature is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct IgnoreRange;

#[async_trait::async_trait]
impl S3 for Operations {
    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> Answer<CreateBucketOutput> {
        self.store.within_new(&request.input.bucket, |_| ());
        Ok(S3Response::new(CreateBucketOutput::default()))
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.store.within(&request.input.bucket, |_| Ok(()))?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> Answer<PutBucketVersioningOutput> {
        self.keep_versions(request)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> Answer<ListObjectsV2Output> {
        self.list(request)
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.read(request)
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        self.head(request)
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.write(request).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        self.copy(request)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> Answer<DeleteObjectOutput> {
        self.delete(request)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        self.begin(request)
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        self.take_part(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        self.complete(request)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.abort(request)
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        self.parts(request)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        self.uploads(request)
    }
}
