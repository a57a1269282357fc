//! Table and plots of two runs.

use super::{Run, frontier, series, table};
use crate::policy::{BacklogSeconds, Fixed, Options, Rule};
use crate::simulate::{Cluster, Outcome, WorkerSpec, simulate};
use crate::trace::Day;

/// Name with the special characters of Markdown and of SVG.
const STRANGE: &str = "a|b <c> & \"d\"\n\u{1}_e_";

fn outcomes() -> [Outcome; 2] {
    let worker = WorkerSpec {
        places: 8,
        tokens_per_s: 160.0,
        stream_tokens_per_s: 40.0,
        prefill_tokens_per_s: 8000.0,
    };
    let cluster = Cluster { worker, on_demand_per_hour: 19.47, ..Cluster::default() };
    let trace = Day { duration_s: 3600.0, bursts: 1, ..Day::default() }.trace().unwrap();
    let backlog = BacklogSeconds { worker_tokens_per_s: 160.0, ..BacklogSeconds::default() };
    let rules = [Rule::Fixed(Fixed { workers: 4 }), Rule::BacklogSeconds(backlog)];
    rules.map(|rule| simulate(&trace, &cluster, Options::new(8, rule)).unwrap())
}

/// Asserts that all tags are closed, in their order, and that no number is infinite.
#[track_caller]
fn check_svg(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert!(!svg.contains("<c>") && !svg.contains('\u{1}'), "{svg}");
}

#[test]
fn a_table_has_a_row_for_each_run_and_its_names_stay_in_their_cells() {
    let [fixed, scaled] = outcomes();
    let runs = [Run { name: "fixed 4", outcome: &fixed }, Run { name: STRANGE, outcome: &scaled }];
    let table = table(&runs);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4);
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    assert!(lines.iter().all(|line| columns(line) == 11), "{table}");
    let waits = &fixed.waits;
    let start = format!("| fixed 4 | {:.1} | {:.1} ", waits.p50_s, waits.p95_s);
    let end = format!(" {:.2} | 4.0 | 4.0 | 0 | 0 |", fixed.cost);
    assert!(lines[2].starts_with(&start) && lines[2].ends_with(&end), "{table}");
    assert!(lines[3].starts_with("| a\\|b &lt;c> &amp; \"d\"  \\_e\\_ |"), "{table}");
}

#[test]
fn the_plot_of_costs_has_units_marks_and_a_legend() {
    let [fixed, scaled] = outcomes();
    let runs = [Run { name: "fixed 4", outcome: &fixed }, Run { name: STRANGE, outcome: &scaled }];
    let svg = frontier("Azure <c>", "USD", &runs);
    check_svg(&svg);
    for text in [
        ">cost (USD)<",
        ">wait until the first token (s)<",
        ">p95<",
        ">1 fixed 4<",
        ">2<",
        ">2 a|b &lt;c",
        ">0.1<",
    ] {
        assert!(svg.contains(text), "{text} is not in {svg}");
    }
    assert_eq!(svg.matches("<circle").count(), 3);
    check_svg(&frontier("", "USD", &[]));
}

#[test]
fn the_plot_over_time_has_three_panels() {
    let [_, scaled] = outcomes();
    let svg = series(&Run { name: STRANGE, outcome: &scaled });
    check_svg(&svg);
    assert_eq!(svg.matches("<polyline").count(), 4);
    for text in
        [">requests/s<", ">requests<", ">workers<", ">time (hours)<", ">desired<", ">running<"]
    {
        assert!(svg.contains(text), "{text} is not in {svg}");
    }
    assert!(svg.contains("a|b &lt;c&gt; &amp; &quot;d&quot;"));
    let empty = Outcome { steps: Vec::new(), ..scaled };
    check_svg(&series(&Run { name: "", outcome: &empty }));
}
