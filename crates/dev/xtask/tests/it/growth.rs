//! Public types that may grow: each is `#[non_exhaustive]`, or stands in a list here.
//!
//! The rules and their reasons are in `docs/decisions/0034-what-may-grow.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, Fields, Item, Lit, Meta, Visibility};

use crate::tree::{none, root, text};

/// Values that users write with a base, `T { a, ..T::default() }`. Their documentation says so.
const WRITTEN: [&str; 18] = [
    "nsbridge-gateway-access Limits",
    "nsbridge-gateway Model",
    "nsbridge-handler BatchLimits",
    "nsbridge-handler BatchOptions",
    "nsbridge-judged Category",
    "nsbridge-judged JudgeOptions",
    "nsbridge-judged JudgedOptions",
    "nsbridge-judged RulesOptions",
    "nsbridge-llama Options",
    "nsbridge-llama Sampling",
    "nsbridge-llama Setup",
    "nsbridge-protocol EmbeddingInput",
    "nsbridge-protocol JudgeInput",
    "nsbridge-protocol TextInput",
    "nsbridge-protocol TextPiece",
    "nsbridge-queue Limits",
    "nsbridge-queue Message",
    "nsbridge-queue Properties",
];

/// Sentence that the documentation of such a value has.
const SENTENCE: &str = "minor versions add fields";

/// Types whose fields or variants are fixed: another one is a new major version.
const FIXED: [&str; 50] = [
    // Laid out by version 1 of the wire protocol.
    "nsbridge-crypto ContentType",
    "nsbridge-crypto DataKey",
    "nsbridge-crypto ErrorHint",
    "nsbridge-crypto JobKey",
    "nsbridge-crypto Opened",
    "nsbridge-crypto Provider",
    "nsbridge-crypto ReplyHead",
    "nsbridge-crypto ReplyKind",
    "nsbridge-crypto RequestHead",
    "nsbridge-protocol ControlKind",
    "nsbridge-protocol Pieces",
    "nsbridge-protocol Resume",
    "nsbridge-queue Header",
    // All that there is: a value of mathematics, or the standard of others.
    "nsbridge-crypto Scope",
    "nsbridge-protocol EmbeddingText",
    "nsbridge-protocol TokenText",
    "nsbridge-protocol TraceParent",
    // Rule for a kind of file, which each owner writes as a constant.
    "nsbridge-base PrivateFile",
    // Arguments of one computation.
    "nsbridge-gpu AttentionPlan",
    "nsbridge-gpu Change",
    "nsbridge-gpu Destination",
    "nsbridge-gpu Draw",
    "nsbridge-gpu Heads",
    "nsbridge-gpu Launch",
    "nsbridge-gpu Meeting",
    "nsbridge-gpu Norm",
    "nsbridge-gpu Place",
    "nsbridge-gpu Shape",
    "nsbridge-gpu Sums",
    "nsbridge-kernels Activations",
    "nsbridge-kernels Attention",
    "nsbridge-kernels KQuantBlock",
    "nsbridge-kernels Norm",
    "nsbridge-kernels Pages",
    "nsbridge-kernels Rotate",
    "nsbridge-kernels Source",
    "nsbridge-kernels Token",
    "nsbridge-llama Chunk",
    // Outcomes and kinds that a caller must treat one by one.
    "nsbridge-gateway-access Limit",
    "nsbridge-gateway-access Refusal",
    "nsbridge-crypto Read",
    "nsbridge-crypto Reread",
    "nsbridge-gpu Choice",
    "nsbridge-gpu Likeliest",
    "nsbridge-handler MeasureKind",
    "nsbridge-handler Refused",
    "nsbridge-handler StartAt",
    "nsbridge-handler Stop",
    "nsbridge-kernels Format",
    "nsbridge-queue Confirmation",
];

/// Public type that other crates can write in full, or match in full.
#[derive(Debug, PartialEq, Eq)]
struct Open {
    docs: String,
}

/// Returns the open types of a file.
fn open_types(source: &str) -> BTreeMap<String, Open> {
    let parsed = syn::parse_file(source).expect("a module's file is Rust");
    parsed.items.iter().filter_map(open_type).collect()
}

fn open_type(item: &Item) -> Option<(String, Open)> {
    let (name, visibility, attributes) = match item {
        Item::Enum(item) if !item.variants.is_empty() => (&item.ident, &item.vis, &item.attrs),
        Item::Struct(item) if all_named_and_public(&item.fields) => {
            (&item.ident, &item.vis, &item.attrs)
        }
        _ => return None,
    };
    let grows = attributes.iter().any(|it| it.path().is_ident("non_exhaustive"));
    let is_open = matches!(visibility, Visibility::Public(_)) && !grows;
    is_open.then(|| (name.to_string(), Open { docs: docs(attributes) }))
}

fn all_named_and_public(fields: &Fields) -> bool {
    let Fields::Named(fields) = fields else { return false };
    let mut fields = fields.named.iter().peekable();
    fields.peek().is_some() && fields.all(|field| matches!(field.vis, Visibility::Public(_)))
}

/// Returns the documentation in one line.
fn docs(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(meta) = &attribute.meta else { return None };
        let Expr::Lit(value) = &meta.value else { return None };
        let Lit::Str(line) = &value.lit else { return None };
        meta.path.is_ident("doc").then(|| line.value().trim().to_owned())
    });
    lines.collect::<Vec<_>>().join(" ")
}

/// Returns the names of a library's public structs and enums, by its snapshot.
fn names(snapshot: &str) -> BTreeSet<String> {
    let types = snapshot.lines().filter_map(|line| {
        let line = line.split_once("pub struct ").or_else(|| line.split_once("pub enum "))?.1;
        let path = line.split([' ', '<', '(', '{']).next()?;
        Some(path.rsplit("::").next()?.trim_end_matches(':').to_owned())
    });
    types.collect()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().expect("a crate has sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the folder of a library's sources.
fn folder(package: &str) -> PathBuf {
    let short = package.strip_prefix("nsbridge-").unwrap_or("bridge");
    let places = ["crates", "crates/handlers"].map(|place| root().join(place).join(short));
    let place = places.iter().find(|place| place.join("src/lib.rs").exists());
    place.unwrap_or_else(|| panic!("{package} has no folder")).join("src")
}

/// Returns the open types of all libraries, by package and name.
fn all_open_types() -> BTreeMap<String, Open> {
    let snapshots = root().join("docs/api").read_dir().expect("there are snapshots").flatten();
    let mut all = BTreeMap::new();
    for snapshot in snapshots {
        let file = snapshot.file_name().display().to_string();
        let package = file.trim_end_matches(".txt");
        let public = names(&text(&format!("docs/api/{file}")));
        let mut sources = Vec::new();
        files(&folder(package), &mut sources);
        for source in sources {
            let source = fs::read_to_string(&source).expect("a module's file is text");
            let open = open_types(&source).into_iter().filter(|(name, _)| public.contains(name));
            all.extend(open.map(|(name, open)| (format!("{package} {name}"), open)));
        }
    }
    all
}

#[test]
fn a_public_type_grows_or_is_listed() {
    let open = all_open_types();
    let listed: BTreeSet<&str> = WRITTEN.into_iter().chain(FIXED).collect();
    let unlisted = open.keys().filter(|name| !listed.contains(name.as_str()));
    let unlisted = unlisted.map(|name| format!("{name} is neither non_exhaustive nor listed"));
    let stale = listed.iter().filter(|name| !open.contains_key(**name));
    let stale = stale.map(|name| format!("{name} is listed, and is no open type"));
    let undocumented = WRITTEN
        .iter()
        .filter(|name| open.get(**name).is_some_and(|written| !written.docs.contains(SENTENCE)));
    let undocumented = undocumented.map(|name| format!("{name} does not say that {SENTENCE}"));
    none(&unlisted.chain(stale).chain(undocumented).collect::<Vec<_>>());
}

#[test]
fn a_type_is_open_if_others_can_write_or_match_all_of_it() {
    let source = "/// Text.\n/// More.\npub struct A { pub a: u8 }\npub enum B { C }\n\
        pub struct Private { pub a: u8, b: u8 }\npub(crate) struct Hidden { pub a: u8 }\n\
        pub struct Tuple(pub u8);\npub struct Unit;\npub enum Never {}\n\
        #[non_exhaustive]\npub enum Grows { A }\n#[non_exhaustive]\npub struct Grown { pub a: u8 }";
    let open = |docs: &str| Open { docs: docs.to_owned() };
    let expected = [("A".to_owned(), open("Text. More.")), ("B".to_owned(), open(""))];
    assert_eq!(open_types(source), BTreeMap::from(expected));
}

#[test]
fn names_are_those_of_structs_and_enums() {
    let snapshot = "pub enum a::B\npub a::B::C\n#[non_exhaustive] pub struct a::d::E<T>\n\
        pub struct a::F(pub u8)\npub fn a::g()\npub struct a::H<'a, E: a::I>\n";
    assert_eq!(names(snapshot), ["B", "E", "F", "H"].map(str::to_owned).into());
}
