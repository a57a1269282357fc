//! Signed requests to AWS.
//!
//! Two actions of two services are called. Their SDKs would be the largest crates of the command.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri};
use nsbridge_aws::SdkConfig;
use nsbridge_observe::Http;
use tokio::time::timeout;

/// Time limit for credentials, which an endpoint on the machine may give.
const CREDENTIALS_WITHIN: Duration = Duration::from_secs(10);

/// Service of AWS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// Name as the SDKs have it, in `AWS_ENDPOINT_URL_<ID>`.
    pub(crate) id: &'static str,
    /// Name in its address and in signatures.
    pub(crate) name: &'static str,
}

/// Client of a service in a region.
#[derive(Debug)]
pub(crate) struct Aws {
    service: Service,
    region: String,
    endpoint: Uri,
    config: SdkConfig,
    http: Http,
}

impl Aws {
    /// Creates a client. Credentials, region and endpoint come from where AWS's own tools look.
    ///
    /// # Errors
    ///
    /// Returns an error without a region.
    pub(crate) async fn new(service: Service, region: Option<&str>) -> Result<Self> {
        let config = nsbridge_aws::sdk_config(region, None, None).await;
        let region = config.region().context("no region is set: set AWS_REGION, or `region`")?;
        let region = region.to_string();
        let endpoint = nsbridge_aws::endpoint(&config, service.id);
        let endpoint = endpoint.unwrap_or_else(|| address(service, &region));
        let endpoint: Uri =
            endpoint.parse().with_context(|| format!("the endpoint {endpoint:?}"))?;
        let http = Http::new(&endpoint)?;
        Ok(Self { service, region, endpoint, config, http })
    }

    /// Sends a request, and checks that it succeeded.
    ///
    /// # Errors
    ///
    /// Returns an error without credentials or without an answer, or with the service's own message.
    pub(crate) async fn post(&self, headers: &[(&'static str, &str)], body: String) -> Result<()> {
        let provider = self.config.credentials_provider();
        let provider = provider.context("no place for credentials of AWS is set")?;
        let credentials = timeout(CREDENTIALS_WITHIN, provider.provide_credentials()).await;
        let credentials = credentials.map_err(|_| anyhow!("no credentials of AWS came in time"))?;
        let credentials = credentials.context("no credentials of AWS were found")?;
        let answer = self.http.send(self.signed(credentials, headers, body)?).await?;
        if answer.status == StatusCode::OK {
            return Ok(());
        }
        bail!("status {}: {}", answer.status.as_u16(), message(&answer.text))
    }

    fn signed(
        &self,
        credentials: Credentials,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Result<Request<Bytes>> {
        let mut request = Request::post(self.endpoint.clone());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Bytes::from(body))?;
        let identity = credentials.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(self.service.name)
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()?;
        let uri = self.endpoint.to_string();
        let body = SignableBody::Bytes(request.body());
        let signable = SignableRequest::new("POST", uri, headers.iter().copied(), body)?;
        let (instructions, _) = sign(signable, &params.into())?.into_parts();
        instructions.apply_to_request_http1x(&mut request);
        Ok(request)
    }
}

/// Returns the address of a service.
fn address(service: Service, region: &str) -> String {
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{}.{region}.{suffix}/", service.name)
}

/// Returns the message of an error, which is JSON or XML.
fn message(text: &str) -> String {
    let between = |start: &str, end: &str| {
        let (_, rest) = text.split_once(start)?;
        Some(rest.split_once(end)?.0.to_owned())
    };
    let json = || {
        let error: serde_json::Value = serde_json::from_str(text).ok()?;
        let said = error.get("message").or_else(|| error.get("Message"))?.as_str()?;
        let kind = error.get("__type").and_then(|kind| kind.as_str()).unwrap_or_default();
        let kind = kind.rsplit('#').next().unwrap_or_default();
        Some(format!("{kind}: {said}"))
    };
    let xml = || {
        let kind = between("<Code>", "</Code>").unwrap_or_default();
        Some(format!("{kind}: {}", between("<Message>", "</Message>")?))
    };
    let said = json().or_else(xml).unwrap_or_else(|| "an answer without a message".to_owned());
    nsbridge_base::plain(&said).into_owned()
}

#[cfg(test)]
mod tests {
    //! Tests of addresses and messages.

    use super::{Service, address, message};

    #[test]
    fn the_address_of_a_service_has_its_region() {
        let ecs = Service { id: "ECS", name: "ecs" };
        assert_eq!(address(ecs, "eu-central-1"), "https://ecs.eu-central-1.amazonaws.com/");
        assert_eq!(address(ecs, "cn-north-1"), "https://ecs.cn-north-1.amazonaws.com.cn/");
    }

    #[test]
    fn the_message_of_an_error_is_found_in_json_and_in_xml() {
        for (text, expected) in [
            ("{\"__type\":\"com.amazonaws#Ab\",\"message\":\"no\"}", "Ab: no"),
            ("{\"Message\":\"no\\u001b[2J\"}", ": no"),
            ("<E><Code>AccessDenied</Code><Message>no</Message></E>", "AccessDenied: no"),
            ("<html>", "an answer without a message"),
        ] {
            assert!(message(text).starts_with(expected), "{}", message(text));
            assert!(!message(text).contains('\u{1b}'));
        }
    }
}
