//! Conditional requests.

use anyhow::{Result, ensure};

use super::parts::{begin, complete, send};
use super::{Place, refused};

/// ETag that no object here has.
const OTHER: &str = "\"00000000000000000000000000000000\"";

pub(super) async fn a_read_holds_to_its_etag(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let tag = place.put("k", "one").await?;
    let get = || client.get_object().bucket(bucket).key("k");
    let head = || client.head_object().bucket(bucket).key("k");
    get().if_match(&tag).range("bytes=1-1").send().await?;
    head().if_match(&tag).send().await?;
    place.put("k", "two").await?;
    let late = get().if_match(&tag).range("bytes=1-1").send().await;
    refused(late, 412, Some("PreconditionFailed"))?;
    refused(get().if_match(OTHER).send().await, 412, Some("PreconditionFailed"))?;
    refused(head().if_match(&tag).send().await, 412, None)
}

pub(super) async fn a_read_of_what_is_known_is_spared(place: Place) -> Result<()> {
    let (client, bucket) = (&place.client, &place.bucket);
    let tag = place.put("k", "one").await?;
    let get = || client.get_object().bucket(bucket).key("k");
    refused(get().if_none_match(&tag).send().await, 304, None)?;
    let head = client.head_object().bucket(bucket).key("k").if_none_match(&tag);
    refused(head.send().await, 304, None)?;
    let got = get().if_none_match(OTHER).send().await?;
    ensure!(got.body.collect().await?.to_vec() == b"one");
    Ok(())
}

pub(super) async fn only_the_first_write_of_a_key_succeeds(place: Place) -> Result<()> {
    let put = |text: &'static str| {
        let put = place.client.put_object().bucket(&place.bucket).key("k").if_none_match("*");
        put.body(text.as_bytes().to_vec().into()).send()
    };
    put("one").await?;
    refused(put("two").await, 412, Some("PreconditionFailed"))?;
    ensure!(place.get("k").await? == b"one");
    Ok(())
}

pub(super) async fn a_write_holds_to_its_etag(place: Place) -> Result<()> {
    let put = |key, tag: &str, text: &'static str| {
        let put = place.client.put_object().bucket(&place.bucket).key(key).if_match(tag);
        put.body(text.as_bytes().to_vec().into()).send()
    };
    let tag = place.put("k", "one").await?;
    put("k", &tag, "two").await?;
    refused(put("k", &tag, "three").await, 412, Some("PreconditionFailed"))?;
    refused(put("absent", &tag, "three").await, 404, Some("NoSuchKey"))?;
    ensure!(place.get("k").await? == b"two");
    Ok(())
}

pub(super) async fn an_upload_can_hold_to_being_the_first(place: Place) -> Result<()> {
    let id = begin(&place, "k").await?;
    let part = send(&place, "k", &id, 1, b"by parts".to_vec()).await?;
    place.put("k", "at once").await?;
    let second = complete(&place, "k", &id, vec![part.clone()]).if_none_match("*").send().await;
    refused(second, 412, Some("PreconditionFailed"))?;
    ensure!(place.get("k").await? == b"at once");
    // The upload still exists, and without the condition it completes.
    complete(&place, "k", &id, vec![part]).send().await?;
    ensure!(place.get("k").await? == b"by parts");
    Ok(())
}
