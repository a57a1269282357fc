//! `nsbridge completions`: completion of the command line in a shell.

use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use crate::terminal::print;

/// Prints a script that completes the command line in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    nsbridge completions bash > ~/.local/share/bash-completion/completions/nsbridge\n  \
    nsbridge completions fish > ~/.config/fish/completions/nsbridge.fish\n  \
    nsbridge completions zsh > ~/.zfunc/_nsbridge\n\n\
    Packages of nsbridge have installed those of bash, zsh and fish.")]
pub(crate) struct Arguments {
    /// Shell of the script.
    shell: Shell,
}

/// Prints the script for this command line.
pub(crate) fn run(arguments: &Arguments, mut whole: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    let name = whole.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut whole, name, &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
