//! Plot of one run over time: arrivals, queue, and workers.

use super::Run;
use super::axis::Axis;
use super::svg::{Anchor, COLORS, GRID_COLOR, INK_COLOR, Svg};
use crate::simulate::Step;

const WIDTH_PX: f64 = 760.0;
const LEFT_PX: f64 = 70.0;
const RIGHT_PX: f64 = 620.0;
const TOP_PX: f64 = 50.0;

/// Height of a panel, and the distance of two.
const PANEL_HEIGHT_PX: f64 = 120.0;
const PANEL_GAP_PX: f64 = 30.0;

/// Points of a line, at most. A point is the largest number of its part of the time.
const MAX_POINTS: usize = 500;

/// Line of a panel.
struct Line<'a> {
    name: &'a str,
    numbers: Vec<f64>,
}

/// Returns a plot of a run over time, as SVG: arrivals per second, the queue, and desired and running workers.
///
/// Of long runs, each point is the largest number of several decisions.
pub fn series(run: &Run<'_>) -> String {
    let steps = &run.outcome.steps;
    let of = |number: &dyn Fn(&Step) -> f64| steps.iter().map(number).collect::<Vec<_>>();
    let panels = [
        ("requests/s", vec![Line { name: "arrivals", numbers: arrivals(steps) }]),
        (
            "requests",
            vec![Line { name: "queue", numbers: of(&|it| it.observation.waiting() as f64) }],
        ),
        (
            "workers",
            vec![
                Line { name: "desired", numbers: of(&|it| f64::from(it.decision.desired)) },
                Line { name: "running", numbers: of(&|it| f64::from(it.observation.running)) },
            ],
        ),
    ];
    let bottom = TOP_PX + panels.len() as f64 * (PANEL_HEIGHT_PX + PANEL_GAP_PX) - PANEL_GAP_PX;
    let mut svg = Svg::new(WIDTH_PX, bottom + 50.0, run.name);
    svg.text((LEFT_PX, 22.0), Anchor::Start, run.name);
    let last_h = steps.last().map_or(0.0, |step| step.observation.at_s) / 3600.0;
    let x = Axis::exact(last_h, LEFT_PX, RIGHT_PX);
    let hours: Vec<f64> = of(&|it| it.observation.at_s / 3600.0);
    let mut colors = COLORS.iter();
    for (number, (unit, lines)) in panels.iter().enumerate() {
        let top = TOP_PX + number as f64 * (PANEL_HEIGHT_PX + PANEL_GAP_PX);
        panel(&mut svg, top, unit, lines, (&x, &hours), &mut colors);
    }
    for (number, text) in x.marks() {
        svg.text((x.place(number), bottom + 18.0), Anchor::Middle, text);
    }
    svg.text((f64::midpoint(LEFT_PX, RIGHT_PX), bottom + 40.0), Anchor::Middle, "time (hours)");
    svg.end()
}

/// Returns the arrivals per second before each decision.
fn arrivals(steps: &[Step]) -> Vec<f64> {
    let mut before_s = 0.0;
    let rate = |step: &Step| {
        let passed_s = step.observation.at_s - before_s;
        before_s = step.observation.at_s;
        if passed_s > 0.0 { step.observation.arrived as f64 / passed_s } else { 0.0 }
    };
    steps.iter().map(rate).collect()
}

fn panel<'a>(
    svg: &mut Svg,
    top: f64,
    unit: &str,
    lines: &[Line<'_>],
    (x, hours): (&Axis, &[f64]),
    colors: &mut impl Iterator<Item = &'a &'a str>,
) {
    let bottom = top + PANEL_HEIGHT_PX;
    let largest = lines.iter().flat_map(|line| &line.numbers).copied().fold(0.0, f64::max);
    let y = Axis::linear(largest, bottom, top);
    for (number, text) in y.marks() {
        let place = y.place(number);
        svg.line((LEFT_PX, place), (RIGHT_PX, place), GRID_COLOR);
        svg.text((LEFT_PX - 8.0, place + 4.0), Anchor::End, text);
    }
    for (number, _) in x.marks() {
        svg.line((x.place(number), bottom), (x.place(number), bottom + 4.0), INK_COLOR);
    }
    svg.line((LEFT_PX, bottom), (RIGHT_PX, bottom), INK_COLOR);
    svg.line((LEFT_PX, top), (LEFT_PX, bottom), INK_COLOR);
    svg.vertical_text((20.0, f64::midpoint(top, bottom)), unit);
    let mut height = top + 10.0;
    for (line, color) in lines.iter().zip(colors) {
        let size = hours.len().div_ceil(MAX_POINTS).max(1);
        let parts = hours.chunks(size).zip(line.numbers.chunks(size));
        let points = parts.filter_map(|(hours, numbers)| {
            let largest = numbers.iter().copied().fold(0.0, f64::max);
            Some((x.place(*hours.first()?), y.place(largest)))
        });
        svg.lines(points, color);
        svg.line((RIGHT_PX + 22.0, height - 4.0), (RIGHT_PX + 38.0, height - 4.0), color);
        svg.text((RIGHT_PX + 44.0, height), Anchor::Start, line.name);
        height += 20.0;
    }
}
