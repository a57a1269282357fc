//! Tests of every KMS response and its effect on the request.

use futures_util::future::join_all;
use nsbridge_crypto::{DataKey, Key, KeyError, KeyProvider, KmsError, Provider};
use nsbridge_testkit::http::{Answer, Server};

use crate::{ALIAS, builder, parse, provider, scope, sealed};

/// Unwraps a key and generates one, with a KMS that responds like this; returns both errors.
async fn both(answer: Answer) -> [KeyError; 2] {
    let server = Server::start(move |_| answer.clone()).await.unwrap();
    let keys = provider(&server.url(""), ALIAS).await;
    let made = keys.data_key(&scope("acme")).await.unwrap_err();
    let (id, key) = (ALIAS.parse().unwrap(), Key::generate().unwrap());
    let data = DataKey { id, key, provider: Provider::Kms, wrapped: vec![7; 100] };
    let frame = sealed(&data, &scope("acme"));
    let opened = keys.open_key(&parse(&frame)).await.unwrap_err();
    [opened, made]
}

#[tokio::test]
async fn m4_a_provider_for_an_endpoint_without_tls_is_not_built() {
    let url = "http://127.1:4566";
    let refused = builder(url, ALIAS).build().await.unwrap_err();
    assert_eq!(refused, KmsError::NoTls { url: url.to_owned() });
    let told = refused.to_string();
    assert!(told.contains(url) && told.contains("without TLS"), "{told}");
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
    let keys = provider(&url, ALIAS).await;
    let error = keys.data_key(&scope("acme")).await.unwrap_err();
    assert_eq!(error, KeyError::Busy { why: "it cannot be reached".into() });
}

#[tokio::test]
async fn kms_is_told_the_key_and_the_context_and_no_more() {
    let answer = format!("{{\"Plaintext\":\"{KEY_IN_BASE64}\",\"CiphertextBlob\":\"AAAA\"}}");
    let server = Server::start(move |_| Answer::new(200, &answer)).await.unwrap();
    let keys = provider(&server.url(""), ALIAS).await;
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
