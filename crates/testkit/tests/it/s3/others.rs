//! Other stores at the same conformance list: where they differ is known, and in `docs/testing.md`.

use aws_credential_types::Credentials;
use nsbridge_testkit::Moto;

use super::client;
use super::conformance::{ALL, Place};

/// What moto does otherwise than S3.
const NOT_ON_MOTO: [&str; 0] = [];

#[tokio::test]
async fn moto_differs_from_ours_where_the_table_says() {
    let moto = Moto::start().unwrap();
    let client = client(&moto.url(), Credentials::new("test", "test", None, None, "test"));
    let mut different = Vec::new();
    for (index, (name, check)) in ALL.iter().enumerate() {
        let bucket = format!("conformance-{index}");
        client.create_bucket().bucket(&bucket).send().await.unwrap();
        if let Err(why) = check(Place { client: client.clone(), bucket }).await {
            println!("{name}: {why:#}");
            different.push(*name);
        }
    }
    assert_eq!(different, NOT_ON_MOTO);
}
