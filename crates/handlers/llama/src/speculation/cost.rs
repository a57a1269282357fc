//! What a step costs, by how many rows it has: measured while it runs.

use std::time::{Duration, Instant};

use nsbridge_handler::Result;

use crate::{Chunk, Model, Table};

/// Row counts whose costs are kept; those between are interpolated. One by one as long as it matters
/// how many rows a kernel takes together: nine may cost half as much again as eight.
const POINTS: [usize; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 28, 32, 36, 40, 48,
    64, 96, 128, 192, 256, 512,
];

/// How much a measured step counts: against the speed of all steps, which changes with what else
/// the machine does, and against the cost of so many rows beside that of others, which does not.
const SPEED_WEIGHT: f64 = 0.1;
const SHAPE_WEIGHT: f64 = 0.01;

/// The most that a step is believed to be slower or quicker than was thought: a thread that was not
/// run for a while says nothing of the model.
const BELIEVED: f64 = 1.3;

/// What more rows cost before anything was measured, as a share of the first.
const SLOPE: f64 = 0.1;

/// How long is measured before the first request, of each size and of all.
const OF_EACH: Duration = Duration::from_millis(30);
const OF_ALL: Duration = Duration::from_secs(2);

/// The most rows that are measured then.
const MEASURED: usize = 40;

/// Seconds of a step, by its rows.
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
    /// Costs by a formula, in a unit that is not yet known.
    pub(crate) fn by(cost: impl Fn(usize) -> f64) -> Self {
        Self { seconds: POINTS.map(cost), measured: false }
    }

    /// Runs a model with so many rows and fewer, to see what they cost.
    ///
    /// # Errors
    ///
    /// The model cannot be run.
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

    /// Whether they are seconds.
    pub(crate) fn are_measured(&self) -> bool {
        self.measured
    }

    /// The seconds of a step with so many rows.
    pub(crate) fn of(&self, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        interpolated(rows, POINTS.into_iter().zip(self.seconds))
    }

    /// A step with so many rows took so many seconds.
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

/// The value at `rows` of a curve through these points, the first of which is at 1; behind the last
/// one it rises as between the first and the last.
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

/// The least time of some runs of so many rows; none if there is no memory for them.
fn least(model: &mut Model, rows: usize) -> Result<Option<f64>> {
    let (begun, mut least) = (Instant::now(), f64::INFINITY);
    let tokens = vec![0; rows];
    let mut table = Table::default();
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
