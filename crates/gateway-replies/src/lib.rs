//! Replies of a gateway: started, joined by retries, continued after a restart, and kept for a while.
//!
//! A reply does not depend on the connection that asked for it. Its pieces are in a [`ReplyLog`], from
//! which any number of connections read ([`Reader`]). [`Replies`] starts and finds replies by their id,
//! submits their requests to the queue of the model, and notes each change in the stores: those of the
//! gateway's own disk ([`DiskStore`]) and those that replicas share ([`BucketStore`]). An end is a
//! [`ReplyEnd`], the same in memory and in both stores. What fails is a [`Failure`], which knows no HTTP.
//!
//! | you need | you take |
//! |---|---|
//! | a reply to a request | [`Replies::start`], with a [`RequestContext`] |
//! | a reply by its id | [`Replies::find`], [`Replies::read`] |
//! | its pieces as they come | [`Reader::next`] |
//! | the replies of the last process | [`Replies::recover`] |
//! | to know that a model has no worker | [`Workers`] |
//! | figures of replies | an [`Observer`] |

mod bucket;
mod cost;
mod disk;
mod failure;
mod observer;
mod record;
mod replies;
mod reply_end;
mod reply_log;
mod store;
mod workers;

pub use self::bucket::{BucketStore, SharedError};
pub use self::cost::prompt_tokens;
pub use self::disk::{CHUNK_BYTES, DiskStore, Edit, Kind, StoreError};
pub use self::failure::{Failure, FailureKind, Result, Retry};
pub use self::observer::{Meter, Observer, Outcome};
pub use self::record::Record;
pub use self::replies::{Ask, Entry, Line, Replies, RequestContext, Stores};
pub use self::reply_end::ReplyEnd;
pub use self::reply_log::{Part, RawPiece, Reader, ReplyLog};
pub use self::store::{Times, Unstored};
pub use self::workers::{CountedModel, Workers};
