//! Sampling parameters that the authors of a model recommend.

use nsbridge_checkpoint::{Checkpoint, GgufValue};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::gguf::json_of;

/// File with the recommended parameters.
pub(super) const FILE: &str = "generation_config.json";

/// Keys of GGUF metadata by the names of the file's fields.
const GGUF_KEYS: [(&str, &str); 5] = [
    ("general.sampling.temp", "temperature"),
    ("general.sampling.top_p", "top_p"),
    ("general.sampling.top_k", "top_k"),
    ("general.sampling.min_p", "min_p"),
    ("general.sampling.penalty_repeat", "repetition_penalty"),
];

/// Sampling parameters that the model's authors recommend. A value that cannot be used is left out, with
/// a warning that names it: a model can be served without its advice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Advice {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    /// Tokens that end a reply; `None` if the file names none.
    pub(crate) eos_token_ids: Option<Vec<u32>>,
}

impl Advice {
    fn read(fields: &Map<String, Value>, file: &str) -> Self {
        let number = |name: &str, is_usable: fn(f64) -> bool| {
            let value = fields.get(name).filter(|value| !value.is_null())?;
            let number = value.as_f64().filter(|number| is_usable(*number));
            if number.is_none() {
                tracing::warn!(file, field = name, %value, "a recommended parameter cannot be used and is left out");
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "samplers compute with this precision"
            )]
            number.map(|number| number as f32)
        };
        // -1 is vLLM's word for no limit, as is 0 in transformers.
        let top_k = number("top_k", |top| top.fract() == 0.0 && (-1.0..=1e6).contains(&top));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "its range is checked"
        )]
        let top_k = top_k.filter(|top| *top >= 1.0).map(|top| top as u32);
        Self {
            temperature: number("temperature", |it| (0.0..=100.0).contains(&it)),
            top_p: number("top_p", |it| it > 0.0 && it <= 1.0),
            top_k,
            min_p: number("min_p", |it| (0.0..=1.0).contains(&it)),
            repetition_penalty: number("repetition_penalty", |it| it > 0.0 && it <= 100.0),
            eos_token_ids: eos_token_ids(fields.get("eos_token_id"), file),
        }
    }

    /// Returns true if a parameter decides which tokens are likely.
    pub(super) fn recommends_sampling(&self) -> bool {
        let Self { temperature, top_p, top_k, min_p, .. } = self;
        temperature.is_some() || top_p.is_some() || top_k.is_some() || min_p.is_some()
    }

    /// Returns the advice, with that of a GGUF file's metadata where it says nothing.
    pub(super) fn or_gguf(self, checkpoint: &Checkpoint) -> Self {
        let metadata = checkpoint.metadata();
        let named = |(key, name): (&str, &str)| {
            let value: &GgufValue = metadata.get(key)?;
            Some((name.to_owned(), json_of(value)?))
        };
        let fields: Map<String, Value> = GGUF_KEYS.into_iter().filter_map(named).collect();
        let other = Self::read(&fields, "the GGUF file");
        Self {
            temperature: self.temperature.or(other.temperature),
            top_p: self.top_p.or(other.top_p),
            top_k: self.top_k.or(other.top_k),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            eos_token_ids: self.eos_token_ids,
        }
    }
}

impl<'de> Deserialize<'de> for Advice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::read(&Map::deserialize(deserializer)?, FILE))
    }
}

/// Reads the tokens that end a reply: an id, or a list of ids. An empty list says that none does.
fn eos_token_ids(value: Option<&Value>, file: &str) -> Option<Vec<u32>> {
    let value = value.filter(|value| !value.is_null())?;
    let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let ids: Vec<u32> = all.iter().filter_map(id).collect();
    if ids.len() < all.iter().filter(|value| !value.is_null()).count() {
        tracing::warn!(file, field = "eos_token_id", %value, "an id that is no token's is left out");
    }
    (all.is_empty() || !ids.is_empty()).then_some(ids)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use candle_core::quantized::gguf_file;
    use nsbridge_handler::Model;
    use serde_json::{Value, json};

    use super::{Advice, Checkpoint};

    fn read(fields: Value) -> Advice {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_the_rest_counts() {
        let advice = read(json!({
            "temperature": 0.6, "top_k": -1, "top_p": 0.0, "min_p": "low", "repetition_penalty": -1,
            "eos_token_id": [1, null, "x", 2], "transformers_version": "5"
        }));
        let expected =
            Advice { temperature: Some(0.6), eos_token_ids: Some(vec![1, 2]), ..Advice::default() };
        assert_eq!(advice, expected);
        assert_eq!(read(json!({ "top_k": 50.0 })).top_k, Some(50));
        assert_eq!(read(json!({ "top_k": 0, "eos_token_id": null })), Advice::default());
        assert_eq!(read(json!({ "eos_token_id": 7 })).eos_token_ids, Some(vec![7]));
        assert_eq!(read(json!({ "eos_token_id": [] })).eos_token_ids, Some(vec![]));
        assert_eq!(read(json!({ "eos_token_id": [null] })).eos_token_ids, None);
        assert_eq!(read(json!({ "temperature": 0 })).temperature, Some(0.0));
    }

    #[test]
    fn a_gguf_file_advises_where_the_generation_config_says_nothing() {
        let metadata = [
            ("general.sampling.temp", gguf_file::Value::F32(0.6)),
            ("general.sampling.top_k", gguf_file::Value::I32(20)),
            ("general.sampling.top_p", gguf_file::Value::F32(1.5)),
            ("general.sampling.min_p", gguf_file::Value::F32(0.05)),
            ("general.sampling.penalty_repeat", gguf_file::Value::F32(1.1)),
        ];
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join("model.gguf")).unwrap();
        gguf_file::write(&mut file, &metadata, &[]).unwrap();
        let checkpoint = Checkpoint::open(&Model::in_dir(dir.path())).unwrap();
        let advice = |fields: Value| read(fields).or_gguf(&checkpoint);
        let expected = Advice {
            temperature: Some(0.6),
            top_k: Some(20),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
            ..Advice::default()
        };
        assert_eq!(advice(json!({})), expected, "top_p cannot be used");
        assert!(advice(json!({})).recommends_sampling());
        let own = advice(json!({ "temperature": 0.9, "top_p": 0.8 }));
        assert_eq!(own, Advice { temperature: Some(0.9), top_p: Some(0.8), ..expected });
    }
}
