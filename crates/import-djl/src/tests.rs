//! Tests of the import: all fixtures, random options, and the table of the documentation.

mod fates;
mod fixtures;
mod random;

use std::fs;
use std::path::Path;

use nsbridge::worker::Config;
use nsbridge_import::Imported;
use tempfile::TempDir;

use super::folder::Folder;
use super::settings::Settings;
use super::{check, convert, environment, properties};

/// Folder of a model, removed at the end of a test.
struct Place(TempDir);

impl Place {
    /// Creates a folder with files, each with content that fits its name.
    fn with(files: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let model = dir.path().join("bear");
        fs::create_dir(&model).unwrap();
        for file in files {
            let text = match *file {
                "config.json" => CONFIG,
                "run.model.py" => "def run(inputs):\n    return inputs\n",
                _ => "def handle(inputs):\n    return None\n",
            };
            fs::write(model.join(file.trim_start_matches("run.")), text).unwrap();
        }
        Self(dir)
    }

    fn model(&self) -> Folder {
        Folder(self.0.path().join("bear"))
    }

    fn import(&self, properties: &str, variables: &str) -> Imported {
        let settings = Settings::new(
            properties::parse(properties).unwrap(),
            environment::variables(variables).unwrap(),
        );
        let imported = convert(&settings, &self.model(), None);
        check(&imported.draft).unwrap();
        imported
    }

    /// Returns the file that is written beside the model's folder.
    fn toml(&self, imported: &Imported) -> String {
        imported.draft.text(self.0.path())
    }

    /// Reads the file as a worker does.
    fn read(&self, imported: &Imported) -> Result<Config, String> {
        let file = self.0.path().join("worker.toml");
        fs::write(&file, self.toml(imported)).unwrap();
        Config::read(&file, []).map_err(|error| error.to_string())
    }
}

/// Configuration of a small Llama model.
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "vocab_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "eos_token_id": 0}"#;

/// Folder of the fixtures: the properties and variables that DJLServing's documentation prints.
fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/djl"))
}
