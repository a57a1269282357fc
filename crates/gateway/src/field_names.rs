//! Names of fields by interface. Workers and shared code name a field as chat completions do, or as
//! [`TextInput`](nsbridge_protocol::TextInput) does; a client must be told its own field.

use std::borrow::Cow;

use nsbridge_gateway_replies::Failure;

/// Interface with names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Completions,
    Embeddings,
    Messages,
    Responses,
}

impl Interface {
    /// Returns the interface of a path; `None` if its fields have the names that all code uses.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix("/v1/")?.split('/');
        match parts.next()? {
            "completions" => Some(Self::Completions),
            "embeddings" => Some(Self::Embeddings),
            "messages" => Some(Self::Messages),
            "responses" => Some(Self::Responses),
            _ => None,
        }
    }

    /// Returns the names of fields: in chat completions or at a worker, and here.
    fn names(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Completions => &[("prompt_token_ids", "prompt"), ("messages", "prompt")],
            Self::Embeddings => &[("prompt_token_ids", "input"), ("prompt", "input")],
            Self::Messages => &[
                ("response_format.json_schema.schema", "output_config.format.schema"),
                ("response_format", "output_config.format"),
                ("stop", "stop_sequences"),
            ],
            Self::Responses => &[
                ("response_format.json_schema.schema", "text.format.schema"),
                ("response_format", "text.format"),
                ("max_tokens", "max_output_tokens"),
                ("messages", "input"),
            ],
        }
    }

    /// Returns the name of a field here. The name may go on with an index or a field of it.
    fn own(self, name: &str) -> Option<String> {
        if let Some(of_tool) = name.strip_prefix("tools[") {
            let parameters = match self {
                Self::Messages => ".input_schema",
                Self::Responses => ".parameters",
                Self::Completions | Self::Embeddings => return None,
            };
            let own = of_tool.replacen(".function.parameters", parameters, 1);
            let own = own.replacen(".function.", ".", 1);
            return (own != of_tool).then(|| format!("tools[{own}"));
        }
        self.names().iter().find_map(|(theirs, own)| {
            let rest = name.strip_prefix(theirs)?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then(|| format!("{own}{rest}"))
        })
    }

    /// Returns a sentence with the names of this interface between its backticks.
    pub(crate) fn reworded(self, message: &str) -> Cow<'_, str> {
        let parts = message.split('`').enumerate().map(|(index, part)| {
            let own = if index % 2 == 1 { self.own(part) } else { None };
            own.map_or(Cow::Borrowed(part), Cow::Owned)
        });
        let parts: Vec<_> = parts.collect();
        if parts.iter().all(|part| matches!(part, Cow::Borrowed(_))) {
            return Cow::Borrowed(message);
        }
        Cow::Owned(parts.join("`"))
    }

    /// Returns the failure with the names of this interface.
    pub(crate) fn named(self, failure: Failure) -> Failure {
        let message = self.reworded(failure.message()).into_owned();
        let param = failure.param().and_then(|param| self.own(param));
        let failure = failure.saying(message);
        match param {
            Some(param) => failure.about(&param),
            None => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_gateway_replies::Failure;

    use super::Interface;

    #[track_caller]
    fn check(path: &str, theirs: &str, own: &str) {
        let message = |name: &str| format!("`{name}` must be less than `stopping`");
        let failure = Failure::bad_request(message(theirs)).about(theirs);
        let failure = match Interface::of(path) {
            Some(interface) => interface.named(failure),
            None => failure,
        };
        assert_eq!((failure.message(), failure.param()), (&*message(own), Some(own)));
    }

    #[test]
    fn a_client_is_told_its_own_field() {
        check(
            "/v1/chat/completions",
            "response_format.json_schema.schema",
            "response_format.json_schema.schema",
        );
        let schema = "response_format.json_schema.schema.properties";
        check("/v1/responses", schema, "text.format.schema.properties");
        check("/v1/responses", "max_tokens", "max_output_tokens");
        check("/v1/responses", "messages[3].content", "input[3].content");
        check("/v1/responses", "tools[3].function.parameters", "tools[3].parameters");
        check("/v1/responses", "tools[3].function.name", "tools[3].name");
        check("/v1/responses/input_tokens", "messages", "input");
        check("/v1/messages", schema, "output_config.format.schema.properties");
        check("/v1/messages", "stop[1]", "stop_sequences[1]");
        check(
            "/v1/messages/count_tokens",
            "tools[0].function.parameters.a",
            "tools[0].input_schema.a",
        );
        check("/v1/messages", "max_tokens", "max_tokens");
        check("/v1/completions", "prompt_token_ids[2]", "prompt[2]");
        check("/v1/completions", "stop", "stop");
        check("/v1/embeddings", "prompt", "input");
    }
}
