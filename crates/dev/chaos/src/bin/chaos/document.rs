//! Formats of replies of the engine handler, read from the text that a caller received.

use anyhow::{Context, Result, ensure};
use nsbridge_protocol::{ResponseFormat, TextInput, ToolCallFormat};
use serde_json::{Deserializer, Value};

use crate::order::Piece;

/// Checks that each of the replies to `input` is whole, and one document of the input's format.
pub(crate) fn check(input: &Value, pieces: &[Piece]) -> Result<()> {
    let input: TextInput = serde_json::from_value(input.clone())?;
    let replies = input.n.unwrap_or(1);
    let strange = pieces.iter().find(|piece| piece.choice >= replies);
    ensure!(strange.is_none(), "a piece belongs to no reply: {strange:?}");
    for choice in 0..replies {
        let own: Vec<&Piece> = pieces.iter().filter(|piece| piece.choice == choice).collect();
        let ended = own.iter().position(|piece| piece.finish_reason.is_some());
        let is_whole = replies == 1 || ended.is_some_and(|at| at + 1 == own.len());
        ensure!(is_whole, "reply {choice} of {replies} does not end with its last piece");
        if let Some(format) = &input.response_format {
            let text: String = own.iter().map(|piece| piece.text.as_str()).collect();
            check_text(format, &text).with_context(|| format!("reply {choice} of {replies}"))?;
        }
    }
    Ok(())
}

fn check_text(format: &ResponseFormat, text: &str) -> Result<()> {
    match format {
        ResponseFormat::JsonSchema { json_schema } => {
            let document = serde_json::from_str(text).context("it is not one JSON document")?;
            check_schema(&json_schema.schema, &document)
        }
        ResponseFormat::ToolCalls { tool_calls } => check_calls(tool_calls, text),
        _ => Ok(()),
    }
}

/// Checks a text that has at least one call.
fn check_calls(format: &ToolCallFormat, text: &str) -> Result<()> {
    let ToolCallFormat { begin, end, schema, .. } = format;
    let (_, mut rest) = text.split_once(begin.as_str()).context("it has no call")?;
    loop {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let call = values.next().context("a call is empty")?.context("a call is not JSON")?;
        check_schema(schema, &call)?;
        let after = rest[values.byte_offset()..].trim_start().strip_prefix(end.as_str());
        let after = after.context("a call does not end after its JSON")?;
        let Some((_, next)) = after.split_once(begin.as_str()) else { return Ok(()) };
        rest = next;
    }
}

fn check_schema(schema: &Value, document: &Value) -> Result<()> {
    ensure!(jsonschema::is_valid(schema, document), "it does not conform to its schema");
    Ok(())
}
