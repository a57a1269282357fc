//! Checks that documents match the code.

use crate::tree::{none, text};

/// Maximum number of lines of the architecture document, so that it can be read in one go.
const ARCHITECTURE_LINES: usize = 200;

/// Returns the error codes in wire format, as returned by `as_str`.
fn codes(code: &str) -> Vec<&str> {
    let arms = code.lines().filter(|line| line.trim_start().starts_with("Self::"));
    arms.filter_map(|arm| arm.split_once("=> \"")?.1.split('"').next()).collect()
}

/// Returns the codes that have no row in a table of `document`.
fn without_row(codes: &[&str], document: &str) -> Vec<String> {
    let row = |code: &&&str| {
        let start = format!("| `{code}` |");
        !document.lines().any(|line| line.starts_with(&start))
    };
    codes
        .iter()
        .filter(row)
        .map(|code| format!("docs/operating.md has no row for {code}"))
        .collect()
}

/// Returns the public fields of a struct and their types.
fn fields(source: &str, name: &str) -> Vec<(String, String)> {
    let start = format!("pub struct {name} {{");
    let body = source.split_once(&start).map_or("", |(_, rest)| rest);
    let body = body.split("\n}").next().unwrap_or_default();
    let declared = body.lines().filter_map(|line| line.trim().strip_prefix("pub "));
    declared
        .filter_map(|line| line.trim_end_matches(',').split_once(": "))
        .map(|(field, of)| (field.to_owned(), of.to_owned()))
        .collect()
}

/// Returns the lines of a TOML file's table, including those that are commented out.
fn section<'a>(toml: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let plain = |line: &'a str| line.trim_start_matches(['#', ' ']);
    let head = format!("[{name}]");
    let mut lines = toml.lines().map(plain).skip_while(|line| !line.starts_with(&head));
    lines.next()?;
    Some(lines.take_while(|line| !line.starts_with('[')).collect())
}

/// Returns the fields of the configuration that the example does not show. The fields of `handler`
/// are the options of the bundled handler.
fn not_shown(config: &str, options: &str, example: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, of) in fields(config, "Config") {
        let Some(lines) = section(example, &name) else {
            problems.push(format!("deploy/worker.example.toml has no [{name}]"));
            continue;
        };
        let inner =
            if name == "handler" { fields(options, "Options") } else { fields(config, &of) };
        let shown = |field: &str| {
            let rest = lines.iter().filter_map(|line| line.strip_prefix(field));
            rest.map(str::trim_start).any(|rest| rest.starts_with('='))
        };
        let missing = inner.iter().filter(|(field, _)| !shown(field));
        problems.extend(
            missing.map(|(field, _)| {
                format!("deploy/worker.example.toml has no `{field}` in [{name}]")
            }),
        );
    }
    problems
}

/// Returns the names of the rules in the protocol document, such as `r5`.
fn rules(protocol: &str) -> Vec<String> {
    let words = protocol.split(|c: char| !c.is_ascii_alphanumeric());
    let is_rule = |word: &&str| {
        let (kind, number) = word.split_at_checked(1).unwrap_or_default();
        "ARC".contains(kind) && !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
    };
    let mut rules: Vec<_> = words.filter(is_rule).map(str::to_lowercase).collect();
    rules.sort();
    rules.dedup();
    rules
}

/// Returns an error message if a document is too long.
fn too_long(path: &str, document: &str, most: usize) -> Option<String> {
    let lines = document.lines().count();
    (lines > most).then(|| format!("{path} has {lines} lines, more than {most}"))
}

/// Returns the code blocks in `language` of a document.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    let rest = document.split(&start).skip(1);
    rest.filter_map(|rest| rest.split("```").next()).collect()
}

/// Returns the rows of the threat table with a claim that no test holds.
fn unheld(security: &str, is_test: impl Fn(&str) -> bool) -> Vec<String> {
    let table = security.split("\n## ").find(|part| part.starts_with("Threats"));
    let rows = table.unwrap_or_default().lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut problems = Vec::new();
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, who, _, cannot, held, _] = cells[..] else {
            problems.push(format!("docs/security.md: not four cells: {row}"));
            continue;
        };
        let names: Vec<_> = held.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !cannot.is_empty() {
            problems.push(format!("docs/security.md: nothing holds what \"{who}\" cannot"));
        }
        let unknown = names.into_iter().filter(|name| *name != "attack" && !is_test(name));
        problems.extend(unknown.map(|name| format!("docs/security.md: there is no test `{name}`")));
    }
    problems
}

#[test]
fn every_cannot_of_the_threat_table_is_held_by_a_test() {
    let security = text("docs/security.md");
    assert!(security.contains("| who | can | cannot | held by |"), "the table has other columns");
    let is_source = |path: &str| path.ends_with(".rs") || path.ends_with(".py");
    let sources: Vec<_> =
        crate::tree::texts().into_iter().filter(|(path, _)| is_source(path)).collect();
    let is_test = |name: &str| {
        let (rust, python) = (format!("fn {name}("), format!("def {name}("));
        sources.iter().any(|(_, text)| text.contains(&rust) || text.contains(&python))
    };
    none(&unheld(&security, is_test));
}

#[test]
fn a_claim_that_nothing_holds_is_found() {
    let table = "a\n## Threats\n| who | can | cannot | held by |\n|---|---|---|---|\n| a | b | c | `x`, `attack` |\n\
                 | b | b | | |\n| c | b | c | |\n| d | b | c | `y` |\n| e | b |\n## Keys\n| f | |\n";
    let said = unheld(table, |name| name == "x").join("; ");
    assert!(!said.contains("\"a\"") && !said.contains("\"b\"") && !said.contains("| f"), "{said}");
    assert!(said.contains("\"c\"") && said.contains("`y`") && said.contains("| e | b |"), "{said}");
}

#[test]
fn every_error_code_has_a_row_for_the_operator() {
    let source = text("crates/protocol/src/code.rs");
    let codes = codes(&source);
    assert!(codes.len() >= 18, "{codes:?}");
    none(&without_row(&codes, &text("docs/operating.md")));
}

#[test]
fn every_field_of_the_configuration_is_shown() {
    let files = ["bridge/src/config", "bridge/src/config/watch", "store/src/config"];
    let config = files.map(|file| text(&format!("crates/{file}.rs"))).concat();
    assert!(fields(&config, "StoreConfig").len() >= 10);
    let options = text("crates/handlers/llama/src/options.rs");
    assert!(fields(&config, "Config").len() >= 10 && fields(&options, "Options").len() >= 7);
    none(&not_shown(&config, &options, &text("deploy/worker.example.toml")));
}

#[test]
fn the_architecture_is_read_in_one_go() {
    let path = "docs/architecture.md";
    none(&too_long(path, &text(path), ARCHITECTURE_LINES).into_iter().collect::<Vec<_>>());
}

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (readme, echo) = (text("README.md"), text("examples/echo/src/main.rs"));
    let shown = blocks(&readme, "rust");
    assert!(!shown.is_empty(), "README.md shows no handler");
    for block in shown {
        assert!(echo.contains(block.trim()), "not in examples/echo/src/main.rs:\n{block}");
    }
    let worker = text("examples/echo/worker.toml");
    for block in blocks(&readme, "toml") {
        assert!(worker.contains(block.trim()), "not in examples/echo/worker.toml:\n{block}");
    }
}

#[test]
fn a_code_without_a_row_is_found() {
    let source = "match self {\n    Self::A => \"bad-input\",\n    Self::B => \"poison\",\n}";
    assert_eq!(codes(source), ["bad-input", "poison"]);
    let said = without_row(&codes(source), "| `poison` | x |\nsee `bad-input`");
    assert_eq!(said, ["docs/operating.md has no row for bad-input"]);
}

#[test]
fn a_field_that_is_not_shown_is_found() {
    let config = "pub struct Config {\n    /// W.\n    pub worker: W,\n    pub handler: toml::Table,\n    \
                  pub log: L,\n}\npub struct W {\n    pub model: String,\n    pub name: u8,\n}\n";
    let options = "pub struct Options {\n    pub top_p: u8,\n    pub top_k: u8,\n}\n";
    let example = "[worker]\nmodel = 1\n# named = 2\n[handler]\n# top_p = 1\n[other]\ntop_k = 1\n";
    let place = "deploy/worker.example.toml has no";
    let expected = ["`name` in [worker]", "`top_k` in [handler]", "[log]"];
    assert_eq!(not_shown(config, options, example), expected.map(|what| format!("{place} {what}")));
}

#[test]
fn a_document_that_grew_is_found() {
    assert_eq!(too_long("a.md", "a\nb\n", 2), None);
    assert!(too_long("a.md", "a\nb\nc\n", 2).is_some());
}

#[test]
fn blocks_of_code_are_found() {
    assert_eq!(
        blocks("a\n```rust\nb\n```\nc\n```toml\nd\n```\n```rust\ne\n```", "rust"),
        ["b\n", "e\n"]
    );
}

#[test]
fn every_rule_of_the_protocol_has_a_test_that_bears_its_name() {
    let rules = rules(&text("docs/protocol.md"));
    assert!(rules.len() > 20, "{rules:?}");
    let sources: Vec<_> =
        crate::tree::texts().into_iter().filter(|(path, _)| path.ends_with(".rs")).collect();
    let tested =
        |rule: &&String| sources.iter().any(|(_, text)| text.contains(&format!("fn {rule}_")));
    let untested = rules.iter().filter(|rule| !tested(rule));
    none(&untested.map(|rule| format!("no test is named {rule}_..")).collect::<Vec<_>>());
}
