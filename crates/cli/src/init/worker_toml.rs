//! Text of the worker.toml that `nsbridge init` writes.

use nsbridge_protocol::ModelName;
use toml::Value;

/// Files of a worker's model, as its configuration names them.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Folder, GGUF file or S3 location of the model.
    pub(super) target: Option<String>,
    /// Folder of the draft model.
    pub(super) draft: Option<String>,
    /// File of a model in Python, or FILE:CLASS.
    pub(super) python: Option<String>,
}

/// Returns the text of a configuration.
pub(super) fn text(model: &ModelName, broker: &str, keyring: &str, files: Files) -> String {
    let [model, broker, keyring] = [model.as_str(), broker, keyring].map(quoted);
    let mut text = format!(
        "# Worker of `nsbridge worker`. NSBRIDGE_<SECTION>__<FIELD> in the environment overrides each field;\n\
         # worker.example.toml in the documentation of nsbridge has all fields.\n\n\
         [worker]\n# Name that clients ask for. It is part of the name of the queue.\nmodel = {model}\n\n\
         [broker]\n# A URL with a password belongs into NSBRIDGE_BROKER__URL.\nurl = {broker}\n\n\
         [keys]\n# Only workers may have this file; `nsbridge keys derive` makes one for clients.\n\
         keyring = {keyring}\n\n\
         [health]\n# Serves /livez, /readyz and /metrics; `nsbridge health` asks here.\n\
         listen = \"127.0.0.1:9464\"\n"
    );
    let Files { target, draft, python } = files;
    if target.is_some() {
        text.push_str("\n[models]\n");
    }
    for (name, place) in [("target", target), ("draft", draft)] {
        text.extend(place.map(|place| format!("{name} = {}\n", quoted(&place))));
    }
    let python = python.map(|file| format!("\n[handler]\nentry_point = {}\n", quoted(&file)));
    text.extend(python);
    text
}

/// Returns a string of TOML.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nsbridge::worker::Config;

    use super::{Files, text};

    fn read(text: &str) -> Config {
        Config::from_text(text, BTreeMap::new()).unwrap()
    }

    #[test]
    fn a_worker_accepts_every_text() {
        let model = "tale-7m".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a \"b\"\\c モデル").to_str().unwrap().to_owned();
        std::fs::create_dir(&odd).unwrap();
        let draft = Some("s3://bucket/draft".to_owned());
        let files = Files { target: Some(odd.clone()), draft, python: None };
        let config = read(&text(&model, "amqp://localhost", "keys.json", files));
        assert_eq!(config.worker.model, model);
        assert!(config.keys.keyring.unwrap().ends_with("keys.json"));
        assert_eq!(config.models["target"].wanted().location.to_string(), odd);
        assert_eq!(config.models.len(), 2);
        assert!(config.health.listen.is_some() && config.handler.is_empty());
    }

    #[test]
    fn a_model_in_python_may_have_no_files() {
        let files = Files { python: Some("model.py:Parrot".into()), ..Files::default() };
        let config = read(&text(&"parrot".parse().unwrap(), "amqps://mq/%2f", "k.json", files));
        assert!(config.models.is_empty());
        assert_eq!(config.handler["entry_point"].as_str(), Some("model.py:Parrot"));
    }
}
