//! Objects: written, read, listed, deleted.

use anyhow::{Result, ensure};
use aws_sdk_s3::types::{BucketVersioningStatus, VersioningConfiguration};

use super::{Place, refused};
use crate::s3::pattern;

/// MD5 of `123456789`.
const ETAG: &str = "\"25f9e794323b453885f5181f1b624d0b\"";

pub(super) async fn what_is_written_can_be_read_described_listed_and_deleted(
    place: Place,
) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let key = "a folder/a näme";
    let put = client.put_object().bucket(bucket).key(key).body(b"123456789".to_vec().into());
    put.content_type("text/plain").metadata("colour", "blue").send().await?;

    let got = client.get_object().bucket(bucket).key(key).send().await?;
    ensure!(got.e_tag() == Some(ETAG), "its ETag is {:?}", got.e_tag());
    ensure!(got.content_length() == Some(9) && got.content_type() == Some("text/plain"));
    ensure!(got.body.collect().await?.to_vec() == b"123456789");

    let head = client.head_object().bucket(bucket).key(key).send().await?;
    ensure!(head.e_tag() == Some(ETAG) && head.content_length() == Some(9));
    ensure!(head.metadata().and_then(|all| all.get("colour")).is_some_and(|it| it == "blue"));

    let listed = client.list_objects_v2().bucket(bucket).send().await?;
    let [object] = listed.contents() else { anyhow::bail!("{listed:?}") };
    ensure!((object.key(), object.size(), object.e_tag()) == (Some(key), Some(9), Some(ETAG)));

    for _ in 0..2 {
        client.delete_object().bucket(bucket).key(key).send().await?;
    }
    let listed = client.list_objects_v2().bucket(bucket).send().await?;
    ensure!(listed.contents().is_empty(), "{listed:?}");
    Ok(())
}

pub(super) async fn a_range_is_a_part_of_the_object(place: Place) -> Result<()> {
    let bytes = pattern(1000);
    place.put("k", bytes.clone()).await?;
    let cases = [
        ("bytes=0-0", 0..1),
        ("bytes=10-19", 10..20),
        ("bytes=990-", 990..1000),
        ("bytes=990-5000", 990..1000),
        ("bytes=-10", 990..1000),
        ("bytes=-5000", 0..1000),
    ];
    for (asked, expected) in cases {
        let get = place.client.get_object().bucket(&place.bucket).key("k").range(asked);
        let got = get.send().await?;
        let range = format!("bytes {}-{}/1000", expected.start, expected.end - 1);
        ensure!(got.content_range() == Some(&range), "{asked}: {:?}", got.content_range());
        ensure!(got.content_length() == Some(expected.len() as i64), "{asked}");
        ensure!(got.body.collect().await?.to_vec() == bytes[expected], "{asked}");
    }
    Ok(())
}

pub(super) async fn a_range_beyond_the_end_cannot_be_had(place: Place) -> Result<()> {
    place.put("k", pattern(1000)).await?;
    place.put("empty", []).await?;
    for (key, range) in [("k", "bytes=1000-"), ("k", "bytes=-0"), ("empty", "bytes=0-9")] {
        let get = place.client.get_object().bucket(&place.bucket).key(key).range(range);
        refused(get.send().await, 416, Some("InvalidRange"))?;
    }
    ensure!(place.get("empty").await?.is_empty());
    Ok(())
}

pub(super) async fn a_listing_has_pages_prefixes_and_folders(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    for key in ["a", "m/1", "m/2", "m/x/3", "m/x/4", "m/y/5", "n"] {
        place.put(key, key).await?;
    }
    let mut keys = Vec::new();
    let mut token = None;
    loop {
        let list = client.list_objects_v2().bucket(bucket).prefix("m/").max_keys(2);
        let page = list.set_continuation_token(token).send().await?;
        ensure!(page.contents().len() <= 2);
        keys.extend(page.contents().iter().filter_map(|object| object.key()).map(str::to_owned));
        token = page.next_continuation_token().map(str::to_owned);
        ensure!(token.is_some() == page.is_truncated().unwrap_or(false));
        if token.is_none() {
            break;
        }
    }
    ensure!(keys == ["m/1", "m/2", "m/x/3", "m/x/4", "m/y/5"], "{keys:?}");

    let list = client.list_objects_v2().bucket(bucket).prefix("m/").delimiter("/");
    let page = list.send().await?;
    let keys: Vec<_> = page.contents().iter().filter_map(|object| object.key()).collect();
    let folders: Vec<_> = page.common_prefixes().iter().filter_map(|it| it.prefix()).collect();
    ensure!((&*keys, &*folders) == (&["m/1", "m/2"], &["m/x/", "m/y/"]), "{keys:?} {folders:?}");

    let after = client.list_objects_v2().bucket(bucket).start_after("m/y/5").send().await?;
    ensure!(after.contents().len() == 1 && after.contents()[0].key() == Some("n"));
    Ok(())
}

pub(super) async fn a_copy_is_an_object_of_its_own(place: Place) -> Result<()> {
    place.put("from", "123456789").await?;
    let source = format!("{}/from", place.bucket);
    let copy = place.client.copy_object().bucket(&place.bucket).key("to").copy_source(source);
    let copied = copy.send().await?;
    ensure!(copied.copy_object_result().and_then(|result| result.e_tag()) == Some(ETAG));
    place.put("from", "changed").await?;
    ensure!(place.get("to").await? == b"123456789");
    Ok(())
}

pub(super) async fn an_old_version_can_still_be_read(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    place.put("k", "before there were versions").await?;
    let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    client.put_bucket_versioning().bucket(bucket).versioning_configuration(on).send().await?;
    let mut versions = Vec::new();
    for text in ["one", "two"] {
        let put = client.put_object().bucket(bucket).key("k").body(text.as_bytes().to_vec().into());
        versions.push(put.send().await?.version_id.unwrap_or_default());
    }
    client.delete_object().bucket(bucket).key("k").send().await?;
    refused(client.get_object().bucket(bucket).key("k").send().await, 404, Some("NoSuchKey"))?;
    let expected = [(&*versions[0], "one"), (&*versions[1], "two")];
    for (version, text) in expected.into_iter().chain([("null", "before there were versions")]) {
        let got = client.get_object().bucket(bucket).key("k").version_id(version).send().await?;
        ensure!(got.body.collect().await?.to_vec() == text.as_bytes(), "{version}");
    }
    Ok(())
}

pub(super) async fn what_is_not_there_has_a_name_for_it(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    refused(client.get_object().bucket(bucket).key("k").send().await, 404, Some("NoSuchKey"))?;
    refused(client.head_object().bucket(bucket).key("k").send().await, 404, None)?;
    let elsewhere = client.get_object().bucket("no-such-bucket").key("k").send().await;
    refused(elsewhere, 404, Some("NoSuchBucket"))?;
    let listed = client.list_objects_v2().bucket("no-such-bucket").send().await;
    refused(listed, 404, Some("NoSuchBucket"))
}
