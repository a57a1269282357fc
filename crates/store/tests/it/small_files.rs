//! Small files in a bucket and in a folder.

use nsbridge_store::{Credentials, Location, SmallFiles, StoreConfig, StoreError};
use nsbridge_testkit::s3::{Fault, Faults, Kind, Rule, S3Server, When};

const BUCKET: &str = "shared";

async fn in_bucket(server: &S3Server) -> SmallFiles {
    server.bucket(BUCKET);
    let mut config = StoreConfig::default();
    config.region = Some("us-east-1".to_owned());
    config.endpoint_url = Some(server.endpoint());
    let location = format!("s3://{BUCKET}/below/this").parse().unwrap();
    let keys = Credentials::new(server.access_key(), server.secret_key());
    SmallFiles::with_credentials(&location, &config, &keys).await.unwrap()
}

async fn in_folder(folder: &tempfile::TempDir) -> SmallFiles {
    let location = Location::Folder(folder.path().join("made at the first write"));
    SmallFiles::open(&location, &StoreConfig::default()).await.unwrap()
}

async fn check(files: &SmallFiles) {
    assert_eq!(files.get("replies/1.a", 10).await.unwrap(), None);
    assert!(files.names("replies/", 10).await.unwrap().is_empty());
    files.remove("replies/1.a").await.unwrap();
    for name in ["replies/2.a", "replies/1.b", "replies/1.a", "joins/1.c"] {
        files.put(name, name.into()).await.unwrap();
    }
    assert_eq!(files.get("replies/1.b", 11).await.unwrap().unwrap(), "replies/1.b");
    assert!(files.get("replies/1.b", 10).await.is_err(), "it is larger");
    assert_eq!(
        files.names("replies/", 10).await.unwrap(),
        ["replies/1.a", "replies/1.b", "replies/2.a"]
    );
    assert_eq!(files.names("replies/1.", 10).await.unwrap(), ["replies/1.a", "replies/1.b"]);
    assert_eq!(files.names("replies/", 2).await.unwrap(), ["replies/1.a", "replies/1.b"]);
    files.put("replies/1.a", b"other".to_vec()).await.unwrap();
    assert!(!files.put_new("replies/1.a", b"third".to_vec()).await.unwrap());
    assert_eq!(files.get("replies/1.a", 10).await.unwrap().unwrap(), "other");
    assert!(files.put_new("replies/3.a", Vec::new()).await.unwrap());
    files.remove("replies/1.a").await.unwrap();
    assert_eq!(files.get("replies/1.a", 10).await.unwrap(), None);
    assert_eq!(files.names("joins/", 10).await.unwrap(), ["joins/1.c"]);
}

#[tokio::test]
async fn a_bucket_keeps_small_files() {
    let server = S3Server::start().unwrap();
    check(&in_bucket(&server).await).await;
    assert!(server.objects(BUCKET).iter().all(|key| key.starts_with("below/this/")));
}

#[tokio::test]
async fn a_folder_keeps_small_files() {
    let folder = tempfile::tempdir().unwrap();
    check(&in_folder(&folder).await).await;
}

#[tokio::test]
async fn names_come_in_order_over_several_pages_of_a_bucket() {
    let server = S3Server::start().unwrap();
    let files = in_bucket(&server).await;
    for number in 0..1100 {
        server.put(BUCKET, &format!("below/this/n/{number:04}"), Vec::new());
    }
    let names = files.names("n/", 1050).await.unwrap();
    assert_eq!((names.len(), names[1049].as_str()), (1050, "n/1049"));
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_lasts_is_told() {
    let server = S3Server::start().unwrap();
    let files = in_bucket(&server).await;
    let twice = Rule::new(Fault::SLOW_DOWN).on([Kind::Put]);
    let twice = [1, 2].map(|number| twice.clone().when(When::Nth(number)));
    let [first, second] = twice;
    server.faults(Faults::none().with(first).with(second));
    files.put("a", b"text".to_vec()).await.unwrap();
    assert_eq!(files.get("a", 10).await.unwrap().unwrap(), "text");
    server.faults(Rule::new(Fault::Refuse(403, "AccessDenied")));
    assert!(matches!(files.get("a", 10).await, Err(StoreError::Denied { .. })));
}
