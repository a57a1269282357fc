//! Pauses of the product: each retry backs off.
//!
//! A pause between two tries is `pauses.next(..)` of a `Backoff`. Every other sleep is in `OTHERS`, with
//! its reason.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ImplItemFn, ItemFn, ItemMod, Macro};

use crate::tree::{none, texts};

/// Functions that sleep for another time than that of a back-off, as file and name, by reason.
const OTHERS: [(&str, &[(&str, &str)]); 7] = [
    (
        "it polls a state, and gives a steady answer",
        &[
            ("crates/bridge/src/keys.rs", "follow"),
            ("crates/bridge/src/loading.rs", "tell"),
            ("crates/bridge/src/platform/ec2_spot.rs", "notice"),
            ("crates/bridge/src/platform/ecs_task.rs", "stopping"),
            ("crates/bridge/src/request/reply_queue_check.rs", "node_down"),
            ("crates/bridge/src/request/run_record.rs", "cleared"),
            ("crates/bridge/src/request/run_record.rs", "unreturned"),
            ("crates/bridge/src/request/runner.rs", "broken"),
            ("crates/bridge/src/request/runner.rs", "interleaved"),
            ("crates/bridge/src/worker/probes.rs", "ask_depths"),
            ("crates/bridge/src/worker/probes.rs", "ask_handler"),
            ("crates/bridge/src/worker/probes.rs", "look_at_broker"),
            ("crates/bridge/src/worker/probes.rs", "watch_calls"),
            ("crates/bridge/src/worker/publish_probe.rs", "blocked"),
            ("crates/cli/src/doctor.rs", "blocked"),
            ("crates/cli/src/queue/letters.rs", "returned"),
            ("crates/top/src/lib.rs", "read_twice"),
            ("crates/gateway-replies/src/workers.rs", "missing_from"),
            ("crates/handlers/llama/src/engine.rs", "drop"),
            ("crates/handlers/llama/src/network/device/collectives/nccl.rs", "finish"),
            ("crates/handlers/llama/src/network/ranks.rs", "drop"),
            ("crates/handlers/openai/src/health.rs", "run"),
            ("crates/handlers/openai/src/load.rs", "ready"),
            ("crates/handlers/python/src/host.rs", "changed"),
            ("crates/queue/src/amqp/consumer.rs", "closed"),
            ("crates/telemetry/src/log.rs", "flush_within"),
        ],
    ),
    (
        "it is a time limit, or the time at which something is due",
        &[
            ("crates/bridge/src/drain.rs", "over"),
            ("crates/bridge/src/request/intake_pause.rs", "resumed"),
            ("crates/bridge/src/request/lifecycle.rs", "call"),
            ("crates/bridge/src/request/lifecycle/stops.rs", "adoption_time"),
            ("crates/bridge/src/request/lifecycle/stops.rs", "watch"),
            ("crates/bridge/src/request/reply_sender.rs", "frame_due"),
            ("crates/bridge/src/request/reply_sender.rs", "send"),
            ("crates/bridge/src/request/slots.rs", "acquire"),
            ("crates/bridge/src/request/slots.rs", "exclusive"),
            ("crates/bridge/src/request/slots.rs", "preempted"),
            ("crates/bridge/src/worker/consumer_session/bulk.rs", "flow"),
            ("crates/bridge/src/worker/publish_probe.rs", "probe_until_success"),
            ("crates/cli/src/doctor.rs", "broker"),
            ("crates/cli/src/stream.rs", "next"),
            ("crates/cli/src/top.rs", "ended_by_a_signal"),
            ("crates/client/src/reply.rs", "new"),
            ("crates/gateway/src/api/batches/lifetime.rs", "worked"),
            ("crates/gateway/src/http/server.rs", "new"),
            ("crates/gateway/src/http/server.rs", "watch"),
            ("crates/gateway/src/http/server/idle.rs", "quiet"),
            ("crates/gateway/src/http/tls/listener.rs", "next"),
            ("crates/handlers/python/src/start.rs", "start"),
            ("crates/queue/src/memory.rs", "arrival"),
            ("crates/queue/src/memory.rs", "keep_time"),
            ("crates/store/src/rate_limit.rs", "wait"),
        ],
    ),
    (
        "the time comes from a back-off, in a variable",
        &[
            ("crates/bridge/src/platform/ecs_protection.rs", "run"),
            ("crates/bridge/src/request/stream_opener.rs", "rest"),
            ("crates/top/src/source.rs", "watch"),
            ("crates/handlers/python/src/host.rs", "keep"),
            ("crates/store/src/small_files.rs", "tried"),
        ],
    ),
    (
        "the number of its tries is bounded",
        &[("crates/bridge/src/request/republish.rs", "publish_to_full")],
    ),
    (
        "the peer is here and takes the same bytes when it has room (rule A6)",
        &[("crates/bridge/src/request/confirm_window.rs", "send_again")],
    ),
    (
        "the broker's delivery limit and the request's deadline bound its tries",
        &[("crates/bridge/src/request/settlement.rs", "retry_queue_full")],
    ),
    (
        "the system has no descriptor left, and others may close theirs at any time",
        &[
            ("crates/bridge/src/observability/health/pages.rs", "serve"),
            ("crates/gateway/src/http/server.rs", "accept"),
        ],
    ),
];

/// Reads the sleeps of a file outside of its tests.
#[derive(Debug, Default)]
struct Reader {
    function: String,
    /// Functions that sleep for a time that no back-off gives.
    sleeps: BTreeSet<String>,
}

impl Reader {
    fn read(text: &str) -> Self {
        let mut reader = Self::default();
        reader.visit_file(&syn::parse_file(text).expect("a file of Rust"));
        reader
    }

    fn within(&mut self, name: &syn::Ident, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.function, name.to_string());
        visit(self);
        self.function = outer;
    }

    fn sleeps(&mut self, time: &TokenStream) {
        if !time.to_string().contains("pauses . next") {
            self.sleeps.insert(self.function.clone());
        }
    }

    /// Reads the tokens of a macro, whose grammar is its own.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match (token, tokens.get(at + 1)) {
                (TokenTree::Ident(name), Some(TokenTree::Group(arguments)))
                    if is_sleep(name) && arguments.delimiter() == Delimiter::Parenthesis =>
                {
                    self.sleeps(&arguments.stream());
                }
                (TokenTree::Group(group), _) => self.tokens(group.stream()),
                _ => {}
            }
        }
    }
}

fn is_sleep(name: &syn::Ident) -> bool {
    *name == "sleep" || *name == "sleep_until"
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            let cfg = list.tokens.to_string();
            list.path.is_ident("cfg") && (cfg == "test" || cfg.contains("testing"))
        }
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.within(&function.sig.ident, |reader| visit::visit_item_fn(reader, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.within(&function.sig.ident, |reader| visit::visit_impl_item_fn(reader, function));
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func
            && path.path.segments.last().is_some_and(|last| is_sleep(&last.ident))
        {
            self.sleeps(&call.args.to_token_stream());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.tokens(called.tokens.clone());
    }
}

/// Returns true for a file of what users run.
fn is_product(path: &str) -> bool {
    let apart = ["/tests/", "/tests.rs", "/benches/", "/examples/", "/testing/", "/testing.rs"];
    path.starts_with("crates/")
        && path.ends_with(".rs")
        && !path.starts_with("crates/dev/")
        && !apart.iter().any(|part| path.contains(part))
}

#[test]
fn each_retry_backs_off() {
    let allowed: BTreeSet<String> = OTHERS
        .iter()
        .flat_map(|(_, functions)| *functions)
        .map(|(path, name)| format!("{path}: {name}"))
        .collect();
    let files = texts().into_iter().filter(|(path, _)| is_product(path));
    let sleeps: BTreeSet<String> = files
        .flat_map(|(path, text)| {
            Reader::read(&text).sleeps.into_iter().map(move |name| format!("{path}: {name}"))
        })
        .collect();
    let unknown = sleeps.difference(&allowed);
    let unknown = unknown.map(|it| format!("{it}: pause by a `Backoff`, or give a reason here"));
    let gone = allowed.difference(&sleeps).map(|it| format!("{it}: it does not sleep"));
    none(&unknown.chain(gone).collect::<Vec<_>>());
}

#[track_caller]
fn check(text: &str, sleeps: &[&str]) {
    assert_eq!(Reader::read(text).sleeps.iter().collect::<Vec<_>>(), sleeps, "{text}");
}

#[test]
fn a_constant_pause_is_found_and_a_back_off_is_none() {
    check("async fn a() { loop { sleep(PAUSE).await } }", &["a"]);
    check("fn a() { tokio::select! { () = time::sleep(self.pause) => {} } }", &["a"]);
    check("impl A { async fn a() { sleep(pauses.next(random())).await } }", &[]);
    check("fn a() { select! { () = sleep(self.pauses.next(random())) => {} } }", &[]);
    check("#[cfg(test)] mod tests { fn a() { sleep(PAUSE) } }", &[]);
}
