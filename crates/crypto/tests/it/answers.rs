//! Tests of every KMS response and its effect on the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use nsbridge_crypto::{DataKey, Key, KeyError, KeyProvider, Provider};
use nsbridge_testkit::http::{Answer, Server};

use crate::{ALIAS, parse, provider, scope, sealed};

/// Unwraps a key and generates one, with a KMS that responds like this; returns both errors.
async fn both(answer: Answer) -> [KeyError; 2] {
    let server = Server::start(move |_| answer.clone()).await.unwrap();
    let keys = provider(&server.url(""), ALIAS);
    let made = keys.data_key(&scope("acme")).await.unwrap_err();
    let (id, key) = (ALIAS.parse().unwrap(), Key::generate().unwrap());
    let data = DataKey { id, key, provider: Provider::Kms, wrapped: vec![7; 100] };
    let frame = sealed(&data, &scope("acme"));
    let opened = keys.open_key(&parse(&frame)).await.unwrap_err();
    [opened, made]
}

/// `127.1` leads to this machine but is not recognized as loopback, so nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn m4_an_endpoint_without_tls_is_not_asked() {
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    let server = Server::start(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        says(400, "DisabledException")
    });
    let url = server.await.unwrap().url("").replace("127.0.0.1", "127.1");
    let keys = provider(&url, ALIAS);
    let made = keys.data_key(&scope("acme")).await.unwrap_err();
    let (id, key) = (ALIAS.parse().unwrap(), Key::generate().unwrap());
    let data = DataKey { id, key, provider: Provider::Kms, wrapped: vec![7; 100] };
    let opened = keys.open_key(&parse(&sealed(&data, &scope("acme")))).await.unwrap_err();
    for error in [made, opened] {
        let KeyError::Busy { why } = &error else { panic!("{error:?}") };
        let told = why.contains(&url) && why.contains("has no TLS");
        assert!(told && why.contains("AWS_ENDPOINT_URL_KMS"), "{why}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0, "a call went out");
}

fn says(status: u16, code: &str) -> Answer {
    Answer::new(status, &format!("{{\"__type\":\"{code}\",\"message\":\"canary\"}}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_no_requests_fault() {
    let codes = [
        (400, "ThrottlingException"),
        (400, "LimitExceededException"),
        (400, "ExpiredTokenException"),
        (400, "UnrecognizedClientException"),
        (500, "KMSInternalException"),
        (503, "DependencyTimeoutException"),
        (500, "KeyUnavailableException"),
        (500, "SomethingOfALaterVersion"),
    ];
    join_all(codes.map(async |(status, code)| {
        for error in both(says(status, code)).await {
            assert_eq!(error, KeyError::Busy { why: code.to_owned() });
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_for_good_and_says_which() {
    let codes = [
        "AccessDeniedException",
        "com.amazonaws.kms#InvalidCiphertextException",
        "IncorrectKeyException",
        "InvalidKeyUsageException",
        "KMSInvalidStateException",
        "NotFoundException",
        "ValidationException",
    ];
    join_all(codes.map(async |code| {
        for error in both(says(400, code)).await {
            let (id, why) = (ALIAS.parse().unwrap(), code.rsplit('#').next().unwrap().to_owned());
            assert_eq!(error, KeyError::Denied { id, why });
        }
    }))
    .await;
}

#[tokio::test]
async fn a_disabled_key_is_told_as_such() {
    for error in both(says(400, "DisabledException")).await {
        assert_eq!(error, KeyError::Disabled { id: ALIAS.parse().unwrap() });
    }
}

#[tokio::test]
async fn answers_that_are_none_are_no_requests_fault() {
    for answer in [Answer::new(503, ""), Answer::new(200, "{\"Plain"), Answer::raw("")] {
        for error in both(answer).await {
            assert!(matches!(error, KeyError::Busy { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn a_key_of_another_length_is_refused() {
    let answer = "{\"Plaintext\":\"AAAA\",\"CiphertextBlob\":\"AAAA\"}";
    for error in both(Answer::new(200, answer)).await {
        assert!(matches!(error, KeyError::Denied { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_no_requests_fault() {
    for error in both(Answer::never()).await {
        assert_eq!(error, KeyError::Busy { why: "no answer in time".into() });
    }
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_no_requests_fault() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let error = provider(&url, ALIAS).data_key(&scope("acme")).await.unwrap_err();
    assert_eq!(error, KeyError::Busy { why: "it cannot be reached".into() });
}

#[tokio::test]
async fn kms_is_told_the_key_and_the_context_and_no_more() {
    let answer = format!("{{\"Plaintext\":\"{KEY_IN_BASE64}\",\"CiphertextBlob\":\"AAAA\"}}");
    let server = Server::start(move |_| Answer::new(200, &answer)).await.unwrap();
    let keys = provider(&server.url(""), ALIAS);
    let data = keys.data_key(&scope("acme")).await.unwrap();
    let frame = sealed(&data, &scope("acme"));
    keys.open_key(&parse(&frame)).await.unwrap();
    let context = "\"EncryptionContext\":{\"app\":\"nsbridge\",\"model\":\"tale-7m\",\
                   \"tenant\":\"acme\",\"v\":\"1\"}";
    let seen = server.seen();
    let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let asked: Vec<_> = seen.iter().map(|seen| seen.header("x-amz-target").unwrap()).collect();
    assert_eq!(asked, ["TrentService.GenerateDataKey", "TrentService.Decrypt"]);
    for (seen, rest) in seen.iter().zip(["\"KeySpec\":\"AES_256\"", "\"CiphertextBlob\":\"AAAA\""])
    {
        let expected = format!("{{{context},\"KeyId\":\"{ALIAS}\",{rest}}}");
        assert_eq!(parsed(seen.text()), parsed(&expected));
    }
}

/// Key of thirty-two zero bytes.
const KEY_IN_BASE64: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
