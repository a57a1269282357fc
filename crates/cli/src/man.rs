//! `nsbridge man`: manual pages of the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Writes the manual page of each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge man --out ~/.local/share/man/man1")]
pub(crate) struct Arguments {
    /// Folder to write to; it is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes the pages of this command line.
pub(crate) fn run(arguments: &Arguments, whole: Command) -> Result<ExitCode> {
    let out = &arguments.out;
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let mut whole = whole.disable_help_subcommand(true);
    whole.build();
    let source = format!("{} {}", whole.get_name(), env!("CARGO_PKG_VERSION"));
    write_pages(&whole, &source, out)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(command: &Command, source: &str, out: &Path) -> Result<()> {
    let man = Man::new(command.clone()).source(source).manual("nsbridge");
    let path = out.join(man.get_filename());
    let mut page = Vec::new();
    render(&man, command, &mut page).context("rendering a page")?;
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    visible.into_iter().try_for_each(|command| write_pages(command, source, out))
}

/// Renders a page. Its examples keep their lines, and it has nothing of the machine that renders it.
fn render(man: &Man, command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(page)?;
    }
    let Some(examples) = command.get_after_help() else { return Ok(()) };
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.to_string().lines() {
        section.text([roman(line)]);
    }
    section.control("fi", []).to_writer(page)
}
