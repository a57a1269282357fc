//! Checks that documents match the code.

use crate::tree::{none, text};

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

/// Returns the code blocks in `language` of a document.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    let rest = document.split(&start).skip(1);
    rest.filter_map(|rest| rest.split("```").next()).collect()
}

/// Returns the claims of the threat table that no test holds. The claims of a cell end with `;`, and
/// so do their tests, in the same order.
fn unheld(security: &str, is_test: impl Fn(&str) -> bool) -> Vec<String> {
    let table = security.split("\n## ").find(|part| part.starts_with("Threats"));
    let mut problems = Vec::new();
    for row in table.into_iter().flat_map(rows_of) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, who, _, cannot, held, _] = cells[..] else {
            problems.push(format!("docs/security.md: not four cells: {row}"));
            continue;
        };
        let parts = |cell: &str| cell.split(';').map(str::trim).map(str::to_owned).collect();
        let (claims, holders): (Vec<String>, Vec<String>) = (parts(cannot), parts(held));
        if claims.len() != holders.len() {
            let (count, held) = (claims.len(), holders.len());
            problems.push(format!(
                "docs/security.md: {count} claims of \"{who}\" and tests for {held}"
            ));
        }
        for (claim, tests) in claims.iter().zip(&holders) {
            if !claim.is_empty() && quoted(tests).next().is_none() {
                problems.push(format!("docs/security.md: no test holds \"{claim}\" of \"{who}\""));
            }
        }
    }
    // Claims elsewhere in the document name their tests in parentheses.
    let elsewhere = security.split("(held by ").skip(1).filter_map(|rest| rest.split(')').next());
    let named = table.into_iter().flat_map(rows_of).filter_map(|row| row.split('|').nth(4));
    for name in elsewhere.chain(named).flat_map(quoted) {
        if name != "attack" && !is_test(name) {
            problems.push(format!("docs/security.md: there is no test `{name}`"));
        }
    }
    problems
}

/// Returns the rows of a table without its head and its line.
fn rows_of(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter(|line| line.starts_with("| ")).skip(1)
}

/// Returns the words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns true if a Rust file has a test of this name: a function with an attribute of a test, or a
/// function in a list that a macro makes tests of.
fn has_test(source: &str, name: &str) -> bool {
    let (head, listed) = (format!("fn {name}("), format!("{name},"));
    let (mut is_test, mut in_list, mut is_listed, mut is_function) = (false, false, false, false);
    for line in source.lines().map(str::trim) {
        match line {
            "stories! {" | "crate::store::testing::rules! { $bench =>" => in_list = true,
            "$crate::conformance! { @each $bench, [$(#[$attribute])+]" => in_list = true,
            "}" => in_list = false,
            _ if line.starts_with("#[") => {
                is_test |= ["#[test]", "#[tokio::test]"].contains(&line)
                    || line.starts_with("#[tokio::test(");
            }
            _ if line.starts_with("//") => {}
            _ => {
                let is_it = line.contains(&head);
                if is_it && is_test {
                    return true;
                }
                is_function |= is_it;
                is_listed |= in_list && (line == listed || line == name);
                is_test = false;
            }
        }
    }
    // The functions of the conformance list are in other files.
    is_listed && (is_function || source.contains("macro_rules! conformance"))
}

#[test]
fn every_cannot_of_the_threat_table_is_held_by_a_test() {
    let security = text("docs/security.md");
    assert!(security.contains("| who | can | cannot | held by |"), "the table has other columns");
    let sources: Vec<_> =
        crate::tree::texts().into_iter().filter(|(path, _)| path.ends_with(".rs")).collect();
    let is_test = |name: &str| sources.iter().any(|(_, text)| has_test(text, name));
    none(&unheld(&security, is_test));
}

#[test]
fn a_claim_that_nothing_holds_is_found() {
    let table = "a\n## Threats\n| who | can | cannot | held by |\n|---|---|---|---|\n| a | b | c | `x`, `attack` |\n\
                 | b | b | | |\n| c | b | c | |\n| d | b | c | `y` |\n| e | b |\n| g | b | 1; 2 | `x` |\n\
                 | h | b | 1; 2 | `x`; none |\n## Keys\n| f | |\nA claim (held by `x`, `z`).\n";
    let said = unheld(table, |name| name == "x");
    let place = "docs/security.md:";
    let expected = [
        "no test holds \"c\" of \"c\"",
        "not four cells: | e | b |",
        "2 claims of \"g\" and tests for 1",
        "no test holds \"2\" of \"h\"",
        "there is no test `z`",
        "there is no test `y`",
    ];
    assert_eq!(said, expected.map(|what| format!("{place} {what}")));
}

#[test]
fn a_function_that_is_no_test_holds_nothing() {
    let check = |source: &str, is_test: bool| {
        assert_eq!(has_test(source, "x"), is_test, "{source}");
    };
    check("#[test]\nfn x() {\n", true);
    check("#[tokio::test(start_paused = true)]\n/// Words.\nasync fn x() {\n", true);
    check("    #[test]\n    #[expect(lint, reason = \"..\")]\n    fn x() {\n", true);
    check("fn x() {\n", false);
    check("#[test]\nfn y() {\n    x();\n}\nfn x() {\n", false);
    check("#[test]\nfn xx() {\n", false);
    check("// #[test]\n// fn x() {\n", false);
    check("stories! {\n    y,\n    x,\n}\nasync fn x(broker: B) {\n", true);
    check("stories! {\n    y,\n}\nasync fn x(broker: B) {\n", false);
    check("stories! {\n    x,\n}\n", false);
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

/// Returns the paths of code in backquotes that do not exist. A path may end with a line number.
fn stale_paths(document: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let is_path = |word: &&str| word.starts_with("crates/") && !word.contains(['*', '<', ' ']);
    let file = |word: &str| word.split(':').next().unwrap_or(word).to_owned();
    let paths = document.lines().flat_map(quoted).filter(is_path).map(file);
    paths.filter(|path| !exists(path)).collect()
}

#[test]
fn every_path_of_code_in_a_decision_exists() {
    let decisions: Vec<_> = crate::tree::texts()
        .into_iter()
        .filter(|(path, _)| path.starts_with("docs/decisions/"))
        .collect();
    assert!(decisions.len() > 20, "there are only {} decisions", decisions.len());
    let exists = |path: &str| crate::tree::root().join(path).exists();
    let problems = decisions.iter().flat_map(|(decision, text)| {
        stale_paths(text, exists).into_iter().map(move |path| format!("{decision}: no {path}"))
    });
    none(&problems.collect::<Vec<_>>());
}

#[test]
fn a_path_of_code_that_is_gone_is_found() {
    let document = "Code: `crates/a/src/b.rs`, `crates/a`, `crates/gone.rs`.\n`docs/x.md`, crates/y\n\
                    `crates/old/c.rs:12` and `crates/<name>/d.rs` and `cargo test`\n";
    let said = stale_paths(document, |path| path.starts_with("crates/a"));
    assert_eq!(said, ["crates/gone.rs", "crates/old/c.rs"]);
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
