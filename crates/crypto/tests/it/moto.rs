//! Round trips through moto, a server that stores keys.

use aws_sdk_kms::Client;
use nsbridge_crypto::{DataKey, Key, KeyError, KeyProvider, KmsProvider, Provider};
use nsbridge_testkit::Moto;

use crate::{ALIAS, REGION, credentials, parse, provider, scope, sealed};

/// Starts a server and returns it with the ARN of a key in it.
async fn kms() -> (Moto, String) {
    let moto = tokio::task::spawn_blocking(Moto::start).await.unwrap().unwrap();
    let client = admin(&moto).await;
    let arn = new_key(&client).await;
    let alias = client.create_alias().alias_name("alias/nsbridge").target_key_id(&arn);
    alias.send().await.unwrap();
    (moto, arn)
}

async fn admin(moto: &Moto) -> Client {
    let (url, keys) = (moto.url(), credentials());
    Client::new(&nsbridge_aws::sdk_config(Some(REGION), Some(&url), Some(&keys)).await)
}

/// Creates a key and returns its ARN.
async fn new_key(client: &Client) -> String {
    client.create_key().send().await.unwrap().key_metadata.unwrap().arn.unwrap()
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

/// Opens a request of this tenant that was sealed under the alias.
async fn opens(worker: &KmsProvider, data: &DataKey, tenant: &str) -> Result<Key, KeyError> {
    worker.open_key(&parse(&sealed(data, &scope(tenant)))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn f8_a_moved_alias_loses_no_request() {
    let (moto, former) = kms().await;
    let url = moto.url();
    let client = provider(&url, ALIAS).await;
    let running = provider(&url, ALIAS).await;
    let before = client.data_key(&scope("before")).await.unwrap();
    let waiting = client.data_key(&scope("waiting")).await.unwrap();
    assert_eq!(opens(&running, &before, "before").await.unwrap(), before.key);

    let admin = admin(&moto).await;
    let now = new_key(&admin).await;
    admin.update_alias().alias_name(ALIAS).target_key_id(&now).send().await.unwrap();

    // A worker that saw the alias lead to the former key remembers it.
    assert_eq!(opens(&running, &waiting, "waiting").await.unwrap(), waiting.key);
    // A new worker has the former key on its list.
    let listed = KmsProvider::builder([ALIAS, &former].map(|id| id.parse().unwrap()));
    let listed = listed.region(REGION).endpoint_url(&url).credentials(credentials());
    let listed = listed.build().await.unwrap();
    assert_eq!(opens(&listed, &waiting, "waiting").await.unwrap(), waiting.key);
    // What is sealed from now on opens by the alias alone.
    let after = provider(&url, ALIAS).await.data_key(&scope("after")).await.unwrap();
    for worker in [&running, &listed, &provider(&url, ALIAS).await] {
        assert_eq!(opens(worker, &after, "after").await.unwrap(), after.key);
    }
    // A key that is neither on the list nor known opens nothing.
    let stranger = provider(&url, ALIAS).await;
    let denied = opens(&stranger, &waiting, "waiting").await.unwrap_err();
    assert!(matches!(denied, KeyError::Denied { .. }), "{denied}");
}
