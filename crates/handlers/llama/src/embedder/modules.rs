//! Pooling of a model, from its worker's options or from the files of sentence-transformers.

use nsbridge_handler::Model;
use serde::Deserialize;

use crate::config::find_json;
use crate::error::LoadError;
use crate::options::{Options, Pooling};

const MODULES: &str = "modules.json";

/// Folder of the pooling module, if `modules.json` does not name another one.
const POOLING: &str = "1_Pooling";

/// Steps from the final hidden states to a vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Modules {
    pub(super) pooling: Pooling,
    pub(super) normalize: bool,
}

/// Entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// Fields of a pooling module's `config.json`; an absent mode is off.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Modes {
    pooling_mode_mean_tokens: bool,
    pooling_mode_lasttoken: bool,
    pooling_mode_cls_token: bool,
    pooling_mode_max_tokens: bool,
    pooling_mode_mean_sqrt_len_tokens: bool,
    pooling_mode_weightedmean_tokens: bool,
}

impl Modes {
    /// Returns the pooling, or `None` unless exactly one supported mode is on.
    fn pooling(&self) -> Option<Pooling> {
        let others = self.pooling_mode_cls_token
            || self.pooling_mode_max_tokens
            || self.pooling_mode_mean_sqrt_len_tokens
            || self.pooling_mode_weightedmean_tokens;
        match (self.pooling_mode_mean_tokens, self.pooling_mode_lasttoken, others) {
            (true, false, false) => Some(Pooling::Mean),
            (false, true, false) => Some(Pooling::Last),
            _ => None,
        }
    }
}

impl Modules {
    /// Reads the steps: the worker's options, else the files, else the last token and length 1.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or describes a step that is not supported.
    pub(super) fn read(model: &Model, options: &Options) -> Result<Self, LoadError> {
        let listed: Option<Vec<Module>> = find_json(model, MODULES)?;
        let is = |module: &&Module, kind: &str| module.kind.rsplit('.').next() == Some(kind);
        let find = |kind| listed.iter().flatten().find(|module| is(module, kind));
        for module in listed.iter().flatten() {
            if !["Transformer", "Pooling", "Normalize"].iter().any(|kind| is(&module, kind)) {
                let field = format!("a module in {MODULES}");
                let supported = "Transformer, Pooling or Normalize";
                return Err(LoadError::unsupported(field, module.kind.clone(), supported));
            }
        }
        let folder = find("Pooling").map_or(POOLING, |module| module.path.as_str());
        let file = format!("{folder}/config.json");
        let modes: Option<Modes> = find_json(model, &file)?;
        let pooling = match (options.pooling, modes) {
            (Some(pooling), _) => pooling,
            (None, None) => Pooling::Last,
            (None, Some(modes)) => modes.pooling().ok_or_else(|| {
                let supported = "pooling_mode_lasttoken or pooling_mode_mean_tokens, one of both";
                LoadError::unsupported(format!("the pooling in {file}"), "another", supported)
            })?,
        };
        let listed_norm = listed.as_ref().map(|_| find("Normalize").is_some());
        let normalize = options.normalize.or(listed_norm).unwrap_or(true);
        Ok(Self { pooling, normalize })
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::Model;
    use serde_json::{Value, json};

    use super::{Modules, Options, Pooling};

    fn read(
        modules: Option<Value>,
        modes: Option<Value>,
        options: &Options,
    ) -> Result<(Pooling, bool), String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        for (name, json) in [("modules.json", modules), ("1_Pooling/config.json", modes)] {
            if let Some(json) = json {
                std::fs::write(dir.path().join(name), json.to_string()).unwrap();
            }
        }
        let read = Modules::read(&Model::in_dir(dir.path()), options);
        read.map(|read| (read.pooling, read.normalize)).map_err(|error| error.to_string())
    }

    fn modules(kinds: &[&str]) -> Option<Value> {
        let module = |(at, kind): (usize, &&str)| {
            let path = if at == 0 { String::new() } else { format!("{at}_{kind}") };
            json!({ "idx": at, "name": at.to_string(), "path": path,
                    "type": format!("sentence_transformers.models.{kind}") })
        };
        Some(kinds.iter().enumerate().map(module).collect())
    }

    fn modes(last: bool, mean: bool, cls: bool) -> Option<Value> {
        Some(json!({
            "word_embedding_dimension": 8, "pooling_mode_cls_token": cls,
            "pooling_mode_mean_tokens": mean, "pooling_mode_lasttoken": last,
            "include_prompt": true
        }))
    }

    #[test]
    fn options_go_before_files_and_files_before_the_default() {
        let none = Options::default();
        let all = ["Transformer", "Pooling", "Normalize"];
        assert_eq!(read(None, None, &none), Ok((Pooling::Last, true)));
        let mean = modes(false, true, false);
        assert_eq!(read(modules(&all), mean.clone(), &none), Ok((Pooling::Mean, true)));
        assert_eq!(read(None, mean.clone(), &none), Ok((Pooling::Mean, true)));
        let last = modes(true, false, false);
        assert_eq!(read(modules(&all[..2]), last, &none), Ok((Pooling::Last, false)));
        let own =
            Options { pooling: Some(Pooling::Last), normalize: Some(true), ..Options::default() };
        assert_eq!(read(modules(&all[..2]), mean, &own), Ok((Pooling::Last, true)));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_its_name() {
        let none = Options::default();
        let all = ["Transformer", "Pooling", "Dense"];
        let why = read(modules(&all), modes(true, false, false), &none).unwrap_err();
        assert!(why.contains("modules.json") && why.contains("Dense"), "{why}");
        for modes in [modes(true, true, false), modes(false, false, true), Some(json!({}))] {
            let why = read(modules(&all[..2]), modes, &none).unwrap_err();
            assert!(why.contains("1_Pooling/config.json"), "{why}");
        }
    }
}
