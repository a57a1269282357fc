//! Pushes: in parts, resumed, refused over another model, and pulled back.

use nsbridge_store::{Location, StoreError};
use nsbridge_testkit::s3::{Fault, Faults, Kind, Rule, When};

use super::{Fixture, changed, push_of, store_on, top};

const LARGE_FILE: &str = "model-00001-of-00002.safetensors";

fn at(version: &str) -> Location {
    format!("s3://models/tale@{version}").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_pushed_is_pulled_again_file_by_file() {
    let fixture = Fixture::new().await;
    let objects = fixture.server.objects("models");
    assert!(objects.contains(&"tale/current".to_owned()), "{objects:?}");
    assert!(objects.contains(&"tale/r1/extra/empty.txt".to_owned()));
    let store = store_on(&fixture.server, |_| ());
    let opened = store.model(&at("r1").into()).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    store.pull(&opened, copy.path(), |_| ()).await.unwrap();
    for file in &opened.manifest.as_ref().unwrap().files {
        let copied = std::fs::read(copy.path().join(&file.path)).unwrap();
        assert!(copied == fixture.file(&file.path), "{}", file.path);
    }
    // Intact files are kept and a truncated file is fetched again.
    let large = copy.path().join(LARGE_FILE);
    std::fs::File::options().write(true).open(&large).unwrap().set_len(20_000_000).unwrap();
    let before = store.counts().from_store.get();
    store.pull(&opened, copy.path(), |_| ()).await.unwrap();
    let fetched = store.counts().from_store.get() - before;
    assert!(std::fs::read(&large).unwrap() == fixture.file(LARGE_FILE));
    assert!(fetched < 25 << 20, "{fetched}");
    assert!(store.verify(&opened, |_| ()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_repeated_sends_nothing_and_one_that_broke_off_goes_on() {
    let fixture = Fixture::new().await;
    // The two parts that are accepted arrive within the patience for the third one.
    let store = store_on(&fixture.server, |config| config.patience_s = 3.0);
    let again = store.push(push_of(fixture.dir.path()), |_| ()).await.unwrap();
    assert!(again.was_there);
    assert_eq!(again.manifest, fixture.pushed.manifest);
    let push = push_of(fixture.dir.path());
    let second = changed(push, |push| push.revision = Some("r2".to_owned()));
    // The third part of the large file never arrives.
    let third = Rule::new(Fault::SLOW_DOWN).on([Kind::Put]).of(LARGE_FILE).when(When::After(2));
    fixture.server.faults(Faults::none().with(third));
    let broken = store.push(second.clone(), |_| ()).await.unwrap_err();
    assert!(matches!(broken, StoreError::Unreachable { .. }), "{broken}");
    assert!(!fixture.server.objects("models").contains(&"tale/r2/nsb-manifest.json".to_owned()));
    fixture.server.faults(Faults::none());
    fixture.server.reset_counts();
    let pushed = store.push(second, |_| ()).await.unwrap();
    assert!(!pushed.was_there);
    let sent = fixture.server.counts().of(&format!("models/tale/r2/{LARGE_FILE}")).puts;
    assert_eq!(sent, 1, "two of three parts were there");
    assert_eq!(fixture.server.uploads("models"), 0);
    let opened = store.model(&at("r2").into()).await.unwrap();
    assert!(store.verify(&opened, |_| ()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_model_under_the_same_revision_needs_a_word() {
    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |_| ());
    std::fs::write(fixture.dir.path().join("config.json"), "{}").unwrap();
    let push = push_of(fixture.dir.path());
    let refused = store.push(push.clone(), |_| ()).await.unwrap_err().to_string();
    assert!(refused.contains("holds another model") && refused.contains("--force"), "{refused}");
    store.push(changed(push.clone(), |push| push.force = true), |_| ()).await.unwrap();
    let opened = store.model(&top().into()).await.unwrap();
    assert!(store.verify(&opened, |_| ()).await.unwrap().is_empty());
    let unnamed = changed(push, |push| push.revision = None);
    let named = store.push(unnamed.clone(), |_| ()).await.unwrap();
    assert_eq!(store.push(unnamed, |_| ()).await.unwrap().revision, named.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_and_its_undoing_are_one_small_write() {
    let fixture = Fixture::new().await;
    let store = store_on(&fixture.server, |_| ());
    std::fs::write(fixture.dir.path().join("config.json"), "{\"new\": 1}").unwrap();
    let second = changed(push_of(fixture.dir.path()), |push| {
        (push.revision, push.alias) = (Some("r2".to_owned()), None);
    });
    store.push(second, |_| ()).await.unwrap();
    let served =
        || async { store.model(&top().into()).await.unwrap().model.revision().unwrap().to_owned() };
    assert_eq!(served().await, "r1");
    store.point(&at("r2"), "current").await.unwrap();
    assert_eq!(served().await, "r2");
    store.point(&at("r1"), "current").await.unwrap();
    assert_eq!(served().await, "r1");
    store.point(&at("r2"), "canary").await.unwrap();
    let canary = store.model(&at("canary").into()).await.unwrap();
    assert_eq!(canary.model.revision(), Some("r2"));
    let refused = store.point(&at("r3"), "current").await.unwrap_err();
    assert!(matches!(refused, StoreError::Missing { .. }), "{refused}");
    let missing = store.model(&at("r3").into()).await.unwrap_err().to_string();
    assert!(missing.contains("s3://models/tale/r3"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_manifest_is_served_as_it_is() {
    let fixture = Fixture::new().await;
    fixture.server.remove("models", "tale/r1/nsb-manifest.json");
    let store = store_on(&fixture.server, |_| ());
    let place: Location = "s3://models/tale/r1".parse().unwrap();
    let opened = store.model(&place.into()).await.unwrap();
    assert!(opened.manifest.is_none());
    let copy = tempfile::tempdir().unwrap();
    store.pull(&opened, copy.path(), |_| ()).await.unwrap();
    assert!(std::fs::read(copy.path().join(LARGE_FILE)).unwrap() == fixture.file(LARGE_FILE));
    assert!(store.verify(&opened, |_| ()).await.is_err());
    let nothing: Location = "s3://models/tall".parse().unwrap();
    let missing = store.model(&nothing.into()).await.unwrap_err().to_string();
    assert!(missing.contains("s3://models/tall"), "{missing}");
    let bucket: Location = "s3://nowhere/tale".parse().unwrap();
    let missing = store.model(&bucket.into()).await.unwrap_err().to_string();
    assert!(missing.contains("the bucket does not exist"), "{missing}");
}

/// A folder from someone else may contain links to private files of the user.
#[tokio::test(flavor = "multi_thread")]
async fn m8_a_link_out_of_the_folder_is_not_followed_without_a_word() {
    let fixture = Fixture::new().await;
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("id_ed25519"), "canary").unwrap();
    let store = store_on(&fixture.server, |_| ());
    let folder = fixture.dir.path();
    let evil = changed(push_of(folder), |push| push.revision = Some("evil".to_owned()));
    let sent = |path: &str| fixture.server.objects("models").contains(&format!("tale/evil/{path}"));
    let cases = [
        ("LICENSE.txt", elsewhere.path().join("id_ed25519"), "LICENSE.txt"),
        ("extra/docs", elsewhere.path().to_owned(), "extra/docs/id_ed25519"),
    ];
    for (link, to, file) in cases {
        let link_at = folder.join(link);
        std::os::unix::fs::symlink(&to, &link_at).unwrap();
        let refused = store.push(evil.clone(), |_| ()).await.unwrap_err().to_string();
        assert!(refused.contains(link) && refused.contains("--follow-links"), "{refused}");
        assert!(!sent(file), "{file} was sent");
        let meant = changed(evil.clone(), |push| {
            (push.follow_links, push.force) = (true, true);
        });
        store.push(meant, |_| ()).await.unwrap();
        assert!(sent(file), "{file} was not sent");
        std::fs::remove_file(link_at).unwrap();
    }
    // A link within the folder is pushed like a file.
    std::os::unix::fs::symlink(folder.join("extra"), folder.join("more")).unwrap();
    let again = changed(push_of(folder), |push| push.revision = Some("r9".to_owned()));
    store.push(again, |_| ()).await.unwrap();
}

/// A few links that lead to their own folder make billions of paths.
#[tokio::test(flavor = "multi_thread")]
async fn l13_a_folder_whose_links_multiply_it_is_not_pushed() {
    let fixture = Fixture::new().await;
    let folder = fixture.dir.path();
    for link in 0..5 {
        std::os::unix::fs::symlink(".", folder.join(format!("link-{link}"))).unwrap();
    }
    let store = store_on(&fixture.server, |_| ());
    let refused = store.push(push_of(folder), |_| ()).await.unwrap_err();
    let said = nsbridge_base::chain(&refused);
    assert!(said.contains("it has more than 100000 files and folders"), "{said}");
}
