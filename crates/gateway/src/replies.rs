//! Replies in progress and kept replies.

pub(crate) mod archive;
pub(crate) mod replies;
pub(crate) mod reply_end;
pub(crate) mod reply_log;
pub(crate) mod shared;
pub(crate) mod store;
