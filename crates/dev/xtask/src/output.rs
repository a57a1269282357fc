//! Terminal output of the chores, between the output of the tools.

/// Prints the title of a step.
pub(crate) fn step(what: &str) {
    line(&format!("== {what}"));
}

/// Prints one line.
#[expect(clippy::print_stdout, reason = "this is the edge that talks to a person")]
pub(crate) fn line(what: &str) {
    println!("{what}");
}

/// Prints an error with its causes.
#[expect(clippy::print_stderr, reason = "this is the edge that talks to a person")]
pub(crate) fn error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}
