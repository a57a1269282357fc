//! Result table of a run.

use crate::check::Report;
use crate::scenarios::SCENARIOS;

const HEAD: [&str; 10] = [
    "scenario",
    "requests",
    "faults",
    "pieces",
    "resumed",
    "worst s",
    "lost",
    "repeated",
    "double runs",
    "verdict",
];

/// Prints a row per scenario, the problems, and the summary line. Returns true if no check failed.
pub(crate) fn print(reports: Vec<Report>) -> bool {
    let scenarios = by_scenario(reports);
    println!("{}", table(&scenarios));
    for scenario in &scenarios {
        let Report { lost, repeated, double_runs, broken, notes, .. } = scenario;
        notes.iter().for_each(|note| println!("{note}"));
        let kinds = [("lost", lost), ("repeated", repeated), ("double run", double_runs)];
        for (kind, problems) in kinds.into_iter().chain([("broken", broken)]) {
            for problem in problems {
                println!("{kind}: {problem}");
            }
        }
    }
    println!("{}", last_line(&scenarios));
    scenarios.iter().all(Report::is_good)
}

fn by_scenario(mut reports: Vec<Report>) -> Vec<Report> {
    let mut scenarios: Vec<Report> = Vec::new();
    let place = |report: &Report| SCENARIOS.iter().position(|it| it.name == report.scenario);
    reports.sort_by_key(place);
    for report in reports {
        match scenarios.iter_mut().find(|known| known.scenario == report.scenario) {
            Some(known) => known.add(report),
            None => scenarios.push(report),
        }
    }
    scenarios
}

fn last_line(scenarios: &[Report]) -> String {
    let sum = |of: fn(&Report) -> usize| scenarios.iter().map(of).sum::<usize>();
    let (lost, repeated) = (sum(|it| it.lost.len()), sum(|it| it.repeated.len()));
    let doubles = sum(|it| it.double_runs.len());
    format!(
        "{} scenarios, {lost} lost, {repeated} repeated, {doubles} double runs",
        scenarios.len()
    )
}

fn table(scenarios: &[Report]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(scenarios.iter().map(row));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; HEAD.len()] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |line: &[String; HEAD.len()]| {
        let cells = line.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            9 => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn row(report: &Report) -> [String; HEAD.len()] {
    let Report { scenario, rounds, requests, faults, pieces, resumed, worst, .. } = report;
    let name = if *rounds > 1 { format!("{scenario} x{rounds}") } else { scenario.clone() };
    let counts = [*requests, *faults, *pieces, *resumed].map(|count| count.to_string());
    let [requests, faults, pieces, resumed] = counts;
    let bad = [&report.lost, &report.repeated, &report.double_runs].map(|it| it.len().to_string());
    let [lost, repeated, doubles] = bad;
    let verdict = if report.is_good() { "ok" } else { "FAILED" }.to_owned();
    let worst = format!("{worst:.2}");
    [name, requests, faults, pieces, resumed, worst, lost, repeated, doubles, verdict]
}

#[cfg(test)]
mod tests {
    use super::{Report, by_scenario, last_line};

    #[test]
    fn the_last_line_counts_scenarios_and_what_went_wrong_in_all_rounds() {
        let round = |scenario: &str, lost: usize| Report {
            scenario: scenario.to_owned(),
            rounds: 1,
            lost: vec!["x".to_owned(); lost],
            ..Report::default()
        };
        let scenarios = by_scenario(vec![round("kill", 1), round("cut", 0), round("kill", 2)]);
        assert_eq!(last_line(&scenarios), "2 scenarios, 3 lost, 0 repeated, 0 double runs");
    }
}
