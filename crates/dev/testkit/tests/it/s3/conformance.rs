//! Conformance checks for object stores: ours, and others.

mod conditions;
mod objects;
mod parts;
mod sums;

use std::pin::Pin;

use anyhow::{Context as _, Result, ensure};
use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use nsbridge_testkit::s3::S3Server;

use super::client_of;

/// Empty bucket, and a client with access to it.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) client: Client,
    pub(super) bucket: String,
}

pub(super) type Check = fn(Place) -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// Defines a test on our server for each named function, and a list of all functions.
macro_rules! conformance {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                let server = S3Server::start().unwrap();
                server.bucket("conformance");
                let place = Place { client: client_of(&server), bucket: "conformance".into() };
                $module::$name(place).await.unwrap();
            }
        )*

        /// All checks by name, for other servers.
        pub(super) const ALL: &[(&str, Check)] =
            &[$((stringify!($name), |place| Box::pin($module::$name(place)))),*];
    };
}

conformance! {
    objects::what_is_written_can_be_read_described_listed_and_deleted,
    objects::a_range_is_a_part_of_the_object,
    objects::a_range_beyond_the_end_cannot_be_had,
    objects::a_listing_has_pages_prefixes_and_folders,
    objects::a_copy_is_an_object_of_its_own,
    objects::an_old_version_can_still_be_read,
    objects::what_is_not_there_has_a_name_for_it,
    conditions::a_read_holds_to_its_etag,
    conditions::a_read_of_what_is_known_is_spared,
    conditions::only_the_first_write_of_a_key_succeeds,
    conditions::a_write_holds_to_its_etag,
    conditions::an_upload_can_hold_to_being_the_first,
    sums::a_checksum_is_kept_and_told,
    sums::a_range_has_no_checksum,
    sums::a_wrong_checksum_leaves_nothing_behind,
    sums::a_checksum_behind_the_body_is_checked,
    parts::parts_become_one_object,
    parts::a_part_can_be_read_by_its_number,
    parts::parts_have_a_composite_checksum_or_one_of_the_whole,
    parts::what_is_given_up_leaves_nothing_behind,
    parts::a_part_that_is_too_small_or_unknown_is_refused,
}

impl Place {
    async fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) -> Result<String> {
        let put = self.client.put_object().bucket(&self.bucket).key(key);
        let done = put.body(bytes.into().into()).send().await?;
        done.e_tag.context("a written object has an ETag")
    }

    async fn get(&self, key: &str) -> Result<Vec<u8>> {
        let got = self.client.get_object().bucket(&self.bucket).key(key).send().await?;
        Ok(got.body.collect().await?.to_vec())
    }
}

/// Checks that a request was refused with this status, and with this code if the response has a
/// body.
fn refused<T, E>(
    result: Result<T, SdkError<E, aws_sdk_s3::config::http::HttpResponse>>,
    status: u16,
    code: Option<&str>,
) -> Result<()>
where
    T: std::fmt::Debug,
    E: ProvideErrorMetadata + std::fmt::Debug,
{
    let error = result.err().context("it was not refused")?;
    let said = error.raw_response().map(|response| response.status().as_u16());
    ensure!(said == Some(status), "refused with {said:?} rather than {status}: {error:?}");
    ensure!(code.is_none() || error.code() == code, "refused with {:?}", error.code());
    Ok(())
}

#[test]
fn every_name_in_the_list_is_there_once() {
    let mut names: Vec<_> = ALL.iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
}
