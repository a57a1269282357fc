//! Models of `[models]`, from a name or address, and what is left to do until a worker can load them.

use std::path::Path;

use toml::Value;

use crate::draft::{Draft, Written};
use crate::report::Fate;
use crate::source::{Source, without_secrets};

/// Scheme of the placeholder for a model of a hub. No worker starts with it.
const HUB: &str = "hub";

/// Scheme of the placeholder for a model whose place is not known.
const MISSING: &str = "missing";

/// Revision of a model of a hub, with the name of the option that has it.
#[derive(Clone, Copy, Debug)]
pub struct Revision<'a> {
    /// Name of the option.
    pub option: &'a str,
    /// Value of the option.
    pub name: &'a str,
}

impl Revision<'_> {
    /// Returns true if the text can be a revision, which a shell reads as one word and not as an option.
    fn is_plain(self) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
        !self.name.is_empty() && !self.name.starts_with('-') && self.name.chars().all(plain)
    }
}

impl Draft {
    /// Sets a model of `[models]` to the place that an option names. Returns the option's fate, and the step
    /// that is left, if there is one.
    pub fn place(
        &mut self,
        model: &str,
        source: &Source,
        revision: Option<Revision<'_>>,
        origin: &str,
    ) -> (Fate, Option<String>) {
        let (value, fate, step) = placed(model, source, revision);
        if let Err(first) = self.set("models", model, value, origin) {
            let what = format!("[models] {model} has another value, of {first}");
            return (Fate::NotCarried(what), None);
        }
        if let Some(step) = &step {
            self.explain("models", model, step.clone());
        }
        (fate, step)
    }

    /// Sets a model of `[models]` to a placeholder with the reason why its place is not known, which is
    /// also the step that is left.
    pub fn place_missing(&mut self, model: &str, step: &str) {
        let address = Written::Placeholder(format!("{MISSING}://model"));
        // An earlier value stays.
        let _ = self.set("models", model, address, step);
    }
}

fn placed(
    model: &str,
    source: &Source,
    revision: Option<Revision<'_>>,
) -> (Written, Fate, Option<String>) {
    match source {
        Source::Bucket(address) => (
            Written::Plain(Value::String(address.clone())),
            Fate::Carried(format!("[models] {model} = \"{address}\"")),
            None,
        ),
        Source::Folder(path) => (
            Written::Path(path.clone()),
            Fate::Carried(format!("[models] {model}, the folder {}", path.display())),
            (!path.exists()).then(|| missing_folder(model, path)),
        ),
        Source::Hub(name) => {
            let address = match revision {
                Some(revision) if revision.is_plain() => {
                    format!("{HUB}://{name}@{}", revision.name)
                }
                Some(_) => format!("{HUB}://{name}@REVISION"),
                None => format!("{HUB}://{name}"),
            };
            let fate = format!(
                "[models] {model} = \"{address}\", which no worker starts with: see `to do`"
            );
            let step = download(model, name, revision);
            (Written::Placeholder(address), Fate::Carried(fate), Some(step))
        }
        Source::Other(other) => {
            let shown = without_secrets(other);
            let step = format!(
                "[models] {model}: nsbridge cannot read `{shown}`: put the model into a folder, or push it with \
                 `nsbridge model push FOLDER s3://BUCKET/PREFIX`, and write that place"
            );
            let fate = format!("`{shown}` is no bucket, folder or name of a hub: see `to do`");
            let address = format!("{MISSING}://{shown}");
            (Written::Placeholder(address), Fate::NotCarried(fate), Some(step))
        }
    }
}

fn missing_folder(model: &str, path: &Path) -> String {
    format!(
        "[models] {model}: {} is not on this machine; a worker starts where it is",
        path.display()
    )
}

fn download(model: &str, name: &str, revision: Option<Revision<'_>>) -> String {
    // A person copies the command into a shell.
    let (at, why) = match revision {
        Some(revision) if revision.is_plain() => {
            (format!(" --revision {}", revision.name), String::new())
        }
        Some(Revision { option, .. }) => {
            (" --revision REVISION".to_owned(), format!(". {option}: {NO_REVISION}"))
        }
        None => (String::new(), String::new()),
    };
    format!(
        "[models] {model}: a worker downloads nothing from a hub. Run `hf download {name}{at} --local-dir DIR` and \
         `nsbridge model push DIR s3://BUCKET/PREFIX`, and write that place, or the folder{why}"
    )
}

const NO_REVISION: &str =
    "it has characters that no revision has: write the revision that you mean into the command";

/// Returns the fate of an option that names the revision of a model.
pub fn fate_of_revision(source: Option<&Source>, revision: Revision<'_>) -> Fate {
    match source {
        Some(Source::Hub(_)) if !revision.name.is_empty() && !revision.is_plain() => {
            Fate::NotCarried(NO_REVISION.to_owned())
        }
        Some(Source::Hub(_)) => {
            Fate::Carried("[models] target, in the command that downloads it".to_owned())
        }
        _ if revision.name.is_empty() => Fate::NotNeeded("it is empty".to_owned()),
        _ => Fate::NotNeeded("it is for a model of a hub, and this one is none".to_owned()),
    }
}
