//! Screen as lines of text.

mod figure;
mod table;

use std::cmp::Ordering;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use self::figure::{rate, seconds, share};
use self::table::{Column, cut, lay_out, line, width};
use super::snapshot::{Gateway, Model, Snapshot, Worker};

/// Number of problems that the main page shows.
const FEW: usize = 3;

/// Order of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Address,
    Model,
    Running,
    Tokens,
    FirstToken,
}

impl Sort {
    const ALL: [Self; 5] =
        [Self::Address, Self::Model, Self::Running, Self::Tokens, Self::FirstToken];

    /// Returns the next order, or the previous one with `back`.
    pub(super) fn next(self, back: bool) -> Self {
        let place = Self::ALL.iter().position(|known| *known == self).unwrap_or_default();
        let step = if back { Self::ALL.len() - 1 } else { 1 };
        Self::ALL[(place + step) % Self::ALL.len()]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Address => "worker",
            Self::Model => "model",
            Self::Running => "slots in use",
            Self::Tokens => "tok/s",
            Self::FirstToken => "ttft p95",
        }
    }

    /// Compares two workers: names ascending, figures descending, absent ones last.
    fn compare(self, one: &Worker, other: &Worker) -> Ordering {
        let most = |of: fn(&Worker) -> Option<f64>| {
            let of = |worker| of(worker).unwrap_or(-1.0);
            of(other).total_cmp(&of(one))
        };
        let first = match self {
            Self::Address => Ordering::Equal,
            Self::Model => one.model.cmp(&other.model),
            Self::Running => other.running.cmp(&one.running),
            Self::Tokens => most(|worker| worker.tokens_per_s),
            Self::FirstToken => most(|worker| worker.first_token_p95_s),
        };
        first.then_with(|| one.address.cmp(&other.address))
    }
}

/// Form of the screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Width in terminal columns.
    pub(super) width: usize,
    pub(super) sort: Sort,
    /// True to show all problems, not just the first ones.
    pub(super) all_problems: bool,
    /// True if problems may have a color, in addition to their mark.
    pub(super) colored: bool,
}

/// Returns the lines above the tables: broker, time and sums.
pub(super) fn header(snapshot: &Snapshot, look: Look, note: &str) -> Vec<Line<'static>> {
    let broker =
        snapshot.broker.as_deref().map_or_else(String::new, |url| format!("  {}", line(url)));
    let first = format!("nsbridge top{broker}  {}{note}", snapshot.time);
    let total = &snapshot.total;
    let figure = |of: Option<f64>| of.map_or_else(|| "-".to_owned(), rate);
    let second = format!(
        "{} tokens/s  {} requests/s  {} errors/s  {}  {}",
        figure(total.tokens_per_s),
        figure(total.requests_per_s),
        figure(total.errors_per_s),
        counted(snapshot.workers.len(), "worker"),
        counted(snapshot.gateways.len(), "gateway"),
    );
    vec![heading(cut(&first, look.width)), Line::raw(cut(&second, look.width)), Line::default()]
}

/// Returns the lines of the problems and of the tables.
pub(super) fn body(snapshot: &Snapshot, look: Look) -> Vec<Line<'static>> {
    let mut lines = problems(snapshot, look);
    if !snapshot.models.is_empty() {
        section(&mut lines, "MODELS", models(&snapshot.models), look);
    }
    if !snapshot.workers.is_empty() {
        let mut workers = snapshot.workers.clone();
        workers.sort_by(|one, other| look.sort.compare(one, other));
        let title = format!("WORKERS by {}", look.sort.name());
        section(&mut lines, &title, self::workers(&workers), look);
    }
    if !snapshot.gateways.is_empty() {
        section(&mut lines, "GATEWAYS", gateways(&snapshot.gateways), look);
    }
    lines
}

/// Returns the lines of the page with all problems.
pub(super) fn problems_page(snapshot: &Snapshot, look: Look) -> Vec<Line<'static>> {
    problems(snapshot, Look { all_problems: true, ..look })
}

fn problems(snapshot: &Snapshot, look: Look) -> Vec<Line<'static>> {
    let problems = &snapshot.problems;
    if problems.is_empty() {
        return vec![heading(no_problems(snapshot))];
    }
    let shown = if look.all_problems { problems.len() } else { problems.len().min(FEW) };
    let mut lines = vec![heading(format!("PROBLEMS {}", problems.len()))];
    let style = if look.colored { Style::new().fg(Color::Red) } else { Style::new() };
    for problem in &problems[..shown] {
        for (text, mark) in wrapped(&line(problem), look.width.saturating_sub(2)).zip(marks()) {
            lines.push(Line::from(Span::styled(format!("{mark} {text}"), style)));
        }
    }
    if shown < problems.len() {
        let more = counted(problems.len() - shown, "more problem");
        lines.push(Line::raw(cut(&format!("  {more}: press w"), look.width)));
    }
    lines
}

/// Returns the heading in place of problems. It names what was read if that is not all.
fn no_problems(snapshot: &Snapshot) -> String {
    let queues = snapshot.models.iter().any(|model| model.ready.is_some());
    let workers = !snapshot.workers.is_empty();
    let read =
        [("queues", queues), ("workers", workers), ("gateways", !snapshot.gateways.is_empty())];
    let read: Vec<&str> = read.iter().filter(|(_, read)| *read).map(|(name, _)| *name).collect();
    match read[..] {
        [] => "NOTHING WAS READ YET".to_owned(),
        _ if queues && workers => "NO PROBLEMS".to_owned(),
        _ => format!("NO PROBLEMS of {}", read.join(" and ")),
    }
}

/// Returns the marks of a problem's lines.
fn marks() -> impl Iterator<Item = &'static str> {
    ["!"].into_iter().chain(std::iter::repeat(" "))
}

/// Breaks a text into lines of at most `most` terminal columns.
fn wrapped(text: &str, most: usize) -> impl Iterator<Item = String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let word = cut(word, most);
        match lines.last_mut() {
            Some(last) if last.is_empty() => *last = word,
            Some(last) if width(last) + 1 + width(&word) <= most => {
                last.push(' ');
                last.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.into_iter()
}

fn section(lines: &mut Vec<Line<'static>>, title: &str, columns: Vec<Column>, look: Look) {
    lines.push(Line::default());
    lines.push(heading(cut(title, look.width)));
    let mut table = lay_out(columns, look.width).into_iter();
    lines.extend(table.next().map(|titles| Line::from(titles).style(Modifier::UNDERLINED)));
    lines.extend(table.map(Line::from));
}

fn heading(text: String) -> Line<'static> {
    Line::from(text).style(Modifier::BOLD)
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn number(number: Option<u64>) -> Option<String> {
    number.map(|number| number.to_string())
}

fn models(rows: &[Model]) -> Vec<Column> {
    let dead = |model: &Model| match model.dead_new {
        Some(new @ 1..) => model.dead.map(|dead| format!("{dead} (+{new})")),
        _ => number(model.dead),
    };
    vec![
        Column::names("model", 0, rows, |model| &model.model),
        Column::figures("ready", 0, rows, |model| number(model.ready)),
        Column::figures("bulk", 1, rows, |model| number(model.bulk)),
        Column::figures("in work", 0, rows, |model| number(model.in_work)),
        Column::figures("consumers", 0, rows, |model| number(model.consumers)),
        Column::figures("retry", 2, rows, |model| number(model.retry)),
        Column::figures("dead letters", 0, rows, dead),
        Column::figures("in/s", 3, rows, |model| model.published_per_s.map(rate)).optional(),
        Column::figures("out/s", 4, rows, |model| model.settled_per_s.map(rate)).optional(),
    ]
}

fn workers(rows: &[Worker]) -> Vec<Column> {
    let slots = |worker: &Worker| Some(format!("{}/{}", worker.running?, worker.slots?));
    vec![
        Column::names("worker", 0, rows, |worker| &worker.address),
        Column::names("model", 0, rows, |worker| &worker.model),
        Column::names("version", 5, rows, |worker| &worker.version),
        Column::names("revision", 8, rows, |worker| &worker.revision).optional(),
        Column::names("state", 0, rows, |worker| worker.state),
        Column::figures("slots", 0, rows, slots),
        Column::figures("tok/s", 0, rows, |worker| worker.tokens_per_s.map(rate)),
        Column::figures("ttft p50", 3, rows, |worker| worker.first_token_p50_s.map(seconds)),
        Column::figures("ttft p95", 1, rows, |worker| worker.first_token_p95_s.map(seconds)),
        Column::figures("drafts", 2, rows, |worker| worker.drafts_accepted.map(share)),
        Column::figures("prefix", 4, rows, |worker| worker.prefix_cache_hits.map(share)),
        Column::figures("req/s", 6, rows, |worker| worker.requests_per_s.map(rate)),
        Column::figures("err/s", 7, rows, |worker| worker.errors_per_s.map(rate)),
    ]
}

fn gateways(rows: &[Gateway]) -> Vec<Column> {
    vec![
        Column::names("gateway", 0, rows, |gateway| &gateway.address),
        Column::names("state", 0, rows, |gateway| gateway.state),
        Column::figures("streams", 0, rows, |gateway| number(gateway.streams)),
        Column::figures("running", 4, rows, |gateway| number(gateway.running)),
        Column::figures("req/s", 0, rows, |gateway| gateway.requests_per_s.map(rate)),
        Column::figures("refused/s", 0, rows, |gateway| gateway.refused_per_s.map(rate)),
        Column::figures("failed/s", 1, rows, |gateway| gateway.failed_per_s.map(rate)),
        Column::figures("reattached/s", 2, rows, |gateway| gateway.reattached_per_s.map(rate)),
        Column::figures("ttft p50", 5, rows, |gateway| gateway.first_token_p50_s.map(seconds)),
        Column::figures("ttft p95", 3, rows, |gateway| gateway.first_token_p95_s.map(seconds)),
    ]
}
