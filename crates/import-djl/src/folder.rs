//! Folder of a DJLServing model, and the place of the model's files.

use std::fs;
use std::path::{Path, PathBuf};

use nsbridge_import::Source;

use super::settings::Settings;

/// Folders in which the containers of DJLServing mount the folder of `serving.properties`.
const MOUNTS: [&str; 2] = ["/opt/ml/model", "/opt/djl/model"];

/// Decorators of functions in a `model.py` that DJLServing calls around a handler of its own.
const FORMATTERS: [&str; 2] = ["@output_formatter", "@input_formatter"];

/// Folder of a model, with an absolute path.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.join(name).is_file()
    }

    /// Returns the path of a file. One in a folder of a container is looked up in this folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        let path = Path::new(name);
        let within = MOUNTS.iter().find_map(|mount| path.strip_prefix(mount).ok());
        self.0.join(within.filter(|_| !path.exists()).unwrap_or(path))
    }

    /// Returns true if a file of the folder has one of these extensions.
    pub(super) fn has_extension(&self, extensions: &[&str]) -> bool {
        let Ok(entries) = self.0.read_dir() else { return false };
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths.any(|path| path.extension().is_some_and(|own| extensions.iter().any(|e| own == *e)))
    }

    /// Returns the names of the LoRA adapters beside the model.
    pub(super) fn adapters(&self) -> Vec<String> {
        let Ok(entries) = self.0.join("adapters").read_dir() else { return Vec::new() };
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        let mut names: Vec<_> =
            folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns true if a file of Python has formatters and no handler. DJLServing then uses a handler
    /// of its own.
    pub(super) fn has_formatters_alone(&self, file: &str) -> bool {
        let Ok(text) = fs::read_to_string(self.0.join(file)) else { return false };
        let begins = |starts: &[&str]| {
            text.lines().any(|line| starts.iter().any(|start| line.starts_with(start)))
        };
        let imports = |line: &str| line.starts_with("from ") && line.contains("import handle");
        begins(&FORMATTERS)
            && !begins(&["def handle(", "async def handle(", "handle ="])
            && !text.lines().any(imports)
    }

    /// Returns true if the file has a function or method `run`, which answers a batch.
    pub(super) fn has_run(&self, file: &Path) -> bool {
        let Ok(text) = fs::read_to_string(self.0.join(file)) else { return false };
        text.lines().any(|line| line.trim_start().starts_with("def run("))
    }

    /// Returns the place of the model that an option names, or that is beside `serving.properties`.
    /// `None` if there is none.
    pub(super) fn model(&self, settings: &Settings) -> Option<Source> {
        let id = settings.get("option.model_id").or_else(|| settings.get("option.s3url"));
        if let Some(id) = id {
            return Some(self.source(id));
        }
        let beside = self.has("config.json") || self.has_extension(&["gguf"]);
        beside.then(|| Source::Folder(self.0.clone()))
    }

    /// Reads the name or address of a model.
    pub(super) fn source(&self, id: &str) -> Source {
        Source::read(id, &self.file(id))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Folder, Source};

    #[test]
    fn a_model_is_in_a_bucket_in_a_folder_on_a_hub_or_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("llama")).unwrap();
        let folder = Folder(dir.path().to_owned());
        let check = |id: &str, expected: Source| assert_eq!(folder.source(id), expected, "{id}");
        let other = |id: &str| check(id, Source::Other(id.to_owned()));
        let hub = |id: &str| check(id, Source::Hub(id.trim_end_matches('/').to_owned()));
        check("s3://b/m/", Source::Bucket("s3://b/m/".to_owned()));
        other("s3://");
        // The store would take what follows an @ for a revision.
        other("s3://b/m@home");
        other("s3://b/m?X-Amz-Signature=canary");
        other("s3://<bucket>/m");
        other("djl://ai.djl.pytorch/resnet");
        other("<your model id>");
        other("{{s3url}}");
        other("a/b/c");
        // A command would read the name as an option.
        other("-x");
        other("org/--local-dir");
        other("https://user:canary@host/m.gguf");
        hub("meta-llama/Llama-2-7b-hf");
        hub("meta-llama/Llama-4/");
        hub("gpt2");
        check("llama", Source::Folder(dir.path().join("llama")));
        check("./x", Source::Folder(dir.path().join("x")));
        check("/models/x", Source::Folder("/models/x".into()));
        check("/opt/ml/model/", Source::Folder(dir.path().to_owned()));
        check("/opt/ml/model/llama", Source::Folder(dir.path().join("llama")));
        assert_eq!(folder.file("/opt/ml/model/model.py"), dir.path().join("model.py"));
        assert_eq!(folder.file("/opt/ml/other.py"), std::path::Path::new("/opt/ml/other.py"));
    }

    #[test]
    fn a_file_of_formatters_is_no_handler() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().to_owned());
        let check = |text: &str, alone: bool| {
            fs::write(dir.path().join("model.py"), text).unwrap();
            assert_eq!(folder.has_formatters_alone("model.py"), alone, "{text}");
        };
        let formatter = "from djl_python.output_formatter import output_formatter\n\n\
                         @output_formatter\ndef f(output):\n    return output\n";
        check(formatter, true);
        check(&format!("{formatter}def handle(inputs):\n    return None\n"), false);
        check(&format!("{formatter}async def handle(inputs):\n    return None\n"), false);
        check(&format!("{formatter}from service import handle\n"), false);
        check("def handle(inputs):\n    return None\n", false);
        check("", false);
        assert!(!folder.has_formatters_alone("absent.py"));
    }
}
