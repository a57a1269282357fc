//! Each check fails once.
