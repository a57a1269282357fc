//! Cost of a step as a function of its rows, measured during operation.

use std::time::{Duration, Instant};

use nsbridge_handler::Result;

use crate::kv::BlockTable;
use crate::network::{Chunk, Model};

/// Row counts with a measured cost; others are interpolated. Small counts are listed one by one,
/// because there the group size of the kernels matters: nine rows may cost half as much again as
/// eight.
const POINTS: [usize; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 28, 32, 36, 40, 48,
    64, 96, 128, 192, 256, 512,
];

/// Weights of a measured step, as exponents of its deviation: on the speed of all steps, which
/// varies with the load of the machine, and on the cost of its row count relative to others, which
/// does not vary.
const SPEED_WEIGHT: f64 = 0.1;
const SHAPE_WEIGHT: f64 = 0.01;

/// Maximum factor by which one measurement may deviate from the estimate. A thread that was
/// descheduled for a while says nothing about the model.
const BELIEVED: f64 = 1.3;

/// Assumed cost of an additional row before any measurement, as a fraction of the first row's.
const SLOPE: f64 = 0.1;

/// Time limits of the measurement before the first request, for each row count and in total.
const OF_EACH: Duration = Duration::from_millis(30);
const OF_ALL: Duration = Duration::from_secs(2);

/// Maximum row count of that measurement.
const MEASURED: usize = 40;

/// Cost of a step in seconds, by its rows.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    seconds: [f64; POINTS.len()],
    measured: bool,
}

impl Default for Costs {
    fn default() -> Self {
        Self::by(|rows| 1.0 + SLOPE * (rows - 1) as f64)
    }
}

impl Costs {
    /// Creates costs from a formula, in an unknown unit.
    pub(crate) fn by(cost: impl Fn(usize) -> f64) -> Self {
        Self { seconds: POINTS.map(cost), measured: false }
    }

    /// Measures the steps of a model with up to `most` rows.
    ///
    /// # Errors
    ///
    /// Returns an error if the model cannot run.
    pub(crate) fn of_model(model: &mut Model, most: usize) -> Result<Self> {
        let begun = Instant::now();
        let mut measured: Vec<(usize, f64)> = Vec::new();
        for rows in POINTS.into_iter().take_while(|rows| *rows <= MEASURED) {
            if rows > most.min(model.context()) || begun.elapsed() > OF_ALL {
                break;
            }
            let Some(seconds) = least(model, rows)? else { break };
            measured.push((rows, seconds));
        }
        let Some(&(first, _)) = measured.first() else { return Ok(Self::default()) };
        debug_assert_eq!(first, 1, "the smallest step is measured first");
        let curve = |rows: usize| interpolated(rows, measured.iter().copied());
        Ok(Self { measured: true, ..Self::by(curve) })
    }

    /// Returns true if the costs are measured in seconds.
    pub(crate) fn are_measured(&self) -> bool {
        self.measured
    }

    /// Returns the seconds of a step with `rows` rows.
    pub(crate) fn of(&self, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        interpolated(rows, POINTS.into_iter().zip(self.seconds))
    }

    /// Records that a step with `rows` rows took `seconds`.
    pub(crate) fn learn(&mut self, rows: usize, seconds: f64) {
        let ratio = seconds / self.of(rows);
        if rows == 0 || !ratio.is_finite() || ratio <= 0.0 {
            return;
        }
        let ratio = if self.measured { ratio.clamp(1.0 / BELIEVED, BELIEVED) } else { ratio };
        let speed = if self.measured { ratio.powf(SPEED_WEIGHT) } else { ratio };
        self.seconds.iter_mut().for_each(|seconds| *seconds *= speed);
        if self.measured {
            let nearest = |point: &usize| point.abs_diff(rows);
            let nearest = (0..POINTS.len()).min_by_key(|at| nearest(&POINTS[*at]));
            nearest.into_iter().for_each(|at| self.seconds[at] *= ratio.powf(SHAPE_WEIGHT));
        }
        self.measured = true;
    }
}

/// Returns the value at `rows` of a piecewise linear curve through `points`, which begin at 1.
/// After the last point, it continues with the slope between the first and the last.
fn interpolated(rows: usize, points: impl Iterator<Item = (usize, f64)>) -> f64 {
    let (mut first, mut before) = (None, (1, 0.0));
    for (at, value) in points {
        if at >= rows {
            let (from, low) = if first.is_some() { before } else { (at, value) };
            let share = (rows - from.min(rows)) as f64 / (at - from).max(1) as f64;
            return low + (value - low) * share;
        }
        first = first.or(Some((at, value)));
        before = (at, value);
    }
    let (last, high) = before;
    let (from, low) = first.unwrap_or(before);
    let slope = if last > from { (high - low) / (last - from) as f64 } else { SLOPE * high };
    high + slope.max(0.0) * (rows - last) as f64
}

/// Returns the minimum time of several runs of `rows` rows, or `None` if memory is too small.
fn least(model: &mut Model, rows: usize) -> Result<Option<f64>> {
    let (begun, mut least) = (Instant::now(), f64::INFINITY);
    let tokens = vec![0; rows];
    let mut table = BlockTable::default();
    let reserved = model.cache().reserve(&mut table, rows);
    let mut runs = 0;
    while reserved && (runs < 3 || runs < 20 && begun.elapsed() < OF_EACH) {
        let run = Instant::now();
        let chunk = Chunk { table: &mut table, tokens: &tokens, logits: rows };
        let result = model.forward(&mut [chunk]).map(drop);
        least = least.min(run.elapsed().as_secs_f64());
        model.cache().truncate(&mut table, 0);
        result?;
        if !model.cache().reserve(&mut table, rows) || begun.elapsed() > OF_ALL {
            break;
        }
        runs += 1;
    }
    model.cache().release(table);
    Ok(least.is_finite().then_some(least))
}

#[cfg(test)]
mod tests;
