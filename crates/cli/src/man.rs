//! `nsbridge man`: manual pages of the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Definition of the apostrophe, which groff and other programs render by different names.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

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
    let man = Man::new(command.clone());
    let path = out.join(man.get_filename());
    let page = render(&man, command, source).context("rendering a page")?;
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    visible(command).try_for_each(|command| write_pages(command, source, out))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// Returns the text of a page, in which examples keep their lines. It has no date, and nothing of the
/// machine that renders it.
fn render(man: &Man, command: &Command, source: &str) -> Result<String> {
    let mut page = Vec::new();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(help) = command.get_after_help() {
        examples(&help.to_string()).to_writer(&mut page)?;
    }
    // Each section begins with the definition of its apostrophe.
    let sections = String::from_utf8(page)?.replace(APOSTROPHE, "");
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    Ok(format!(".TH {name} 1 \"\" \"{source}\" nsbridge\n{APOSTROPHE}{sections}"))
}

/// Returns the section of the text at the end of a help.
fn examples(help: &str) -> Roff {
    let text = help.strip_prefix("Examples:\n").or_else(|| help.strip_prefix("Example: "));
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.unwrap_or(help).lines() {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section
}
