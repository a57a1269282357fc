//! Type hints of the input: its JSON schema, and the check before the call.

use std::process::Command;
use std::sync::Arc;

use nsbridge_handler::testing::check;
use nsbridge_handler::{Error, Models, testing};
use nsbridge_python::{Options, Python, schema};
use nsbridge_testkit::python::with_schemas;
use serde_json::{Value, json};

use crate::folder::{Folder, answer, load};

/// Hints that fit Python 3.9, and a `handle` that shows what it gets.
const MODEL: &str = "
    from __future__ import annotations
    import enum
    from dataclasses import dataclass, field
    from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Tuple, TypedDict, Union
    if TYPE_CHECKING:
        from nowhere import Job

    class Mood(enum.Enum):
        CALM = 'calm'
        WILD = 2

    @dataclass
    class Range:
        low: int
        high: int
        def __post_init__(self):
            if self.low > self.high:
                raise ValueError('low is above high')

    @dataclass
    class Story:
        prompt: str
        words: int = 3
        mood: Mood = Mood.CALM
        range: Optional[Range] = None
        chapters: List[Story] = field(default_factory=list)
        names: Dict[str, List[int]] = field(default_factory=dict)
        kind: Literal['short', 'long', 1] = 'short'
        ends: Union[int, str, Range, None] = None
        pair: Tuple[int, str] = (1, 'a')
        weight: float = 1

    class Base(TypedDict):
        id: int

    class Record(Base, total=False):
        note: str

    def handle(input: HINT, job: Job):
        open('called', 'w').write('called')
        return repr(input)
";

fn model(hint: &str) -> Folder {
    Folder::with(&MODEL.replace("HINT", hint))
}

/// Returns the schema of a model's inputs.
fn schema_of(options: Options) -> Result<Option<Value>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(schema(options))
}

#[track_caller]
fn shows(python: &Arc<Python>, input: &Value, expected: &str) {
    assert_eq!(answer(python, input).unwrap(), [json!(expected)]);
}

#[test]
fn the_model_gets_objects_of_its_own_classes() {
    let folder = model("Story");
    let python = folder.load();
    let shown = |more: &str| {
        format!(
            "Story(prompt='a', words=3, mood=<Mood.CALM: 'calm'>, range=None, chapters=[], \
             names={{}}, kind='short', ends=None, pair=(1, 'a'), weight=1{more})"
        )
    };
    shows(&python, &json!({ "prompt": "a" }), &shown(""));
    let whole = json!({
        "prompt": "a",
        "words": 4.0,
        "mood": 2,
        "range": { "low": 1, "high": 2 },
        "chapters": [{ "prompt": "a" }],
        "names": { "b": [1] },
        "kind": 1,
        "ends": { "low": 0, "high": 0 },
        "pair": [2, "b"],
        "weight": 2,
    });
    let expected = format!(
        "Story(prompt='a', words=4, mood=<Mood.WILD: 2>, range=Range(low=1, high=2), \
         chapters=[{}], names={{'b': [1]}}, kind=1, ends=Range(low=0, high=0), pair=(2, 'b'), \
         weight=2.0)",
        shown("")
    );
    shows(&python, &whole, &expected);
    assert_eq!(check(&python, &whole), Ok(()));
}

#[test]
fn bad_input_is_told_in_one_sentence_before_the_call() {
    let check = |hint: &str, cases: &[(Value, &str)]| {
        let folder = model(hint);
        let python = folder.load();
        for (input, expected) in cases {
            let error = answer(&python, input).unwrap_err();
            assert!(matches!(error, Error::BadInput(_)), "{input}: {error:?}");
            assert_eq!(error.to_string(), *expected);
        }
        assert_eq!(folder.read("called"), "", "`handle` is not called");
    };
    check(
        "Story",
        &[
            (json!(3), "`input` must be an object"),
            (json!({}), "`input.prompt` is missing"),
            (json!({ "prompt": 3 }), "`input.prompt` must be a string"),
            (json!({ "prompt": "a", "words": true }), "`input.words` must be an integer"),
            (json!({ "prompt": "a", "words": 1.5 }), "`input.words` must be an integer"),
            (json!({ "prompt": "a", "word": 1 }), "`input.word` is not a field of Story"),
            (json!({ "prompt": "a", "a b": 1 }), "`input[\"a b\"]` is not a field of Story"),
            (
                json!({ "prompt": "a", "y".repeat(65): 1 }),
                &format!("`input[\"{}...\"]` is not a field of Story", "y".repeat(61)),
            ),
            (json!({ "prompt": "a", "mood": "canary" }), "`input.mood` must be one of \"calm\", 2"),
            (
                json!({ "prompt": "a", "kind": true }),
                "`input.kind` must be one of \"short\", \"long\", 1",
            ),
            (
                json!({ "prompt": "a", "range": { "low": 2, "high": 1 } }),
                "`input.range` is refused: low is above high",
            ),
            (json!({ "prompt": "a", "range": 1 }), "`input.range` must be a Range or null"),
            (
                json!({ "prompt": "a", "range": { "low": 1, "high": "x" } }),
                "`input.range.high` must be an integer",
            ),
            (
                json!({ "prompt": "a", "chapters": [{ "prompt": "b" }, { "prompt": 1 }] }),
                "`input.chapters[1].prompt` must be a string",
            ),
            (
                json!({ "prompt": "a", "names": { "x y": [1, "b"] } }),
                "`input.names[\"x y\"][1]` must be an integer",
            ),
            (
                json!({ "prompt": "a", "ends": [] }),
                "`input.ends` must be an integer or a string or a Range or null",
            ),
            (json!({ "prompt": "a", "pair": [1] }), "`input.pair` must be an array of 2 elements"),
            (json!({ "prompt": "a", "pair": [1, 2] }), "`input.pair[1]` must be a string"),
            (json!({ "prompt": "a", "weight": "1" }), "`input.weight` must be a number"),
        ],
    );
    check(
        "Record",
        &[
            (json!({ "note": "a" }), "`input.id` is missing"),
            (json!({ "id": 1, "note": 2 }), "`input.note` must be a string"),
            (json!({ "id": 1, "more": 2 }), "`input.more` is not a field of Record"),
        ],
    );
    check("List[int]", &[(json!([1, 2, "a"]), "`input[2]` must be an integer")]);
    check("str", &[(json!(1), "`input` must be a string")]);
    check("dict", &[(json!([]), "`input` must be an object")]);
}

#[test]
fn an_input_without_a_hint_is_any_json() {
    for hint in ["Any", "object"] {
        let folder = model(hint);
        assert_eq!(schema_of(folder.options()).unwrap(), None);
        shows(&folder.load(), &json!([1, null]), "[1, None]");
    }
    let folder = Folder::with("def handle(input): return repr(input)");
    assert_eq!(schema_of(folder.options()).unwrap(), None);
    shows(&model("dict").load(), &json!({ "a": 1 }), "{'a': 1}");
    shows(&model("Record").load(), &json!({ "id": 1 }), "{'id': 1}");
}

#[test]
fn asynchronous_models_methods_and_batches_are_checked_as_well() {
    let refused = |options: Options, fits: &Value, bad: &Value| {
        let python = load(options);
        assert_eq!(answer(&python, fits).unwrap(), [json!(4)]);
        let error = answer(&python, bad).unwrap_err();
        assert!(matches!(&error, Error::BadInput(_)), "{error:?}");
        assert!(python.schema().is_some());
    };
    let folder = Folder::with(
        "
        class Model:
            async def handle(self, input: int, job):
                yield input
        ",
    );
    refused(folder.options(), &json!(4), &json!("a"));
    let folder = Folder::with(
        "
        from typing import List
        class Model:
            def run(self, inputs: List[str]):
                return [len(text) for text in inputs]
        ",
    );
    let mut options = folder.options();
    options.batch_size = Some(2);
    refused(options, &json!("bear"), &json!(["bear"]));
    for hint in ["typing.Sequence", "typing.List", "collections.abc.Sequence"] {
        let model = format!(
            "import collections.abc, typing\ndef run(inputs: {hint}): return [1 for _ in inputs]"
        );
        let folder = Folder::with(&model);
        let mut options = folder.options();
        options.batch_size = Some(2);
        assert_eq!(schema_of(options).unwrap(), None, "{hint}");
    }
    let mut options = Folder::with("def run(inputs: str): return []").options();
    options.batch_size = Some(2);
    assert!(schema_of(options).is_err());
}

#[test]
fn an_unsupported_hint_is_refused_at_the_load_with_its_place() {
    let refused = |hint: &str, part: &str| {
        let model = format!(
            "
            import dataclasses, datetime, enum
            from typing import *
            @dataclasses.dataclass
            class Inner:
                when: datetime.datetime
            @dataclasses.dataclass
            class Outer:
                inner: List[Inner]
            class Odd(enum.Enum):
                A = (1, 2)
            class Model:
                def load(self, models):
                    open('loaded', 'w').write('loaded')
                def handle(self, input: {hint}, job): pass
            "
        );
        let folder = Folder::with(&model);
        let loaded: Result<Arc<Python>, _> = testing::load(folder.options(), Models::default());
        let said = loaded.unwrap_err().to_string();
        assert!(said.contains(part) && said.contains("not supported"), "{hint}: {said}");
        assert_eq!(folder.read("loaded"), "", "told before a load that may take minutes");
    };
    refused("bytes", "the hint bytes of `input`");
    refused("Set[int]", "the hint Set[int] of `input`");
    refused("Outer", "the hint datetime of `input.inner[].when`");
    refused("Dict[int, str]", "the keys of a JSON object are strings");
    refused("Odd", "the hint Odd of `input` is not supported: its values are no JSON scalars");
    refused("Tuple[()]", "`input`");
    let folder = Folder::with("def handle(input: 'Missing'): pass");
    let said = schema_of(folder.options()).unwrap_err().to_string();
    assert!(said.contains("the hint of `input` cannot be read: name 'Missing'"), "{said}");
}

#[test]
fn the_schema_is_told_without_a_load() {
    let folder = Folder::with(
        "
        from dataclasses import dataclass
        @dataclass
        class Story:
            prompt: str
            words: int = 3
        class Model:
            def load(self, models):
                raise RuntimeError('the weights are elsewhere')
            def handle(self, input: Story, job): pass
        ",
    );
    let expected = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/Story",
        "$defs": { "Story": {
            "title": "Story",
            "type": "object",
            "properties": {
                "prompt": { "type": "string" },
                "words": { "type": "integer", "default": 3 },
            },
            "required": ["prompt"],
            "additionalProperties": false,
        } },
    });
    assert_eq!(schema_of(folder.options()).unwrap(), Some(expected));
}

#[test]
fn the_checks_accept_exactly_what_the_schemas_describe() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hints.py");
    let ran = Command::new(with_schemas()).arg(script).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_pydantic_model_checks_its_own_input() {
    let folder = Folder::with(
        "
        import pydantic
        class Author(pydantic.BaseModel):
            name: str = pydantic.Field(min_length=2)
        class Story(pydantic.BaseModel):
            prompt: str
            authors: list[Author] = []
            words: int = 3
            @pydantic.field_validator('prompt')
            def has_text(cls, value):
                if not value.strip():
                    raise ValueError('it has no text')
                return value.strip()
        class Model:
            def handle(self, input: Story, job):
                return input.model_dump()
        ",
    );
    let mut options = folder.options();
    options.python = with_schemas();
    let python = load(options);
    let schema = python.schema().unwrap();
    assert_eq!(schema["$defs"]["Story"]["required"], json!(["prompt"]));
    assert_eq!(schema["$defs"]["Story.Author"]["properties"]["name"]["minLength"], 2);
    let made = json!({ "prompt": "a", "authors": [{ "name": "bo" }], "words": 3 });
    let input = json!({ "prompt": " a ", "authors": [{ "name": "bo" }] });
    assert_eq!(answer(&python, &input).unwrap(), [made]);
    let said = |input: Value| answer(&python, &input).unwrap_err().to_string();
    assert_eq!(
        said(json!({ "prompt": "a", "authors": [{ "name": "b" }] })),
        "`input.authors[0].name` does not fit: String should have at least 2 characters"
    );
    assert_eq!(
        said(json!({ "prompt": " " })),
        "`input.prompt` does not fit: Value error, it has no text"
    );
    assert!(said(json!({ "prompt": "a", "words": "3" })).contains("input.words"));
    assert!(said(json!(3)).starts_with("`input` does not fit"));
}
