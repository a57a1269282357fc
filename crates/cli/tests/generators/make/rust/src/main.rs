//! Writes JSON schemas as schemars 1.x makes them; the first argument is the folder to write to.
#![allow(dead_code)]
use indexmap::IndexSet;
use schemars::generate::SchemaSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::time::{Duration, SystemTime};

/// Every width of number that Rust has.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Numbers {
    a: u8,
    b: i8,
    c: u16,
    d: i16,
    e: u32,
    f: i32,
    g: u64,
    h: i64,
    i: usize,
    j: isize,
    k: u128,
    l: i128,
    m: f32,
    n: f64,
    o: NonZeroU32,
    p: Option<NonZeroU64>,
    q: char,
    r: (),
    s: bool,
}

/// Optional values.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Options {
    /// A plain option.
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    nested: Option<Inner>,
    kind: Option<Unit>,
    list: Option<Vec<Option<i32>>>,
    #[serde(default)]
    verbose: bool,
    #[serde(default = "ten")]
    page_size: u32,
    #[schemars(required)]
    must: Option<String>,
    #[deprecated]
    old: Option<String>,
}
fn ten() -> u32 {
    10
}

/// The inner part.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
struct Inner {
    x: f64,
    y: f64,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Unit {
    MetricTons,
    Pounds,
}

/// Variants with comments become a oneOf of const.
#[derive(Serialize, Deserialize, JsonSchema)]
enum Level {
    /// Nothing is told.
    Off,
    /// Only errors.
    Error,
    Warn,
    #[serde(alias = "verbose")]
    Debug,
}

#[derive(Serialize, Deserialize, JsonSchema)]
enum External {
    Nothing,
    Text(String),
    Pair(i32, String),
    Shape { width: u32, height: u32 },
    Wrapped(Box<Inner>),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Internal {
    Ping,
    ReadFile { path: String, offset: Option<u64> },
    WriteFile { path: String, content: String },
    Move(Inner),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "t", content = "c", deny_unknown_fields)]
enum Adjacent {
    Unit,
    One(u8),
    Tuple(u8, String),
    Struct { a: bool },
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Untagged {
    Null,
    Number(f64),
    Text(String),
    Many(Vec<Untagged>),
    Map { key: String, value: Box<Untagged> },
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Maps {
    any: HashMap<String, serde_json::Value>,
    counts: BTreeMap<String, u64>,
    by_number: BTreeMap<u32, String>,
    by_signed: HashMap<i64, Vec<u8>>,
    nested: HashMap<String, HashMap<String, Option<bool>>>,
    by_unit: BTreeMap<UnitKey, i32>,
    object: serde_json::Map<String, serde_json::Value>,
}
#[derive(Serialize, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
enum UnitKey {
    A,
    B,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Sequences {
    set: BTreeSet<String>,
    index_set: IndexSet<i32>,
    array: [f32; 3],
    bytes: [u8; 16],
    empty: [String; 0],
    pair: (String, i64),
    triple: (bool, Option<u8>, Inner),
    list: Vec<Vec<Inner>>,
    range: Range<u32>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Common {
    /// Trace identifier.
    trace_id: Option<String>,
    dry_run: bool,
}

/// flatten of a struct.
#[derive(Serialize, Deserialize, JsonSchema)]
struct FlattenStruct {
    name: String,
    #[serde(flatten)]
    common: Common,
}

/// flatten of an enum and of a map: a oneOf beside properties.
#[derive(Serialize, Deserialize, JsonSchema)]
struct FlattenEnum {
    id: u64,
    #[serde(flatten)]
    action: Internal,
    #[serde(flatten)]
    outcome: External,
    #[serde(flatten)]
    extra: HashMap<String, serde_json::Value>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FlattenStrict {
    id: u64,
    #[serde(flatten)]
    mode: Option<Internal>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Tree {
    value: i32,
    left: Option<Box<Tree>>,
    right: Option<Box<Tree>>,
    #[serde(default)]
    children: Vec<Tree>,
}

/// Names with a slash and a tilde need escapes in a reference.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Escaped {
    config: SlashName,
    other: Vec<TildeName>,
    page: Page<SlashName>,
    pages: Page<Option<String>>,
}
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "api/v1/Config")]
struct SlashName {
    host: String,
}
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "a~b c%")]
struct TildeName {
    port: u16,
}
#[derive(Serialize, Deserialize, JsonSchema)]
struct Page<T> {
    items: Vec<T>,
    next: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Validated {
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    slug: String,
    #[schemars(email)]
    email: String,
    #[schemars(url)]
    home: String,
    #[schemars(range(min = 0.0, max = 1.0))]
    ratio: f64,
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 100))]
    percent: i32,
    #[schemars(length(min = 1, max = 3), inner(length(max = 8), contains(pattern = "-")))]
    tags: Vec<String>,
    #[schemars(contains(pattern = "@"))]
    handle: String,
    #[schemars(range(max = 18446744073709551615u64))]
    big: u64,
    #[schemars(extend("multipleOf" = 5, "examples" = [5, 10]))]
    step: u32,
    #[schemars(with = "String", extend("contentEncoding" = "base64", "contentMediaType" = "image/png"))]
    picture: Vec<u8>,
    #[schemars(example = &"first", example = &"second", title = "A title")]
    sample: String,
    #[serde(rename = "$weird.name/with \"quotes\"")]
    weird: Option<bool>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Formats {
    at: chrono::DateTime<chrono::Utc>,
    local: chrono::NaiveDateTime,
    day: chrono::NaiveDate,
    time: chrono::NaiveTime,
    weekday: chrono::Weekday,
    id: uuid::Uuid,
    link: url::Url,
    price: rust_decimal::Decimal,
    version: semver::Version,
    took: Duration,
    since: SystemTime,
    ip: std::net::IpAddr,
    v4: std::net::Ipv4Addr,
    v6: std::net::Ipv6Addr,
    path: std::path::PathBuf,
    result: Result<String, u16>,
    bound: std::ops::Bound<i32>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Newtype(Vec<Inner>);
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Transparent {
    inner: HashMap<String, Newtype>,
}
#[derive(Serialize, Deserialize, JsonSchema)]
struct UnitStruct;
#[derive(Serialize, Deserialize, JsonSchema)]
struct Odd {
    new: Newtype,
    transparent: Transparent,
    unit: UnitStruct,
    value: serde_json::Value,
    #[serde(rename = "type")]
    kind: Option<UnitStruct>,
    #[serde(skip)]
    hidden: u8,
    #[serde(skip_deserializing)]
    only_out: u8,
    #[serde(skip_serializing, default)]
    only_in: Inner,
}

fn write<T: JsonSchema>(name: &str, settings: SchemaSettings) {
    let dir = std::env::args().nth(1).expect("a folder");
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut out = Vec::new();
    let mut ser = serde_json::Serializer::with_formatter(
        &mut out,
        serde_json::ser::PrettyFormatter::with_indent(b" "),
    );
    schema.serialize(&mut ser).unwrap();
    out.push(b'\n');
    std::fs::write(format!("{dir}/{name}.json"), out).unwrap();
}

fn main() {
    let s = SchemaSettings::draft2020_12;
    write::<Numbers>("numbers", s());
    write::<Numbers>("numbers-openapi3", SchemaSettings::openapi3());
    write::<Options>("options", s());
    write::<Options>("options-draft7", SchemaSettings::draft07());
    write::<Options>("options-openapi3", SchemaSettings::openapi3());
    write::<Options>("options-serialize", s().for_serialize());
    write::<Level>("enum-commented", s());
    write::<External>("enum-external", s());
    write::<Internal>("enum-internal", s());
    write::<Adjacent>("enum-adjacent", s());
    write::<Adjacent>("enum-adjacent-draft7", SchemaSettings::draft07());
    write::<Untagged>("enum-untagged", s());
    write::<Maps>("maps", s());
    write::<Sequences>("sequences", s());
    write::<Sequences>("sequences-draft7", SchemaSettings::draft07());
    write::<FlattenStruct>("flatten-struct", s());
    write::<FlattenEnum>("flatten-enum-and-map", s());
    write::<FlattenStrict>("flatten-strict", s());
    write::<Tree>("recursive", s());
    write::<Escaped>("ref-escapes", s());
    write::<Escaped>("ref-escapes-draft7", SchemaSettings::draft07());
    write::<Validated>("validated", s());
    write::<Formats>("formats", s());
    write::<Odd>("newtypes-and-skips", s());
}
