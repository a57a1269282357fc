//! Response format as a rule for the grammar; invalid formats are refused with the name of the
//! field.

use std::fmt;

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use nsbridge_handler::{Error, ResponseFormat, Result, ToolCallFormat};
use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Value, json};

use super::work;

/// Maximum size of a schema as JSON, and of a regular expression, in bytes.
const MOST_SCHEMA: usize = 64 << 10;
const MOST_REGEX: usize = 8 << 10;

/// Maximum size of an expression with expanded character classes, in bytes: some hundred `\w`.
const MOST_CLASSES: usize = 1 << 20;

const SCHEMA: &str = "response_format.json_schema.schema";
const REGEX: &str = "response_format.regex";
const TOOLS: &str = "tools";

/// Maximum size of the text before or after a call, in bytes.
const MAX_TAG_BYTES: usize = 64;

/// Rule that a text must satisfy.
#[derive(Clone, PartialEq)]
pub struct Rule(Kind);

#[derive(Clone, PartialEq)]
enum Kind {
    /// JSON that is valid under this schema.
    Json(Value),
    /// Text that this expression matches as a whole.
    Regex(String),
    /// Text with calls.
    Calls(Calls),
}

/// Text with calls. The schemas are compact.
#[derive(Clone, PartialEq)]
struct Calls {
    begin: String,
    end: String,
    call: Value,
    otherwise: Option<Value>,
}

impl Calls {
    fn of(format: &ToolCallFormat) -> Result<Self> {
        let ToolCallFormat { begin, end, schema: call, otherwise, .. } = format;
        if begin.len().max(end.len()) > MAX_TAG_BYTES {
            let why =
                format!("`{TOOLS}`: calls must begin and end with {MAX_TAG_BYTES} bytes at most");
            return Err(Error::bad_input(why));
        }
        check(TOOLS, call)?;
        if let Some(otherwise) = otherwise {
            check(SCHEMA, otherwise)?;
        }
        let (call, otherwise) = (compact(call.clone()), otherwise.clone().map(compact));
        Ok(Self { begin: begin.clone(), end: end.clone(), call, otherwise })
    }

    /// Returns the grammar in the parser's dialect of Lark.
    ///
    /// A lazy rule ends with the first text that begins a call, so the grammar sees it wherever it stands.
    fn lark(&self) -> String {
        let escaped = |text: &str| regex_syntax::escape(text).replace('/', "\\/");
        let (begin, end) = (escaped(&self.begin), escaped(&self.end));
        let mut rules = match (&self.otherwise, self.begin.is_empty()) {
            (None, true) => "start: call | TEXT\nTEXT: /[^{](.|\\n)*/\n".to_owned(),
            (Some(_), true) => "start: call | text\n".to_owned(),
            (None, false) => format!(
                "start: (begin SPACE? call end)* TEXT?\nSPACE: /[ \\n]+/\nbegin[lazy]: /(.|\\n)*{begin}/\n\
                 TEXT: /(.|\\n)+/ & ~/(.|\\n)*{begin}(.|\\n)*/\n"
            ),
            (Some(_), false) => {
                format!("start: (begin call end)+ | text\nbegin: /[ \\n]*{begin}[ \\n]*/\n")
            }
        };
        if !self.begin.is_empty() {
            rules.push_str(&format!("end: /[ \\n]*{end}/\n"));
        }
        rules.push_str(&format!("call: %json {}\n", self.call));
        if let Some(otherwise) = &self.otherwise {
            rules.push_str(&format!("text: %json {otherwise}\n"));
        }
        rules
    }
}

impl fmt::Debug for Rule {
    /// Omits the rule's content, which is text of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Json(_) => "Json",
            Kind::Regex(_) => "Regex",
            Kind::Calls(_) => "Calls",
        })
    }
}

impl Rule {
    /// Converts a response format. Returns `None` if any text is allowed.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field.
    pub fn of(format: &ResponseFormat) -> Result<Option<Self>> {
        Ok(match format {
            ResponseFormat::Text {} => None,
            ResponseFormat::JsonObject {} => Some(Self::json(json!({ "type": "object" }))),
            ResponseFormat::JsonSchema { json_schema } => {
                check(SCHEMA, &json_schema.schema)?;
                Some(Self::json(json_schema.schema.clone()))
            }
            ResponseFormat::ToolCalls { tool_calls } => {
                Some(Self(Kind::Calls(Calls::of(tool_calls)?)))
            }
            ResponseFormat::Regex { regex } => Some(Self(Kind::Regex(expression(regex)?))),
            other => {
                return Err(Error::bad_input(format!("`response_format` {other:?} is unknown")));
            }
        })
    }

    fn json(schema: Value) -> Self {
        Self(Kind::Json(compact(schema)))
    }

    /// Returns the grammar for the parser.
    pub(super) fn grammar(&self) -> TopLevelGrammar {
        match &self.0 {
            Kind::Json(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Kind::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Kind::Calls(calls) => TopLevelGrammar::from_lark(calls.lark()),
        }
    }

    /// Error for a rule that cannot be followed.
    pub(super) fn refused(&self, why: &str) -> Error {
        let field = match self.0 {
            Kind::Json(_) => SCHEMA,
            Kind::Regex(_) => REGEX,
            Kind::Calls(_) => TOOLS,
        };
        Error::bad_input(format!("`{field}`: {}", told(why)))
    }
}

/// Converts the parser's message into one for the author of the rule.
fn told(why: &str) -> String {
    let is = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if why.starts_with("panic") {
        return "it cannot be compiled".to_owned();
    }
    if is(&["too large", "too big", "too complex", "limit", "fuel"]) {
        return "it takes too much work".to_owned();
    }
    if is(&["oneOf constraints"]) {
        return "`oneOf` is possible only where its schemas surely exclude each other; take `anyOf`"
            .to_owned();
    }
    if is(&["Only absolute $ref"]) {
        return "`$ref` must be within the schema, as `#/$defs/name`".to_owned();
    }
    // The last line has the fault of a regular expression, below a drawing of its position.
    let line = why.lines().find_map(|line| line.strip_prefix("error: "));
    let line = line.or(why.lines().next()).unwrap_or_default();
    line.chars().take(300).collect()
}

/// Returns the schema of JSON without whitespace, which an uncertain model would write up to the length
/// limit.
fn compact(mut schema: Value) -> Value {
    let compact = JsonCompileOptions { whitespace_flexible: false, ..Default::default() };
    compact.apply_to(&mut schema);
    schema
}

/// Checks the bounds of a schema. `field` names it in the error.
fn check(field: &str, schema: &Value) -> Result<()> {
    let refuse = |why: String| Err(Error::bad_input(format!("`{field}` {why}")));
    let Some(keywords) = schema.as_object() else {
        return refuse("must be an object".to_owned());
    };
    if keywords.contains_key("x-guidance") {
        return refuse("must not have `x-guidance`".to_owned());
    }
    let bytes = schema.to_string().len();
    if bytes > MOST_SCHEMA {
        return refuse(format!("has {bytes} bytes, and {MOST_SCHEMA} are the most"));
    }
    if let Some(why) = work::too_much(schema) {
        return refuse(why);
    }
    Ok(())
}

/// Returns the expression as its parser prints it: without comments and flags. Anchors at its ends
/// are removed too, since the whole text is matched anyway.
fn expression(regex: &str) -> Result<String> {
    let refuse = |why: String| Err(Error::bad_input(format!("`{REGEX}` {why}")));
    if regex.len() > MOST_REGEX {
        return refuse(format!("has {} bytes, and {MOST_REGEX} are the most", regex.len()));
    }
    let hir = match regex_syntax::parse(regex) {
        Ok(hir) => hir,
        Err(error) => return refuse(format!("is no regular expression: {}", reason(&error))),
    };
    let hir = without_anchors(hir);
    if !hir.properties().look_set().is_empty() {
        return refuse("must have no anchor or border within: it is matched as a whole".to_owned());
    }
    if hir.properties().minimum_len().is_none() {
        return refuse("matches no text".to_owned());
    }
    if hir.properties().maximum_len() == Some(0) {
        return refuse("matches no text but the empty one".to_owned());
    }
    let printed = hir.to_string();
    if printed.len() > MOST_CLASSES {
        return refuse("takes too much work: its classes are too many".to_owned());
    }
    Ok(printed)
}

/// Returns the fault of an expression, without the lines that point to its position.
fn reason(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it cannot be parsed".to_owned(),
    }
}

fn without_anchors(hir: Hir) -> Hir {
    let HirKind::Concat(parts) = hir.kind() else { return hir };
    let is =
        |part: Option<&Hir>, look| part.is_some_and(|part| *part.kind() == HirKind::Look(look));
    let from = usize::from(is(parts.first(), Look::Start));
    let to = parts.len() - usize::from(is(parts.last(), Look::End));
    Hir::concat(parts[from.min(to)..to].to_vec())
}
