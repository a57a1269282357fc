//! Round trips through moto, a server that stores keys.

use aws_sdk_kms::Client;
use nsbridge_crypto::{DataKey, Key, KeyError, KeyProvider, Provider};
use nsbridge_testkit::Moto;

use crate::{REGION, credentials, parse, provider, scope, sealed};

/// Starts a server and returns it with the ARN of a key in it.
async fn kms() -> (Moto, String) {
    let moto = tokio::task::spawn_blocking(Moto::start).await.unwrap().unwrap();
    let (url, keys) = (moto.url(), credentials());
    let config = nsbridge_aws::sdk_config(Some(REGION), Some(&url), Some(&keys)).await;
    let client = Client::new(&config);
    let made = client.create_key().send().await.unwrap();
    let arn = made.key_metadata.unwrap().arn.unwrap();
    let alias = client.create_alias().alias_name("alias/nsbridge").target_key_id(&arn);
    alias.send().await.unwrap();
    (moto, arn)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sealed_with_a_data_key_of_kms_is_opened_with_it() {
    let (moto, arn) = kms().await;
    for id in [arn.as_str(), "alias/nsbridge"] {
        let (client, worker) = (provider(&moto.url(), id).await, provider(&moto.url(), id).await);
        let data = client.data_key(&scope("acme")).await.unwrap();
        let frame = sealed(&data, &scope("acme"));
        let key = worker.open_key(&parse(&frame)).await.unwrap();
        assert_eq!(parse(&frame).open(&key).unwrap().content, b"x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_key_opens_nothing_that_claims_another_tenant() {
    let (moto, arn) = kms().await;
    let (client, worker) = (provider(&moto.url(), &arn).await, provider(&moto.url(), &arn).await);
    let data = client.data_key(&scope("acme")).await.unwrap();
    let frame = sealed(&data, &scope("other"));
    let error = worker.open_key(&parse(&frame)).await.unwrap_err();
    let why = "InvalidCiphertextException".to_owned();
    assert_eq!(error, KeyError::Denied { id: arn.parse().unwrap(), why });
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_for_a_wrapped_key_is_refused() {
    let (moto, arn) = kms().await;
    let (id, key) = (arn.parse().unwrap(), Key::generate().unwrap());
    let data = DataKey { id, key, provider: Provider::Kms, wrapped: vec![7; 96] };
    let frame = sealed(&data, &scope("acme"));
    let worker = provider(&moto.url(), &arn).await;
    let error = worker.open_key(&parse(&frame)).await.unwrap_err();
    assert!(matches!(error, KeyError::Denied { .. }), "{error}");
}
