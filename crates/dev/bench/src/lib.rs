//! Result file that all benchmark suites of nsbridge write.
//!
//! A suite is a binary `bench-SUITE` of this package. `cargo xtask bench SUITE` builds it with the
//! feature of its name, installs its peers and prints the rows of its [`report`].

pub mod report;

/// Removes the variables of a suite, which the program `nsbridge` would refuse as unknown fields of its
/// configuration.
pub fn without_variables(command: &mut std::process::Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NSBRIDGE_") {
            command.env_remove(name);
        }
    }
}
