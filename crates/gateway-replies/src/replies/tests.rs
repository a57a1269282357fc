//! Replies that are removed while others read or continue them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use nsbridge_client::{Client, Key, Keyring, MemoryBroker, ModelName, RequestId};

use super::{Entry, Replies, Stores};
use crate::observer::{Meter, Observer, Outcome};
use crate::record::Record;
use crate::reply_log::{Change, ReplyLog};
use crate::store::testing::{TIMES, record};
use crate::store::{ReplyStore, StoredReply, Times, Unstored};
use crate::workers::Workers;

/// Observer and meter that record nothing.
#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn begin(&self, _: &str, _: &ModelName) -> Box<dyn Meter> {
        Box::new(Self)
    }
    fn joined(&self) {}
    fn reattached(&self) {}
    fn restarted(&self) {}
    fn reserved(&self, _: u64) {}
    fn settled(&self, _: u64) {}
    fn failed(&self, _: &str) {}
}

impl Meter for Nobody {
    fn piece(&self) {}
    fn end(self: Box<Self>, _: Outcome) {}
}

/// Store with one open reply, which does something while it is read.
struct Meanwhile<F>(F);

impl<F> fmt::Debug for Meanwhile<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meanwhile").finish_non_exhaustive()
    }
}

#[async_trait]
impl<F: Fn() + Send + Sync> ReplyStore for Meanwhile<F> {
    fn begin(&self, _: &Record) -> BoxFuture<'static, Result<(), Unstored>> {
        Box::pin(async { Ok(()) })
    }

    fn note(&self, _: &Record, _: &ReplyLog, _: &Change) {}

    async fn load(&self, id: RequestId) -> Result<Option<StoredReply>, Unstored> {
        (self.0)();
        let record = record(id.0.as_u128(), SystemTime::now());
        Ok(Some(StoredReply::new(record, Vec::new(), None, None, None)))
    }

    fn remove(&self, _: &Record) -> BoxFuture<'static, Result<(), Unstored>> {
        Box::pin(async { Ok(()) })
    }

    async fn sweep(&self, _: Times) -> Result<(), Unstored> {
        Ok(())
    }

    async fn flush(&self) {}
}

/// Returns replies with one that a store had.
async fn replies_with_one() -> (Arc<Replies>, Arc<Entry>) {
    let keys = Keyring::of_key("test".parse().unwrap(), Key::from_bytes([1; 32]));
    let client = Client::builder().broker(Arc::new(MemoryBroker::new())).keys(Arc::new(keys));
    let client = client.connect().await.unwrap();
    let workers = Arc::new(Workers::new(client.clone(), HashMap::new()));
    let replies =
        Replies::new(client, workers, Stores::default(), TIMES, [0; 32], Arc::new(Nobody));
    let id = record(1, SystemTime::now()).id;
    let entry = replies.load_from(&Meanwhile(|| {}), id).await.unwrap().unwrap();
    (Arc::new(replies), entry)
}

#[tokio::test]
async fn a_reply_that_is_removed_while_it_is_read_does_not_come_back() {
    let (replies, entry) = replies_with_one().await;
    // It had no room in memory.
    replies.table.lock().remove(&entry);
    let store = Meanwhile(|| drop(replies.remove(&entry)));
    assert!(replies.load_from(&store, entry.record.id).await.unwrap().is_none());
    assert!(replies.table.lock().entries.is_empty());
    let refused = replies.go_on(&entry, None, Some(Duration::ZERO)).await;
    assert!(refused.unwrap_err().message().contains("there is no response"));
}

#[tokio::test]
async fn the_removal_of_a_reply_stops_the_one_that_continues_it() {
    let (replies, entry) = replies_with_one().await;
    let (continued, new) = replies.revive(&entry).unwrap();
    assert!(new && continued.is_live());
    drop(replies.remove(&entry));
    assert!(continued.log.is_cancelled() && *continued.removal.lock());
    assert!(replies.table.lock().entries.is_empty());
    // A line that is begun again has the same id.
    let Ok(again) = replies.add(entry.record.clone(), false) else { panic!("it is there") };
    assert!(!*again.removal.lock());
}
