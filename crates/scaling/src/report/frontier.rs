//! Plot of waiting times against cost: a point for each percentile of each run. Runs have numbers, as colors repeat.

use super::Run;
use super::axis::Axis;
use super::svg::{Anchor, COLORS, GRID_COLOR, INK_COLOR, Svg};

const WIDTH_PX: f64 = 760.0;
const LEFT_PX: f64 = 70.0;
const RIGHT_PX: f64 = 520.0;
const TOP_PX: f64 = 40.0;
const BOTTOM_PX: f64 = 380.0;

/// Height of a line of the legend.
const LINE_HEIGHT_PX: f64 = 20.0;

/// Smallest wait of the axis in seconds. Shorter ones are drawn at it.
const SHORTEST_WAIT_S: f64 = 0.1;

/// Names of the percentiles, in the order of the marks.
const PERCENTILES: [&str; 3] = ["p50", "p95", "p99"];

/// Returns a plot of the waits' percentiles against the cost, as SVG. `currency` is the unit of the cost.
///
/// Waits below 0.1 s are drawn at 0.1 s.
pub fn frontier(title: &str, currency: &str, runs: &[Run<'_>]) -> String {
    let height =
        BOTTOM_PX.max(TOP_PX + (runs.len() + PERCENTILES.len() + 1) as f64 * LINE_HEIGHT_PX) + 55.0;
    let mut svg = Svg::new(WIDTH_PX, height, title);
    let largest = |of: &dyn Fn(&Run<'_>) -> f64| runs.iter().map(of).fold(0.0, f64::max);
    let x = Axis::linear(largest(&|run| run.outcome.cost), LEFT_PX, RIGHT_PX);
    let longest_s = largest(&|run| run.outcome.waits.p99_s);
    let y = Axis::logarithmic(SHORTEST_WAIT_S, longest_s, BOTTOM_PX, TOP_PX);
    axes(&mut svg, title, currency, &x, &y);
    for (number, (run, color)) in (1..).zip(runs.iter().zip(COLORS.iter().cycle())) {
        let waits = &run.outcome.waits;
        let place = x.place(run.outcome.cost);
        let heights = [waits.p50_s, waits.p95_s, waits.p99_s].map(|wait_s| y.place(wait_s));
        svg.line((place, heights[0]), (place, heights[2]), color);
        for (kind, height) in heights.into_iter().enumerate() {
            svg.mark((place, height), kind, color);
        }
        svg.text((place, heights[2] - 8.0), Anchor::Middle, number);
    }
    legend(&mut svg, runs);
    svg.end()
}

fn axes(svg: &mut Svg, title: &str, currency: &str, x: &Axis, y: &Axis) {
    svg.text((LEFT_PX, 22.0), Anchor::Start, title);
    for (number, text) in x.marks() {
        let place = x.place(number);
        svg.line((place, TOP_PX), (place, BOTTOM_PX), GRID_COLOR);
        svg.text((place, BOTTOM_PX + 18.0), Anchor::Middle, text);
    }
    for (number, text) in y.marks() {
        let place = y.place(number);
        svg.line((LEFT_PX, place), (RIGHT_PX, place), GRID_COLOR);
        svg.text((LEFT_PX - 8.0, place + 4.0), Anchor::End, text);
    }
    svg.line((LEFT_PX, BOTTOM_PX), (RIGHT_PX, BOTTOM_PX), INK_COLOR);
    svg.line((LEFT_PX, TOP_PX), (LEFT_PX, BOTTOM_PX), INK_COLOR);
    let middle = f64::midpoint(LEFT_PX, RIGHT_PX);
    svg.text((middle, BOTTOM_PX + 40.0), Anchor::Middle, format!("cost ({currency})"));
    svg.vertical_text((20.0, f64::midpoint(TOP_PX, BOTTOM_PX)), "wait until the first token (s)");
}

fn legend(svg: &mut Svg, runs: &[Run<'_>]) {
    let mut height = TOP_PX + 10.0;
    for (kind, name) in PERCENTILES.iter().enumerate() {
        svg.mark((RIGHT_PX + 30.0, height - 4.0), kind, INK_COLOR);
        svg.text((RIGHT_PX + 44.0, height), Anchor::Start, name);
        height += LINE_HEIGHT_PX;
    }
    height += LINE_HEIGHT_PX / 2.0;
    for (number, (run, color)) in (1..).zip(runs.iter().zip(COLORS.iter().cycle())) {
        svg.line((RIGHT_PX + 22.0, height - 4.0), (RIGHT_PX + 38.0, height - 4.0), color);
        svg.text((RIGHT_PX + 44.0, height), Anchor::Start, format!("{number} {}", run.name));
        height += LINE_HEIGHT_PX;
    }
}
