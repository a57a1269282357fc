//! Parser of `rope_parameters` and `rope_scaling` in `config.json`.

use serde_json::{Map, Value};

use super::{Rope, RopeScaling};
use crate::config::{FILE, refused};
use crate::error::LoadError;

const DEFAULT_THETA: f64 = 10_000.0;

/// The JSON object, its name in the file, and the model's context length.
pub(in crate::config) struct Parameters<'a> {
    pub(in crate::config) fields: &'a Map<String, Value>,
    pub(in crate::config) name: &'a str,
    pub(in crate::config) context: f64,
}

impl Parameters<'_> {
    /// Parses the object. The arguments are the fields that older files have outside of it.
    pub(in crate::config) fn rope(
        &self,
        theta: Option<f64>,
        original_context: Option<f64>,
        partial: Option<f64>,
    ) -> Result<Rope, LoadError> {
        if let Some((field, _)) = self.fields.iter().find(|(_, value)| value.is_object()) {
            let field = format!("{}.{field}", self.name);
            return refused(&field, "an object", "one set of numbers for all layers");
        }
        let partial = self.number("partial_rotary_factor")?.or(partial).unwrap_or(1.0);
        if partial != 1.0 {
            return refused("partial_rotary_factor", partial, "1");
        }
        let theta = self.number("rope_theta")?.or(theta).unwrap_or(DEFAULT_THETA);
        // A base of 1 would give every pair the same frequency, and its logarithm, a divisor, would
        // be 0.
        if theta <= 1.0 {
            return refused("rope_theta", theta, "a number above 1");
        }
        Ok(Rope { theta, scaling: self.scaling(original_context)? })
    }

    fn scaling(&self, original_context: Option<f64>) -> Result<RopeScaling, LoadError> {
        match self.kind()? {
            "default" | "dynamic" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: self.needed("factor")? }),
            "llama3" => self.llama3(self.original(original_context)?),
            "yarn" => self.yarn(self.original(original_context)?),
            other => {
                let field = format!("{}.rope_type", self.name);
                refused(&field, other, "default, dynamic, linear, llama3 or yarn")
            }
        }
    }

    fn kind(&self) -> Result<&str, LoadError> {
        match self.fields.get("rope_type").or_else(|| self.fields.get("type")) {
            None | Some(Value::Null) => Ok("default"),
            Some(Value::String(kind)) => Ok(kind),
            Some(other) => refused(&format!("{}.rope_type", self.name), other, "a string"),
        }
    }

    /// Returns the original context. As in transformers, the field outside of the object wins, and
    /// the model's context is the fallback.
    fn original(&self, outside: Option<f64>) -> Result<f64, LoadError> {
        let field = "original_max_position_embeddings";
        match outside {
            Some(outside) if outside > 0.0 => Ok(outside),
            Some(outside) => refused(field, outside, "a number above 0"),
            None => Ok(self.number(field)?.unwrap_or(self.context)),
        }
    }

    fn llama3(&self, original_context: f64) -> Result<RopeScaling, LoadError> {
        let factor = self.needed("factor")?;
        let low_freq_factor = self.needed("low_freq_factor")?;
        let high_freq_factor = self.needed("high_freq_factor")?;
        if high_freq_factor <= low_freq_factor {
            let field = format!("{}.high_freq_factor", self.name);
            return refused(&field, high_freq_factor, "a number above low_freq_factor");
        }
        Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
    }

    /// Parses `yarn`. An explicit `factor` wins over the ratio of the two contexts, as in
    /// transformers 5; some releases of 4 took the ratio.
    fn yarn(&self, original_context: f64) -> Result<RopeScaling, LoadError> {
        let factor = self.number("factor")?.unwrap_or(self.context / original_context);
        let mscales = self.number_or_0("mscale")?.zip(self.number_or_0("mscale_all_dim")?);
        let inferred = match mscales {
            Some((one, all)) => magnitude(factor, one) / magnitude(factor, all),
            None => usual_attention_factor(factor),
        };
        let truncate = match self.fields.get("truncate") {
            None => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(other) => {
                return refused(&format!("{}.truncate", self.name), other, "true or false");
            }
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: self.number_or_0("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number_or_0("beta_slow")?.unwrap_or(1.0),
            original_context,
            truncate,
            attention_factor: self.number("attention_factor")?.unwrap_or(inferred),
        })
    }

    /// Returns a number above 0, or `None` if the field is absent or null.
    fn number(&self, field: &str) -> Result<Option<f64>, LoadError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|value| *value > 0.0) {
                Some(number) => Ok(Some(number)),
                None => refused(&format!("{}.{field}", self.name), value, "a number above 0"),
            },
        }
    }

    /// Returns a number above 0, or `None` also for 0, where transformers treats 0 as absent.
    fn number_or_0(&self, field: &str) -> Result<Option<f64>, LoadError> {
        match self.fields.get(field).and_then(Value::as_f64) {
            Some(0.0) => Ok(None),
            _ => self.number(field),
        }
    }

    fn needed(&self, field: &str) -> Result<f64, LoadError> {
        self.number(field)?.ok_or_else(|| {
            let name = self.name;
            LoadError::Missing(format!("{name}.{field} in {FILE} must be a number above 0"))
        })
    }
}

/// Returns the attention factor of a scaled context where a configuration names none.
pub(crate) fn usual_attention_factor(factor: f64) -> f64 {
    magnitude(factor, 1.0)
}

/// Returns the attention factor of a scaled context (`get_mscale`).
fn magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 }
}
