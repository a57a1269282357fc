//! Request to create a batch.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api::files::Expiry;
use crate::archive::KEPT_S;
use crate::archive::batch::Endpoint;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, metadata};

/// Longest window: 7 days.
const LONGEST_S: u64 = 7 * 24 * 3600;

/// Parsed request.
#[derive(Debug)]
pub(super) struct CreateBatch {
    pub(super) input: String,
    pub(super) endpoint: Endpoint,
    pub(super) window: String,
    pub(super) window_s: u64,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) output_kept_s: u64,
}

/// Field `output_expires_after`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpiresAfter {
    anchor: String,
    seconds: u64,
}

impl CreateBatch {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(super) fn parse(body: &[u8]) -> Result<Self> {
        let mut fields = Fields::parse(body)?;
        let input = fields.need("input_file_id")?;
        let path: String = fields.need("endpoint")?;
        let endpoint = Endpoint::of(&path).ok_or_else(|| {
            let message = "`endpoint` must be `/v1/chat/completions`, `/v1/completions`, \
                           `/v1/responses`, `/v1/embeddings` or `/v1/moderations`";
            ApiError::field("endpoint", message)
        })?;
        let window: String = fields.need("completion_window")?;
        let window_s = seconds(&window).filter(|seconds| (1..=LONGEST_S).contains(seconds));
        let window_s = window_s.ok_or_else(|| {
            let message = "`completion_window` must be a number of hours, minutes or seconds such as \
                           `24h`, `30m` or `90s`, and 168 hours at most";
            ApiError::field("completion_window", message)
        })?;
        let metadata = metadata(&mut fields)?;
        let expires: Option<ExpiresAfter> = fields.take("output_expires_after")?;
        let output_kept_s = match expires {
            None => KEPT_S,
            Some(ExpiresAfter { anchor, seconds }) => {
                Expiry { anchor: Some(anchor), seconds: Some(seconds) }
                    .checked("output_expires_after")?
                    .unwrap_or(KEPT_S)
            }
        };
        fields.finish()?;
        Ok(Self { input, endpoint, window, window_s, metadata, output_kept_s })
    }
}

/// Returns a time such as `24h` in seconds.
fn seconds(window: &str) -> Option<u64> {
    let unit = match window.chars().last()? {
        'h' => 3600,
        'm' => 60,
        's' => 1,
        _ => return None,
    };
    let number = window.get(..window.len().checked_sub(1)?)?;
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_plain.then(|| number.parse().ok())??;
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::{CreateBatch, seconds};
    use serde_json::{Value, json};

    #[test]
    fn a_window_is_a_number_with_a_unit() {
        assert_eq!(seconds("24h"), Some(86_400));
        assert_eq!((seconds("30m"), seconds("90s")), (Some(1800), Some(90)));
        for odd in ["", "h", "24", "24 h", "-1h", "+1h", "1.5h", "99999999999999999999h", "9d"] {
            assert_eq!(seconds(odd), None, "{odd}");
        }
    }

    #[track_caller]
    fn refused(name: &str, value: Value) {
        let mut body = json!({
            "input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"
        });
        assert!(CreateBatch::parse(body.to_string().as_bytes()).is_ok());
        body[name] = value;
        let error = CreateBatch::parse(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.json()["error"]["param"], name);
    }

    #[test]
    fn what_is_wrong_with_a_batch_is_named() {
        refused("endpoint", json!("/v1/videos"));
        refused("completion_window", json!("169h"));
        refused("completion_window", json!("0h"));
        refused("metadata", json!({ "a": 1 }));
        refused("metadata", json!({ "a": "x".repeat(513) }));
        refused("output_expires_after", json!({ "anchor": "created_at", "seconds": 1 }));
        refused("output_expires_after", json!({ "anchor": "never", "seconds": 3600 }));
        refused("priority", json!("high"));
    }
}
