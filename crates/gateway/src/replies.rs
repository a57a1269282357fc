//! Replies in progress and kept replies.

pub(crate) mod archive;
pub(crate) mod reply_end;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod shared;
pub(crate) mod store;
