//! Schemas and tools of requests, as workers can enforce and call them.

use std::collections::BTreeSet;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use nsbridge_protocol::ResponseFormat;
use nsbridge_reply_text::schema::Enforceable;
use nsbridge_reply_text::tools::Tool;
use serde_json::Value;

use crate::error::{ApiError, Result};

/// Header with the keywords of a request's schemas that its reply may break.
pub(crate) const LEFT_OUT: HeaderName = HeaderName::from_static("nsbridge-schema-left-out");

/// Header of a reply whose model cannot call the tools of its request, with the reason.
pub(crate) const TOOLS_LEFT_OUT: HeaderName = HeaderName::from_static("nsbridge-tools-left-out");

/// Prefix of the names of fields in a worker's errors about the format of a reply.
const FORMAT: &str = "response_format";

/// Parts of a request that have no effect on its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Keywords of schemas that are not enforced.
    keywords: BTreeSet<&'static str>,
    /// True if the model writes calls in no format that is known, and none is required.
    tools: bool,
    /// True if the format of the reply comes from the schemas of tools.
    format_of_tools: bool,
}

impl LeftOut {
    /// Makes the schema of a format enforceable. `field` names the schema in the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the format is strict and has a keyword that cannot be enforced.
    pub(crate) fn enforce(
        &mut self,
        format: &mut Option<ResponseFormat>,
        field: &str,
    ) -> Result<()> {
        let Some(ResponseFormat::JsonSchema { json_schema }) = format else { return Ok(()) };
        let is_strict = json_schema.strict == Some(true);
        json_schema.schema = self.enforceable(&json_schema.schema, is_strict, field)?;
        Ok(())
    }

    /// Returns tools whose parameters are enforceable.
    ///
    /// # Errors
    ///
    /// Returns an error if a tool is strict and has a keyword that cannot be enforced.
    pub(crate) fn enforce_tools(&mut self, tools: &[Tool]) -> Result<Vec<Tool>> {
        let enforced = |(index, tool): (usize, &Tool)| {
            let is_strict = tool.strict == Some(true);
            let field = format!("tools[{index}]");
            let parameters = self.enforceable(&tool.parameters, is_strict, &field)?;
            Ok(Tool { parameters, ..tool.clone() })
        };
        tools.iter().enumerate().map(enforced).collect()
    }

    fn enforceable(&mut self, schema: &Value, is_strict: bool, field: &str) -> Result<Value> {
        let Enforceable { schema, left_out } = Enforceable::of(schema);
        if let Some(keyword) = left_out.first().filter(|_| is_strict) {
            let message = format!(
                "`{field}` is strict and has `{keyword}`, which cannot be enforced: leave one of both out"
            );
            return Err(ApiError::field(field, message).coded("schema_not_enforceable"));
        }
        self.keywords.extend(left_out);
        Ok(schema)
    }

    /// Notes that the model cannot call the tools.
    pub(crate) fn leave_tools(&mut self) {
        self.tools = true;
    }

    /// Notes that the format of the reply comes from the schemas of tools.
    pub(crate) fn take_format_of_tools(&mut self) {
        self.format_of_tools = true;
    }

    /// Names `tools` in an error of a worker about the format of the reply, if it comes from them.
    pub(crate) fn named(&self, error: ApiError) -> ApiError {
        let names_format = |name: &str| {
            let rest = name.strip_prefix(FORMAT)?;
            (rest.is_empty() || rest.starts_with('.')).then_some(())
        };
        if !self.format_of_tools || error.param().and_then(names_format).is_none() {
            return error;
        }
        let parts = error.message().split('`').enumerate().map(|(index, part)| {
            if index % 2 == 1 && names_format(part).is_some() { "tools" } else { part }
        });
        let message = parts.collect::<Vec<_>>().join("`");
        error.saying(message).about("tools")
    }

    /// Tells the client of a reply what is not enforced.
    pub(crate) fn tell(&self, mut response: Response) -> Response {
        if self.tools {
            let why = HeaderValue::from_static("the model has no format of calls");
            response.headers_mut().insert(TOOLS_LEFT_OUT, why);
        }
        let keywords: Vec<&str> = self.keywords.iter().copied().collect();
        if let Some(keywords) =
            HeaderValue::from_str(&keywords.join(", ")).ok().filter(|it| !it.is_empty())
        {
            response.headers_mut().insert(LEFT_OUT, keywords);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use nsbridge_protocol::{JsonSchema, ResponseFormat};
    use serde_json::json;

    use super::{LEFT_OUT, LeftOut, TOOLS_LEFT_OUT};
    use crate::error::ApiError;

    fn format(strict: Option<bool>) -> ResponseFormat {
        let mut json_schema =
            JsonSchema::new(json!({ "type": "array", "uniqueItems": true, "not": {} }));
        json_schema.strict = strict;
        ResponseFormat::JsonSchema { json_schema }
    }

    #[test]
    fn what_is_not_enforced_is_told_and_refused_where_it_must_be() {
        let (mut left_out, mut loose) = (LeftOut::default(), Some(format(None)));
        left_out.enforce(&mut loose, "response_format").unwrap();
        let Some(ResponseFormat::JsonSchema { json_schema }) = loose else { panic!() };
        assert_eq!(json_schema.schema, json!({ "type": "array" }));
        let response = left_out.tell(().into_response());
        assert_eq!(response.headers()[LEFT_OUT], "not, uniqueItems");
        assert!(!LeftOut::default().tell(().into_response()).headers().contains_key(LEFT_OUT));
        let error =
            left_out.enforce(&mut Some(format(Some(true))), "text.format.schema").unwrap_err();
        assert_eq!(error.json()["error"]["param"], "text.format.schema");
        assert!(error.message().contains("`not`"), "{}", error.message());
    }

    #[test]
    fn a_format_of_tools_is_named_as_theirs() {
        let field = "response_format.json_schema.schema";
        let error = ApiError::field(field, format!("`{field}` has `response_formats`"));
        let mut left_out = LeftOut::default();
        assert_eq!(left_out.named(error.clone()).param(), Some(field));
        left_out.take_format_of_tools();
        let named = left_out.named(error);
        assert_eq!(
            (named.param(), named.message()),
            (Some("tools"), "`tools` has `response_formats`")
        );
        let other = left_out.named(ApiError::field("stop", "`stop` is too long"));
        assert_eq!(other.param(), Some("stop"));
    }

    #[test]
    fn tools_that_the_model_cannot_call_are_told() {
        let mut left_out = LeftOut::default();
        left_out.leave_tools();
        let response = left_out.tell(().into_response());
        assert_eq!(response.headers()[TOOLS_LEFT_OUT], "the model has no format of calls");
    }
}
