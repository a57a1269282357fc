//! Backend for objects in a bucket with the S3 API.

mod http_client;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_smithy_types::byte_stream::ByteStream;
use bytes::{Bytes, BytesMut};
use nsbridge_aws::{Credentials, SdkConfig};
use nsbridge_handler::Cause;
use tokio::time::timeout;

use self::http_client::LargeReadsClient;
use super::{Object, Objects, Reading, unusable};
use crate::chunk_writer::ChunkWriter;
use crate::config::{StoreConfig, is_private, plaintext};
use crate::error::{Failure, Fault, StoreError};

/// Time limit for the start of a response, after which the request is retried.
const ANSWER: Duration = Duration::from_secs(20);

/// Upload rate in bytes a second below which an upload is taken to be stuck.
const SLOWEST_UPLOAD: u64 = 50_000;

/// Maximum number of keys of a page.
const PAGE: i32 = 1000;

/// Maximum number of characters of a message that is shown.
const MAX_MESSAGE_CHARS: usize = 300;

/// Maximum number of objects of a model.
const MOST_OBJECTS: usize = 100_000;

/// S3 error codes that are retried whatever the HTTP status is.
const PASSING: [&str; 12] = [
    "ExpiredToken",
    "RequestExpired",
    "TokenRefreshRequired",
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "BadDigest",
    "ConditionalRequestConflict",
    "OperationAborted",
    "InternalError",
    "SlowDown",
    "ServiceUnavailable",
    "ThrottlingException",
];

/// Creates the S3 client of a configuration.
///
/// # Errors
///
/// Returns an error if there is no region or no root certificate, or if the endpoint would be
/// reached without TLS.
pub(crate) async fn connect(
    config: &StoreConfig,
    credentials: Option<&Credentials>,
) -> Result<Client, StoreError> {
    let (region, endpoint) = (config.region.as_deref(), config.endpoint_url.as_deref());
    let sdk = nsbridge_aws::sdk_config(region, endpoint, credentials).await;
    match nsbridge_aws::endpoint(&sdk, "S3") {
        Some(url) if !config.allow_plaintext && !is_private(&url) => {
            Err(StoreError::Refused(plaintext(&url)))
        }
        _ => client(&sdk, config.path_style),
    }
}

/// Creates an S3 client that does not retry: the store decides what is retried and for how long.
///
/// # Errors
///
/// Returns an error if there is no region or no root certificate.
fn client(config: &SdkConfig, path_style: Option<bool>) -> Result<Client, StoreError> {
    let elsewhere = config.endpoint_url().is_some();
    let mut builder = aws_sdk_s3::config::Builder::from(config);
    match config.region() {
        Some(_) => {}
        // Other services than AWS sign for the first region of AWS.
        None if elsewhere => builder = builder.region(Region::from_static("us-east-1")),
        None => {
            let what =
                "no region is set: set `region` in [store], or AWS_REGION, or your AWS profile's";
            return Err(StoreError::Refused(what.to_owned()));
        }
    }
    let others = config.http_client().unwrap_or_else(nsbridge_aws::http_client);
    let http_client = LargeReadsClient::new(others).map_err(|source| {
        let what = "read this machine's root certificates".to_owned();
        StoreError::System { what, source }
    })?;
    let config = builder
        .http_client(http_client)
        .force_path_style(path_style.unwrap_or(elsewhere))
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        // S3 keeps no checksums of ranges, and the digests of the manifest cover every byte.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .build();
    Ok(Client::from_conf(config))
}

/// Objects below a prefix of a bucket.
#[derive(Clone)]
pub(crate) struct S3 {
    client: Client,
    bucket: String,
    prefix: String,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3({})", self.address(""))
    }
}

impl S3 {
    pub(crate) fn new(client: Client, bucket: &str, prefix: &str) -> Self {
        Self { client, bucket: bucket.to_owned(), prefix: prefix.to_owned() }
    }

    /// Returns the backend for a folder below this prefix.
    pub(crate) fn below(&self, folder: &str) -> Self {
        Self { prefix: self.key(folder), ..self.clone() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    pub(crate) fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    /// Sends a request without a body, such as for a page of keys, within the time limit.
    pub(crate) fn ask<T, E, R>(
        &self,
        path: &str,
        request: impl Future<Output = Result<T, SdkError<E, R>>> + Send,
    ) -> impl Future<Output = Result<T, Fault>> + Send
    where
        E: ProvideErrorMetadata + fmt::Debug + std::error::Error + Send + Sync + 'static,
        R: HasStatus + fmt::Debug + Send + Sync + 'static,
    {
        self.send(0, path, request)
    }

    /// Sends a request whose body has `bytes` bytes. The time limit grows with them.
    pub(crate) fn send<T, E, R>(
        &self,
        bytes: u64,
        path: &str,
        request: impl Future<Output = Result<T, SdkError<E, R>>> + Send,
    ) -> impl Future<Output = Result<T, Fault>> + Send
    where
        E: ProvideErrorMetadata + fmt::Debug + std::error::Error + Send + Sync + 'static,
        R: HasStatus + fmt::Debug + Send + Sync + 'static,
    {
        let within = ANSWER + Duration::from_secs(bytes / SLOWEST_UPLOAD);
        // The SDK's futures take tens of kilobytes.
        let request = Box::pin(request);
        async move {
            match timeout(within, request).await {
                Ok(answered) => answered.map_err(|error| fault(self.address(path), error)),
                Err(_) => Err(Fault::passing(format!("no answer within {} s", within.as_secs()))),
            }
        }
    }

    async fn receive(
        &self,
        object: &Object,
        range: Range<u64>,
        writer: &mut ChunkWriter,
        how: Reading<'_>,
    ) -> Result<(), Fault> {
        let request = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(self.key(&object.path))
            .range(format!("bytes={}-{}", range.start, range.end - 1))
            .set_if_match(object.etag.clone());
        let mut answer = self.ask(&object.path, request.send()).await?;
        Self::check_range(object, &range, &answer)?;
        while !writer.is_full() {
            match timeout(how.stall, answer.body.next()).await {
                Ok(Some(Ok(frame))) => {
                    let before = writer.received();
                    writer.write(&frame);
                    how.arrived.add(writer.received() - before);
                    how.rate_limit.wait(frame.len()).await;
                }
                Ok(Some(Err(error))) => return Err(broken_off(error)),
                Ok(None) => return Err(Fault::passing("the body ended early")),
                Err(_) => {
                    let seconds = how.stall.as_secs_f32();
                    return Err(Fault::passing(format!("no byte for {seconds} s")));
                }
            }
        }
        Ok(())
    }

    /// Checks the range, length and ETag of the response against the request.
    fn check_range(
        object: &Object,
        range: &Range<u64>,
        answer: &GetObjectOutput,
    ) -> Result<(), Fault> {
        let other = |etag: &String| answer.e_tag().is_some_and(|given| given != etag);
        if object.etag.as_ref().is_some_and(other) {
            return Err(Fault::passing("another version of the object was given"));
        }
        let expected = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
        let whole = *range == (0..object.size);
        let length = answer.content_length().and_then(|n| u64::try_from(n).ok());
        match answer.content_range() {
            Some(given) if *given == expected => {}
            None if whole => {}
            Some(given) => {
                return Err(Fault::passing(format!("asked for {expected}, given {given:?}")));
            }
            None => return Err(Fault::passing("the range was ignored")),
        }
        if length != Some(range.end - range.start) {
            return Err(Fault::passing("the body has another length than was asked for"));
        }
        Ok(())
    }
}

#[async_trait]
impl Objects for S3 {
    fn address(&self, path: &str) -> String {
        format!("s3://{}/{}", self.bucket, self.key(path))
    }

    async fn list(&self) -> Result<Vec<Object>, Fault> {
        let start = self.key("");
        let mut objects = Vec::new();
        let (mut before, mut next) = (None, None);
        loop {
            let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(&start);
            let page = self.ask("", request.set_continuation_token(next).send()).await?;
            objects.extend(page.contents().iter().filter_map(|object| {
                let path = object.key()?.strip_prefix(&start)?;
                // S3 consoles create such an object for an empty folder.
                let is_file = !path.is_empty() && !path.ends_with('/');
                let size = u64::try_from(object.size()?).ok()?;
                let etag = object.e_tag().map(str::to_owned);
                is_file.then(|| Object { path: path.to_owned(), size, etag })
            }));
            if objects.len() > MOST_OBJECTS {
                let why = format!("it has more than {MOST_OBJECTS} objects");
                return Err(unusable(self.address(""), &why));
            }
            let token = page.next_continuation_token().map(str::to_owned);
            if token.is_none() || token == before {
                return Ok(objects);
            }
            (before, next) = (token.clone(), token);
        }
    }

    async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>, Fault> {
        let request = self.client.get_object().bucket(&self.bucket).key(self.key(path));
        let mut answer = match self.ask(path, request.send()).await {
            Err(Fault::Lasting(StoreError::Missing { .. })) => return Ok(None),
            other => other?,
        };
        let mut bytes = BytesMut::new();
        while let Some(frame) =
            timeout(ANSWER, answer.body.next()).await.map_err(|_| Fault::passing("no byte came"))?
        {
            bytes.extend(frame.map_err(broken_off)?);
            if bytes.len() as u64 > most {
                let why = format!("it has more than {most} bytes");
                return Err(unusable(self.address(path), &why));
            }
        }
        Ok(Some(bytes.freeze()))
    }

    async fn read(
        &self,
        object: &Object,
        range: Range<u64>,
        mut writer: ChunkWriter,
        how: Reading<'_>,
    ) -> (ChunkWriter, Result<(), Fault>) {
        let done = self.receive(object, range, &mut writer, how).await;
        (writer, done)
    }

    async fn put(&self, path: &str, content: Vec<u8>, only_new: bool) -> Result<bool, Fault> {
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(path));
        let request = request.set_if_none_match(only_new.then(|| "*".to_owned()));
        match self.ask(path, request.body(ByteStream::from(content)).send()).await {
            Ok(_) => Ok(true),
            Err(Fault::Lasting(StoreError::Changed { .. })) if only_new => Ok(false),
            Err(other) => Err(other),
        }
    }

    async fn names(&self, prefix: &str, most: usize) -> Result<Vec<String>, Fault> {
        let (start, top) = (self.key(prefix), self.key(""));
        let (mut names, mut next) = (Vec::new(), None);
        loop {
            let left = i32::try_from(most - names.len()).unwrap_or(PAGE).min(PAGE);
            let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(&start);
            let request = request.max_keys(left).set_continuation_token(next);
            let page = self.ask(prefix, request.send()).await?;
            let keys = page.contents().iter().filter_map(|object| object.key());
            names.extend(keys.filter_map(|key| Some(key.strip_prefix(&top)?.to_owned())));
            next = page.next_continuation_token().map(str::to_owned);
            if next.is_none() || page.contents().is_empty() || names.len() >= most {
                return Ok(names);
            }
        }
    }

    async fn remove(&self, path: &str) -> Result<(), Fault> {
        let request = self.client.delete_object().bucket(&self.bucket).key(self.key(path));
        match self.ask(path, request.send()).await {
            Ok(_) | Err(Fault::Lasting(StoreError::Missing { .. })) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

/// Raw response that has an HTTP status.
pub(crate) trait HasStatus {
    fn status(&self) -> u16;
}

impl HasStatus for aws_smithy_runtime_api::client::orchestrator::HttpResponse {
    fn status(&self) -> u16 {
        self.status().as_u16()
    }
}

/// Classifies an error of the SDK as permanent or retryable.
fn fault<E, R>(object: String, error: SdkError<E, R>) -> Fault
where
    E: ProvideErrorMetadata + fmt::Debug + std::error::Error + Send + Sync + 'static,
    R: HasStatus + fmt::Debug + Send + Sync + 'static,
{
    let SdkError::ServiceError(answer) = &error else {
        if no_credentials(&error) {
            let what = "no AWS credentials were found: a task or instance has a role, a person a profile \
                        or AWS_ACCESS_KEY_ID";
            return StoreError::Refused(what.to_owned()).into();
        }
        let why = match &error {
            SdkError::ConstructionFailure(_) => {
                let failure = Failure::new("the request cannot be made", error);
                return StoreError::unusable(object, failure).into();
            }
            SdkError::TimeoutError(_) => "no answer in time",
            SdkError::DispatchFailure(failure) if failure.is_timeout() => "no answer in time",
            SdkError::ResponseError(_) => "the answer cannot be read",
            _ => "the store cannot be asked",
        };
        return Fault::Passing(Failure::new(why, error));
    };
    let status = answer.raw().status();
    let code = answer.err().code().unwrap_or(match status {
        404 => "NotFound",
        412 => "PreconditionFailed",
        _ => "no code",
    });
    match (status, code) {
        (_, "NoSuchBucket") => StoreError::unusable(object, "the bucket does not exist").into(),
        (404, _) | (_, "NoSuchKey") => StoreError::Missing { object }.into(),
        (412 | 416, _) => StoreError::Changed { object }.into(),
        // These succeed with fresh credentials if the old ones had expired.
        (_, code) if PASSING.contains(&code) => Fault::passing(format!("{status} {code}")),
        (401 | 403, _) => {
            let code = match answer.err().message() {
                Some(said) => format!("{code}: {}", one_line(said)),
                None => code.to_owned(),
            };
            StoreError::Denied { object, code }.into()
        }
        (301, _) | (_, "PermanentRedirect" | "AuthorizationHeaderMalformed") => {
            let why = "the bucket is in another region: set `region`, --region or AWS_REGION";
            StoreError::unusable(object, why).into()
        }
        (501, _) => {
            StoreError::unusable(object, format!("the store cannot do this ({code})")).into()
        }
        (408 | 429 | 500.., _) => Fault::passing(format!("{status} {code}")),
        _ => StoreError::unusable(object, format!("the store says {status} {code}")).into(),
    }
}

/// Returns a message of the store as one line of bounded length.
fn one_line(said: &str) -> String {
    let words: Vec<&str> = said.split(|c: char| c.is_whitespace() || c.is_control()).collect();
    words.join(" ").trim().chars().take(MAX_MESSAGE_CHARS).collect()
}

/// Returns true if the request was not sent because there are no credentials.
fn no_credentials(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        matches!(cause.downcast_ref(), Some(CredentialsError::CredentialsNotLoaded(_)))
    })
}

/// Returns the failure of a body that broke off.
fn broken_off(error: impl Into<Cause>) -> Fault {
    Fault::Passing(Failure::new("the body broke off", error))
}
