//! Tests of the calls to KMS: key, number and encryption context.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use nsbridge_aws::Credentials;
use nsbridge_protocol::{KeyId, RequestId};
use nsbridge_testkit::http::{Answer, Server};

use super::service::{Aws, Service, UnwrappedKey};
use super::{KEPT_FOR, KmsProvider};
use crate::key::{DataKey, Key, Provider};
use crate::provider::{KeyError, KeyProvider, Scope};
use crate::request::{RequestFrame, RequestHead};

/// Fake service that does not encrypt wrapped keys, and records its calls.
#[derive(Debug, Default)]
struct Stub {
    asked: Mutex<Vec<String>>,
}

impl Stub {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn note(&self, what: &str, id: &KeyId, scope: &Scope) {
        let line = format!("{what} {id} {} {}", scope.model, scope.tenant);
        self.asked.lock().unwrap().push(line);
    }
}

#[async_trait]
impl Service for Stub {
    async fn generate(&self, id: &KeyId, scope: &Scope) -> Result<(Key, Vec<u8>), KeyError> {
        self.note("generate", id, scope);
        let key = Key::generate().unwrap();
        Ok((key.clone(), key.bytes().to_vec()))
    }

    async fn decrypt(
        &self,
        id: &KeyId,
        wrapped: &[u8],
        scope: &Scope,
    ) -> Result<UnwrappedKey, KeyError> {
        self.note("decrypt", id, scope);
        Ok(UnwrappedKey { key: Key::from_bytes(wrapped.try_into().unwrap()), arn: None })
    }
}

fn scope(tenant: &str) -> Scope {
    Scope { model: "tale-7m".parse().unwrap(), tenant: tenant.parse().unwrap() }
}

fn ids(names: &[&str]) -> Vec<KeyId> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn provider(names: &[&str]) -> (Arc<Stub>, KmsProvider) {
    let stub = Arc::new(Stub::default());
    (stub.clone(), KmsProvider::of(stub, ids(names)))
}

fn sealed(data: &DataKey, scope: &Scope) -> Vec<u8> {
    let head = RequestHead {
        id: RequestId::from_bytes([1; 16]),
        created_at_ms: 0,
        expires_at_ms: 1,
        model: scope.model.clone(),
        tenant: scope.tenant.clone(),
        key_id: data.id.clone(),
    };
    data.seal(&head, b"x").unwrap().frame
}

#[tokio::test(start_paused = true)]
async fn what_a_client_seals_a_worker_opens_with_one_call_each() {
    let (client, seals) = provider(&["alias/a"]);
    let (worker, opens) = provider(&["alias/b", "alias/a"]);
    for _ in 0..5 {
        let data = seals.data_key(&scope("acme")).await.unwrap();
        assert_eq!((data.id.as_str(), data.provider), ("alias/a", Provider::Kms));
        let frame = sealed(&data, &scope("acme"));
        let frame = RequestFrame::parse(&frame).unwrap();
        let key = opens.open_key(&frame).await.unwrap();
        assert_eq!(frame.open(&key).unwrap().content, b"x");
    }
    assert_eq!(client.asked(), ["generate alias/a tale-7m acme"]);
    assert_eq!(worker.asked(), ["decrypt alias/a tale-7m acme"]);
}

#[tokio::test(start_paused = true)]
async fn each_tenant_has_a_data_key_of_its_own() {
    let (stub, seals) = provider(&["alias/a"]);
    let one = seals.data_key(&scope("one")).await.unwrap();
    let two = seals.data_key(&scope("two")).await.unwrap();
    assert_ne!(one.key, two.key);
    assert_eq!(stub.asked().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_data_key_serves_for_five_minutes_and_ten_thousand_requests() {
    let (stub, seals) = provider(&["alias/a"]);
    for _ in 0..10_000 {
        seals.data_key(&scope("acme")).await.unwrap();
    }
    assert_eq!(stub.asked().len(), 1);
    seals.data_key(&scope("acme")).await.unwrap();
    assert_eq!(stub.asked().len(), 2);
    tokio::time::advance(KEPT_FOR).await;
    seals.data_key(&scope("acme")).await.unwrap();
    assert_eq!(stub.asked().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_not_on_the_list_is_denied_without_a_call() {
    let (_, seals) = provider(&["alias/stranger"]);
    let (worker, opens) = provider(&["alias/a"]);
    let data = seals.data_key(&scope("acme")).await.unwrap();
    let frame = sealed(&data, &scope("acme"));
    let denied = opens.open_key(&RequestFrame::parse(&frame).unwrap()).await.unwrap_err();
    assert!(matches!(denied, KeyError::Denied { .. }), "{denied}");
    assert!(worker.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wrapped_key_is_asked_for_again_under_another_context() {
    let (_, seals) = provider(&["alias/a"]);
    let (worker, opens) = provider(&["alias/a"]);
    let data = seals.data_key(&scope("acme")).await.unwrap();
    for tenant in ["acme", "other"] {
        let frame = sealed(&data, &scope(tenant));
        opens.open_key(&RequestFrame::parse(&frame).unwrap()).await.unwrap();
    }
    let lines = ["decrypt alias/a tale-7m acme", "decrypt alias/a tale-7m other"];
    assert_eq!(worker.asked(), lines);
}

#[tokio::test(start_paused = true)]
async fn a_keyrings_request_is_another_providers() {
    let (_, opens) = provider(&["alias/a"]);
    let data = DataKey::of_keyring("alias/a".parse().unwrap(), Key::generate().unwrap());
    let frame = sealed(&data, &scope("acme"));
    let refused = opens.open_key(&RequestFrame::parse(&frame).unwrap()).await;
    assert_eq!(refused, Err(KeyError::OtherProvider));
    let (_, empty) = provider(&[]);
    assert_eq!(empty.data_key(&scope("acme")).await.unwrap_err(), KeyError::OtherProvider);
}

/// `127.1` leads to this machine but is not recognized as loopback, so nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn m4_an_endpoint_without_tls_is_not_asked() {
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    let server = Server::start(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        Answer::new(400, "{\"__type\":\"DisabledException\"}")
    });
    let url = server.await.unwrap().url("").replace("127.0.0.1", "127.1");
    let keys = Credentials::new("test", "test");
    let aws =
        Aws::new(&nsbridge_aws::sdk_config(Some("eu-central-1"), Some(&url), Some(&keys)).await);
    let id = "alias/a".parse().unwrap();
    let made = aws.generate(&id, &scope("acme")).await.unwrap_err();
    let opened = aws.decrypt(&id, &[7; 100], &scope("acme")).await.unwrap_err();
    for error in [made, opened] {
        let KeyError::Busy { why } = &error else { panic!("{error:?}") };
        let told = why.contains(&url) && why.contains("has no TLS");
        assert!(told && why.contains("AWS_ENDPOINT_URL_KMS"), "{why}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0, "a call went out");
}
