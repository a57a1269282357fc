//! Tests of signatures and credentials.

use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use nsbridge_testkit::s3::{EcsCredentials, Lifetime, S3Server};

use super::{client, client_of};

fn server() -> S3Server {
    let server = S3Server::start().unwrap();
    server.put("models", "k", "here");
    server
}

/// Returns the error code of a read; `None` if it succeeds.
async fn refusal(client: &Client) -> Option<String> {
    let got = client.get_object().bucket("models").key("k").send().await;
    got.err().map(|error| error.code().unwrap_or_default().to_owned())
}

fn signed_by(server: &S3Server, access: &str, secret: &str, token: Option<&str>) -> Client {
    let token = token.map(str::to_owned);
    client(&server.endpoint(), Credentials::new(access, secret, token, None, "test"))
}

/// Requests credentials as the SDK does.
fn ask(ecs: &EcsCredentials, authorization: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let uri = ecs.uri();
    let (host, path) = uri.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n{authorization}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn field(body: &str, name: &str) -> String {
    let start = format!("\"{name}\":\"");
    body.split_once(&start).unwrap().1.split('"').next().unwrap().to_owned()
}

/// Returns a client with the credentials of one call.
fn client_from(server: &S3Server, ecs: &EcsCredentials) -> Client {
    let (status, body) = ask(ecs, &format!("Authorization: {}", ecs.authorization()));
    assert_eq!(status, 200);
    let [access, secret, token] =
        ["AccessKeyId", "SecretAccessKey", "Token"].map(|name| field(&body, name));
    signed_by(server, &access, &secret, Some(&token))
}

#[tokio::test]
async fn a_request_that_is_not_signed_well_is_refused() {
    let server = server();
    let (access, secret) = (server.access_key(), server.secret_key());
    assert_eq!(refusal(&client_of(&server)).await, None);
    let code = refusal(&signed_by(&server, "somebody", secret, None)).await;
    assert_eq!(code.as_deref(), Some("InvalidAccessKeyId"));
    let code = refusal(&signed_by(&server, access, "a guess", None)).await;
    assert_eq!(code.as_deref(), Some("SignatureDoesNotMatch"));
    let code = refusal(&signed_by(&server, access, secret, Some("of another"))).await;
    assert_eq!(code.as_deref(), Some("InvalidToken"));
}

#[tokio::test]
async fn credentials_of_a_task_differ_at_each_call_and_are_good_together() {
    let server = server();
    let ecs = EcsCredentials::start(&server, Lifetime::of(Duration::from_secs(900))).unwrap();
    let (one, two) = (client_from(&server, &ecs), client_from(&server, &ecs));
    assert_eq!(ecs.calls(), 2);
    assert_eq!(refusal(&one).await, None);
    assert_eq!(refusal(&two).await, None);
    let keys: Vec<_> = server.seen().into_iter().filter_map(|seen| seen.access_key).collect();
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
    ecs.expire_all();
    assert_eq!(refusal(&one).await.as_deref(), Some("ExpiredToken"));
    assert_eq!(refusal(&client_from(&server, &ecs)).await, None);
}

#[tokio::test]
async fn credentials_of_a_task_end_with_their_time_or_their_uses() {
    let server = server();
    let told = Duration::from_secs(900);
    let ecs = EcsCredentials::start(&server, Lifetime { told, kept: told, uses: Some(2) }).unwrap();
    let worn = client_from(&server, &ecs);
    assert_eq!(refusal(&worn).await, None);
    assert_eq!(refusal(&worn).await, None);
    assert_eq!(refusal(&worn).await.as_deref(), Some("ExpiredToken"));
    ecs.set_lifetime(Lifetime { told, kept: Duration::ZERO, uses: None });
    let late = client_from(&server, &ecs);
    assert_eq!(refusal(&late).await.as_deref(), Some("ExpiredToken"));
}

#[test]
fn a_task_without_its_token_gets_no_credentials() {
    let server = server();
    let ecs = EcsCredentials::start(&server, Lifetime::of(Duration::from_secs(900))).unwrap();
    assert_eq!(ask(&ecs, "Authorization: a guess").0, 401);
    assert_eq!(ecs.calls(), 0);
    let (_, body) = ask(&ecs, &format!("Authorization: {}", ecs.authorization()));
    let expiration = field(&body, "Expiration");
    assert!(expiration.len() >= 20 && expiration.ends_with('Z'), "{expiration}");
}
