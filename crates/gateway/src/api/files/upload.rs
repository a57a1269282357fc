//! Upload of a file, which is stored as it arrives.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{Multipart, State};
use axum::{Extension, Json};
use nsbridge_gateway_access::Caller;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{archive, shortened};
use crate::archive::file::{File, Purpose};
use crate::archive::{Archive, Draft, KEPT_S};
use crate::error::{ApiError, Result};
use crate::ids;
use crate::state::App;

/// Maximum size of a field of text, in bytes.
const TEXT: usize = 1024;

/// Longest name of a file, in characters.
const NAME: usize = 255;

/// Lowest average rate of an upload, in bytes of its file per second.
const RATE: u64 = 16 * 1024;

/// Time limits of an upload: each part must arrive within the idle time, and the file at [`RATE`]
/// or faster.
struct Pace {
    began: Instant,
    idle: Duration,
    /// Bytes of the file so far.
    bytes: u64,
}

impl Pace {
    fn new(idle: Duration) -> Self {
        Self { began: Instant::now(), idle, bytes: 0 }
    }

    /// Returns the time limit of the next part.
    fn limit(&self) -> Duration {
        let due = self.idle + Duration::from_millis(self.bytes.saturating_mul(1000) / RATE);
        due.saturating_sub(self.began.elapsed()).min(self.idle)
    }
}

/// Time after which a file is removed, as a client asks for it.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    pub(crate) anchor: Option<String>,
    pub(crate) seconds: Option<u64>,
}

impl Expiry {
    /// Returns the number of seconds; `None` if the client asked for none.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if the time is not one that the interface has.
    pub(crate) fn checked(&self, field: &str) -> Result<Option<u64>> {
        match (self.anchor.as_deref(), self.seconds) {
            (None, None) => Ok(None),
            (Some("created_at"), Some(seconds)) if (3600..=KEPT_S).contains(&seconds) => {
                Ok(Some(seconds))
            }
            _ => Err(ApiError::field(
                field,
                format!(
                    "`{field}` must have the anchor `created_at` and from 3600 to {KEPT_S} seconds"
                ),
            )),
        }
    }
}

/// Stores a file.
pub(crate) async fn upload(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>> {
    let archive = archive(&app)?;
    let refused = |_| {
        ApiError::bad_request(
            "the body must be multipart/form-data with the fields `purpose` and `file`",
        )
    };
    let mut form = form.map_err(refused)?;
    let mut pace = Pace::new(app.settings.body_timeout);
    let (mut draft, mut purpose, mut expiry) = (None, None, Expiry::default());
    loop {
        let field = timeout(pace.limit(), form.next_field()).await.map_err(late)?;
        let Some(field) = field.map_err(cut)? else { break };
        match field.name().unwrap_or_default() {
            "purpose" => purpose = Some(checked_purpose(&text(field, &pace).await?)?),
            "expires_after[anchor]" => expiry.anchor = Some(text(field, &pace).await?),
            "expires_after[seconds]" => {
                let seconds = text(field, &pace).await?;
                expiry.seconds = Some(seconds.parse().unwrap_or_default());
            }
            "file" if draft.is_none() => {
                draft = Some(file(archive, &caller, field, &mut pace).await?);
            }
            "file" => return Err(ApiError::field("file", "`file` must be there once")),
            other => {
                let other = shortened(other);
                let message = format!("the field `{other}` is not supported");
                return Err(ApiError::field(&other, message).coded("unsupported_parameter"));
            }
        }
    }
    let missing = |name: &str| ApiError::field(name, format!("`{name}` is missing"));
    purpose.ok_or_else(|| missing("purpose"))?;
    let mut draft: Draft = draft.ok_or_else(|| missing("file"))?;
    let kept_s = expiry.checked("expires_after")?.unwrap_or(KEPT_S);
    draft.file.expires_at = Some(draft.file.created_at.saturating_add(kept_s));
    let (id, file) = archive.complete(draft).await?;
    Ok(Json(file.json(id)))
}

fn checked_purpose(purpose: &str) -> Result<Purpose> {
    if purpose == Purpose::Batch.as_str() {
        return Ok(Purpose::Batch);
    }
    let message =
        format!("files of the purpose `{}` are not served: `batch` is", shortened(purpose));
    Err(ApiError::field("purpose", message))
}

/// Reads a field of text.
async fn text(mut field: Field<'_>, pace: &Pace) -> Result<String> {
    let name = shortened(field.name().unwrap_or_default());
    let mut text = Vec::new();
    while let Some(bytes) = chunk(&mut field, pace).await? {
        if text.len() + bytes.len() > TEXT {
            return Err(ApiError::field(&name, format!("`{name}` has more than {TEXT} bytes")));
        }
        text.extend_from_slice(&bytes);
    }
    String::from_utf8(text)
        .map_err(|_| ApiError::field(&name, format!("`{name}` must be text in UTF-8")))
}

/// Stores the content of the field of the file.
async fn file(
    archive: &Archive,
    caller: &Caller,
    mut field: Field<'_>,
    pace: &mut Pace,
) -> Result<Draft> {
    let named = field.file_name().unwrap_or("file.jsonl");
    let file = File {
        tenant: caller.tenant.clone(),
        name: named.chars().take(NAME).collect(),
        purpose: Purpose::Batch,
        bytes: 0,
        chunks: 0,
        created_at: ids::seconds(SystemTime::now()),
        expires_at: None,
        whole: false,
    };
    let mut draft = archive.draft(file).await?;
    while let Some(bytes) = chunk(&mut field, pace).await? {
        pace.bytes += bytes.len() as u64;
        if draft.exceeds(bytes.len()) {
            let most = archive.limits.max_file;
            let is_large = draft.file.bytes + bytes.len() as u64 > most;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            return Err(if is_large { ApiError::too_large(most) } else { archive.full() });
        }
        draft = archive.with_store(move |_| draft.push(&bytes).map(|()| draft)).await?;
    }
    Ok(draft)
}

/// Reads the next part of a field.
async fn chunk(field: &mut Field<'_>, pace: &Pace) -> Result<Option<Bytes>> {
    timeout(pace.limit(), field.chunk()).await.map_err(late)?.map_err(cut)
}

fn late(_: tokio::time::error::Elapsed) -> ApiError {
    ApiError::late_body()
}

#[expect(clippy::needless_pass_by_value, reason = "the form of `map_err`")]
fn cut(error: MultipartError) -> ApiError {
    tracing::debug!(status = %error.status(), "an upload is cut or malformed");
    ApiError::bad_request("the body is cut, or not valid multipart/form-data")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::{Pace, RATE};

    #[tokio::test(start_paused = true)]
    async fn an_upload_below_the_lowest_rate_runs_out_of_time() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(30 * second);
        assert_eq!(pace.limit(), 30 * second);
        // A file that is ahead has no more than the idle time for a part.
        pace.bytes = 100 * RATE;
        assert_eq!(pace.limit(), 30 * second);
        advance(120 * second).await;
        assert_eq!(pace.limit(), 10 * second);
        pace.bytes += 5 * RATE;
        assert_eq!(pace.limit(), 15 * second);
        advance(15 * second).await;
        assert_eq!(pace.limit(), Duration::ZERO);
    }
}
