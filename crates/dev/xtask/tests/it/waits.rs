//! Waits of tests: none sleeps to wait for something or to see that nothing happens, and none bounds
//! elapsed time.
//!
//! A sleep in a `while` or a `loop` is the pause of a poll. A sleep in paused time takes none. Every
//! other one is in `SLEEPS`, with its reason.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprCall, ExprLoop, ExprWhile, ImplItemFn, ItemFn, ItemMod, Macro};

use crate::tree::{none, texts};

/// Functions of tests that may sleep, as file and name, by reason.
const SLEEPS: [(&str, &[(&str, &str)]); 4] = [
    (
        "it stands in for slow work",
        &[
            ("crates/bridge/src/request/runner.rs", "warm_up"),
            (
                "crates/bridge/tests/it/combine.rs",
                "all_steps_share_deadline_and_trace_and_each_has_its_own_seed",
            ),
            ("crates/bridge/tests/it/combine.rs", "handle"),
            ("crates/bridge/tests/it/giving_up.rs", "handle"),
            ("crates/bridge/tests/it/judged.rs", "handle"),
            ("crates/bridge/tests/it/script.rs", "handle"),
            ("crates/bridge/tests/it/watch.rs", "handle"),
            ("crates/cli/src/doctor.rs", "a_load_that_hangs_is_told_and_not_waited_for"),
            // Its tests pause time.
            ("crates/crypto/src/kms/cache/tests.rs", "get"),
            ("crates/gateway/tests/it/handler.rs", "handle"),
            ("crates/handler/tests/it/main.rs", "rest"),
            ("crates/handler/tests/it/main.rs", "words"),
            ("crates/handlers/llama/tests/it/speculation.rs", "draft"),
        ],
    ),
    (
        "the time is that of a schedule, or the subject of the test",
        &[
            (
                "crates/cli/tests/it/gateway.rs",
                "the_official_client_tries_again_until_the_first_worker_runs",
            ),
            (
                "crates/gateway/tests/it/starts.rs",
                "a_request_whose_worker_starts_in_time_has_its_reply",
            ),
            (
                "crates/gateway/tests/it/starts.rs",
                "a_response_in_the_background_waits_for_the_first_worker",
            ),
            ("crates/gateway/tests/it/starts.rs", "requests_wait_for_a_busy_worker_without_a_word"),
            ("crates/handlers/llama/src/engine/watchdog.rs", "seen_at"),
            ("crates/handlers/llama/tests/it/schedules.rs", "take"),
            (
                "crates/handlers/python/tests/it/stops.rs",
                "a_stop_that_comes_early_or_late_leaves_the_slot_in_order",
            ),
            (
                "crates/kernels/src/collectives/threads.rs",
                "the_time_in_which_the_process_was_stopped_does_not_count",
            ),
        ],
    ),
    (
        "it is the pause of a poll whose loop is in another function",
        &[
            ("crates/cli/tests/it/scaler.rs", "page"),
            ("crates/cli/tests/it/top.rs", "a_gateway_is_read"),
            ("crates/cli/tests/it/top.rs", "the_management_api_lists_the_queues_of_all_models"),
        ],
    ),
    (
        "Python tells nothing after its last line before it sleeps",
        &[("crates/handlers/python/tests/it/stops.rs", "until_begun")],
    ),
];

/// Reads the waits of the tests in a file.
#[derive(Debug, Default)]
struct Reader {
    /// True within a test module.
    tests: bool,
    function: String,
    /// True if time is paused in the function.
    paused: bool,
    /// Number of `while` and `loop` around the expression.
    loops: usize,
    /// Functions that sleep, and those that bound elapsed time.
    sleeps: BTreeSet<String>,
    bounds: BTreeSet<String>,
}

impl Reader {
    /// Reads a file. All of it is tests if it lies in a folder or a file named `tests`.
    fn read(path: &str, text: &str) -> Self {
        let tests = path.contains("/tests/") || path.ends_with("/tests.rs");
        let mut reader = Self { tests, ..Self::default() };
        reader.visit_file(&syn::parse_file(text).expect("a file of Rust"));
        reader
    }

    fn within(
        &mut self,
        name: &syn::Ident,
        attributes: &[Attribute],
        visit: impl FnOnce(&mut Self),
    ) {
        let paused = attributes.iter().any(|attribute| {
            matches!(&attribute.meta, syn::Meta::List(list)
                if list.tokens.to_string().replace(' ', "").contains("start_paused=true"))
        });
        let outer = (self.function.clone(), self.paused, self.loops);
        (self.function, self.paused, self.loops) = (name.to_string(), paused, 0);
        visit(self);
        (self.function, self.paused, self.loops) = outer;
    }

    fn sleeps(&mut self) {
        if self.tests && !self.paused && self.loops == 0 {
            self.sleeps.insert(self.function.clone());
        }
    }

    /// Reads the tokens of a macro, whose grammar is its own.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let is_call = |at: usize| {
            matches!(tokens.get(at), Some(TokenTree::Group(group))
                if group.delimiter() == Delimiter::Parenthesis)
        };
        let is_punct = |at: usize, wanted: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted);
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(name) if is_sleep(name) && is_call(at + 1) => {
                    let is_method = at > 0 && is_punct(at - 1, '.');
                    if !is_method {
                        self.sleeps();
                    }
                }
                TokenTree::Ident(name)
                    if *name == "elapsed"
                        && is_call(at + 1)
                        && is_punct(at + 2, '<')
                        && self.tests
                        && self.loops == 0 =>
                {
                    self.bounds.insert(self.function.clone());
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                _ => {}
            }
        }
    }
}

fn is_sleep(name: &syn::Ident) -> bool {
    *name == "sleep" || *name == "sleep_until"
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let outer = self.tests;
        self.tests |= module.attrs.iter().any(|attribute| {
            matches!(&attribute.meta, syn::Meta::List(list)
                if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
        });
        visit::visit_item_mod(self, module);
        self.tests = outer;
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.within(&function.sig.ident, &function.attrs, |reader| {
            visit::visit_item_fn(reader, function);
        });
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.within(&function.sig.ident, &function.attrs, |reader| {
            visit::visit_impl_item_fn(reader, function);
        });
    }

    fn visit_expr_while(&mut self, expression: &'ast ExprWhile) {
        self.loops += 1;
        visit::visit_expr_while(self, expression);
        self.loops -= 1;
    }

    fn visit_expr_loop(&mut self, expression: &'ast ExprLoop) {
        self.loops += 1;
        visit::visit_expr_loop(self, expression);
        self.loops -= 1;
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func
            && path.path.segments.last().is_some_and(|last| is_sleep(&last.ident))
        {
            self.sleeps();
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.tokens(called.tokens.clone());
    }
}

#[test]
fn no_test_sleeps_to_wait_or_bounds_elapsed_time() {
    let allowed: BTreeSet<String> = SLEEPS
        .iter()
        .flat_map(|(_, functions)| *functions)
        .map(|(path, name)| format!("{path}: {name}"))
        .collect();
    let (mut sleeps, mut problems) = (BTreeSet::new(), Vec::new());
    for (path, text) in texts() {
        // Benchmarks measure time.
        if !path.ends_with(".rs") || path.starts_with("crates/dev/bench/") {
            continue;
        }
        let reader = Reader::read(&path, &text);
        sleeps.extend(reader.sleeps.iter().map(|name| format!("{path}: {name}")));
        let told = |name| format!("{path}: {name}: assert on an event or a count, not on time");
        problems.extend(reader.bounds.iter().map(told));
    }
    let unknown = sleeps.difference(&allowed);
    problems.extend(unknown.map(|it| format!("{it}: wait for an event, or give a reason here")));
    problems.extend(allowed.difference(&sleeps).map(|it| format!("{it}: it does not sleep")));
    none(&problems);
}

#[track_caller]
fn check(path: &str, text: &str, sleeps: &[&str], bounds: &[&str]) {
    let reader = Reader::read(path, text);
    assert_eq!(reader.sleeps.iter().collect::<Vec<_>>(), sleeps, "{text}");
    assert_eq!(reader.bounds.iter().collect::<Vec<_>>(), bounds, "{text}");
}

#[test]
fn each_wait_is_found() {
    let path = "crates/a/tests/it/a.rs";
    check(path, "fn a() { sleep(TIME).await }", &["a"], &[]);
    check(path, "fn a() { std::thread::sleep(TIME) }", &["a"], &[]);
    check(path, "fn a() { for _ in 0..3 { tokio::time::sleep_until(at).await } }", &["a"], &[]);
    check(path, "fn a() { tokio::select! { () = time::sleep(TIME) => {} } }", &["a"], &[]);
    check(path, "impl A { fn a() { let b = async || sleep(TIME).await; } }", &["a"], &[]);
    check(path, "fn a() { assert!(begun.elapsed() < TIME); }", &[], &["a"]);
    check(path, "fn a() { assert!(begun.elapsed() <= TIME, \"late\"); }", &[], &["a"]);
    let module = "fn a() { sleep(TIME) } #[cfg(test)] mod tests { fn b() { sleep(TIME) } }";
    check("crates/a/src/a.rs", module, &["b"], &[]);
    check("crates/a/src/a/tests.rs", "fn a() { sleep(TIME) }", &["a"], &[]);
}

#[test]
fn polls_and_paused_time_are_no_waits() {
    let path = "crates/a/tests/it/a.rs";
    let poll = "assert!(begun.elapsed() < TIME); sleep(TIME);";
    check(path, &format!("fn a() {{ while !done() {{ {poll} }} }}"), &[], &[]);
    check(path, &format!("fn a() {{ loop {{ if done() {{ return }} {poll} }} }}"), &[], &[]);
    check(path, "fn a() { while go() { b() } sleep(TIME) }", &["a"], &[]);
    check(path, "#[tokio::test(start_paused = true)] async fn a() { sleep(TIME).await }", &[], &[]);
    check(path, "#[tokio::test(flavor = \"x\")] async fn a() { sleep(TIME).await }", &["a"], &[]);
    check(path, "fn a() { pool.sleep(1); assert!(begun.elapsed() >= TIME); }", &[], &[]);
}
