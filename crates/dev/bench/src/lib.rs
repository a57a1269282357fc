//! Result file that all benchmark suites of nsbridge write.
//!
//! A suite is a binary `bench-SUITE` of this package. `cargo xtask bench SUITE` builds it with the
//! feature of its name, installs its peers and prints the rows of its [`report`].

pub mod report;
