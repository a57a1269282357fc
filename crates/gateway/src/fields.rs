//! Fields of a request's JSON body, taken one by one, so that an error names its field.

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{ApiError, Result};

/// Fields that have not been read yet.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Parses the body of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the body is not a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self> {
        let object = serde_json::from_slice(body);
        object.map(Self).map_err(|error| {
            let at = format!("line {}, column {}", error.line(), error.column());
            let message = match error.classify() {
                serde_json::error::Category::Data => {
                    "the body of the request must be a JSON object".to_owned()
                }
                _ => format!("the body of the request is not valid JSON at {at}"),
            };
            ApiError::bad_request(message)
        })
    }

    /// Takes a field. A field that is null counts as absent.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if its value has another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(name, value).map(Some),
        }
    }

    /// Takes a field as it is, null included.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be present.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if it is absent or has another type.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        let missing = || ApiError::field(name, format!("`{name}` is missing"));
        self.take(name)?.ok_or_else(missing)
    }

    /// Drops fields that have no effect on a reply.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.0.remove(*name);
        }
    }

    /// Takes a field that may only have its default value.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field and the value that it may have.
    pub(crate) fn only(&mut self, name: &str, default: &Value) -> Result<()> {
        match self.value(name) {
            Some(value) if value != *default => Err(ApiError::field(
                name,
                format!("`{name}` is not supported: it must be absent, null or {default}"),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses the fields that nothing has taken.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first of them.
    pub(crate) fn finish(self) -> Result<()> {
        match self.0.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let name: String = name.chars().take(64).collect();
                Err(ApiError::field(&name, format!("the field `{name}` is not supported"))
                    .coded("unsupported_parameter"))
            }
        }
    }
}

impl fmt::Debug for Fields {
    /// Omits the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// Reads a value of the field `name`.
pub(crate) fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| ApiError::field(name, format!("`{name}`: {error}")))
}

/// One text or a list of texts.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fields;
    use serde_json::json;

    fn refused(body: &str, read: impl FnOnce(&mut Fields) -> crate::error::Result<()>) -> String {
        let mut fields = match Fields::parse(body.as_bytes()) {
            Ok(fields) => fields,
            Err(error) => return error.message().to_owned(),
        };
        match read(&mut fields).and_then(|()| fields.finish()) {
            Ok(()) => "taken".to_owned(),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let any = |_: &mut Fields| Ok(());
        assert_eq!(
            refused("{", any),
            "the body of the request is not valid JSON at line 1, column 1"
        );
        assert_eq!(refused("[]", any), "the body of the request must be a JSON object");
        assert_eq!(refused(r#"{"x": 1}"#, any), "the field `x` is not supported");
        assert_eq!(refused(r#"{"x": null}"#, any), "taken");
        let need = |fields: &mut Fields| fields.need::<String>("model").map(drop);
        assert_eq!(refused("{}", need), "`model` is missing");
        assert!(refused(r#"{"model": 1}"#, need).starts_with("`model`: invalid type"));
        let only = |fields: &mut Fields| fields.only("suffix", &json!(""));
        assert_eq!(refused(r#"{"suffix": ""}"#, only), "taken");
        assert!(refused(r#"{"suffix": "x"}"#, only).starts_with("`suffix` is not supported"));
    }
}
