//! Conformance checks on other stores; `docs/testing.md` lists the known differences.

use aws_credential_types::Credentials;
use nsbridge_testkit::Moto;

use super::client;
use super::conformance::{ALL, Place};

/// Checks that moto fails because it differs from S3.
const NOT_ON_MOTO: [&str; 7] = [
    "a_checksum_is_kept_and_told",
    "a_wrong_checksum_leaves_nothing_behind",
    "parts_become_one_object",
    "a_part_can_be_read_by_its_number",
    "parts_have_a_composite_checksum_or_one_of_the_whole",
    "what_is_given_up_leaves_nothing_behind",
    "a_part_that_is_too_small_or_unknown_is_refused",
];

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
