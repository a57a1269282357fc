//! Table of several runs in Markdown.

use std::fmt::Write as _;

use super::Run;

const TABLE_HEAD: &str = "\
| policy | p50 wait (s) | p95 wait (s) | p99 wait (s) | max wait (s) | cost | worker-hours | mean workers | interruptions | unfinished |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// Returns a row for each run. Waits are those until the first token; the cost has the currency of the prices.
pub fn table(runs: &[Run<'_>]) -> String {
    let mut text = TABLE_HEAD.to_owned();
    for Run { name, outcome } in runs {
        let (waits, hours) = (&outcome.waits, outcome.worker_hours());
        let _ = write!(text, "| {} ", cell(name));
        for wait_s in [waits.p50_s, waits.p95_s, waits.p99_s, waits.max_s] {
            let _ = write!(text, "| {wait_s:.1} ");
        }
        let _ = write!(text, "| {:.2} | {hours:.1} | {:.1} ", outcome.cost, outcome.mean_workers);
        let _ = writeln!(text, "| {} | {} |", outcome.interruptions, outcome.unfinished);
    }
    text
}

/// Returns a text that stays in its cell, and that Markdown and HTML show as it is.
fn cell(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => shown.extend(['\\', c]),
            '<' => shown.push_str("&lt;"),
            '&' => shown.push_str("&amp;"),
            _ if c.is_control() => shown.push(' '),
            _ => shown.push(c),
        }
    }
    shown
}
