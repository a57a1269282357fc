//! Fields of a response that repeat those of its request, written once.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

/// Fields of a request as compact JSON text, which all events of its response share.
#[derive(Clone)]
pub(crate) struct Echo(Arc<[(String, Box<RawValue>)]>);

impl Echo {
    /// Writes the fields of an object.
    pub(super) fn of(fields: Value) -> Self {
        let Value::Object(fields) = fields else { return Self(Arc::new([])) };
        let written = |(name, value)| Some((name, to_raw_value(&value).ok()?));
        Self(fields.into_iter().filter_map(written).collect())
    }
}

impl fmt::Debug for Echo {
    /// Omits the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Response as an object: the fields of the request stand between its own.
pub(crate) struct Object {
    pub(super) head: Map<String, Value>,
    pub(super) echo: Echo,
    pub(super) tail: Map<String, Value>,
}

impl Object {
    /// Adds fields. A field that is there already keeps its place.
    pub(super) fn extend(&mut self, fields: Map<String, Value>) {
        for (name, value) in fields {
            let part = if self.head.contains_key(&name) { &mut self.head } else { &mut self.tail };
            part.insert(name, value);
        }
    }
}

impl Serialize for Object {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.head.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        self.echo.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        self.tail.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Echo, Object};

    fn fields(of: &Value) -> serde_json::Map<String, Value> {
        of.as_object().cloned().unwrap()
    }

    #[test]
    fn h1_the_fields_of_a_request_are_written_once_and_stand_in_their_place() {
        let echo = Echo::of(json!({ "user": "a\nb", "tools": [{ "b": 1, "a": 2 }] }));
        let mut object = Object {
            head: fields(&json!({ "id": "x", "error": null })),
            echo: echo.clone(),
            tail: fields(&json!({ "usage": null })),
        };
        object.extend(fields(&json!({ "usage": 7, "error": 8, "nsbridge": {} })));
        let text = concat!(
            r#"{"id":"x","error":8,"user":"a\nb","tools":[{"b":1,"a":2}],"#,
            r#""usage":7,"nsbridge":{}}"#
        );
        assert_eq!(serde_json::to_string(&object).unwrap(), text);
        assert!(std::ptr::eq(&*echo.0, &*object.echo.0));
    }
}
