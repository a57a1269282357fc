//! Axes: the place of a number in a plot, and the numbers at its marks.

/// Marks of a linear axis, at most.
const MAX_MARKS: f64 = 6.0;

/// Axis from a number at one place to a number at another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Logarithmic,
}

impl Axis {
    /// Linear axis from zero to a round number that is not below `largest`.
    pub(super) fn linear(largest: f64, start: f64, end: f64) -> Self {
        let largest = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
        let step = round_step(largest);
        let to = (largest / step - 1e-9).ceil() * step;
        Self { scale: Scale::Linear, from: 0.0, to, start, end }
    }

    /// Linear axis from zero to `largest`, without rounding.
    pub(super) fn exact(largest: f64, start: f64, end: f64) -> Self {
        let to = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
        Self { scale: Scale::Linear, from: 0.0, to, start, end }
    }

    /// Logarithmic axis from `smallest` to a power of ten that is not below `largest`.
    pub(super) fn logarithmic(smallest: f64, largest: f64, start: f64, end: f64) -> Self {
        let mut to = smallest * 10.0;
        while to < largest && to < 1e15 {
            to *= 10.0;
        }
        Self { scale: Scale::Logarithmic, from: smallest, to, start, end }
    }

    /// Place of a number. Numbers beyond the axis are placed at its ends.
    pub(super) fn place(&self, number: f64) -> f64 {
        let number = if number.is_nan() { self.from } else { number.clamp(self.from, self.to) };
        let share = match self.scale {
            Scale::Linear => (number - self.from) / (self.to - self.from),
            Scale::Logarithmic => (number / self.from).ln() / (self.to / self.from).ln(),
        };
        self.start + share * (self.end - self.start)
    }

    /// Numbers at the marks, with their texts.
    pub(super) fn marks(&self) -> Vec<(f64, String)> {
        let (mut marks, mut number) = (Vec::new(), self.from);
        let step = round_step(self.to);
        while number <= self.to * (1.0 + 1e-9) {
            marks.push((number, short(number)));
            number = match self.scale {
                Scale::Linear => step * (marks.len() as f64),
                Scale::Logarithmic => number * 10.0,
            };
        }
        marks
    }
}

/// Distance of the marks: 1, 2 or 5 times a power of ten.
fn round_step(largest: f64) -> f64 {
    let mut power = 1e-9;
    while power < 1e18 {
        for step in [power, 2.0 * power, 5.0 * power] {
            if largest / step <= MAX_MARKS {
                return step;
            }
        }
        power *= 10.0;
    }
    largest
}

/// Number without the digits that rounding errors add.
fn short(number: f64) -> String {
    let text = format!("{number:.9}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if number >= 1e6 { format!("{number:e}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    //! Marks and places.

    use super::Axis;

    fn marks(axis: &Axis) -> Vec<String> {
        axis.marks().into_iter().map(|mark| mark.1).collect()
    }

    #[test]
    fn a_linear_axis_has_round_marks_up_to_the_largest_number() {
        let axis = Axis::linear(37.0, 100.0, 0.0);
        assert_eq!(marks(&axis), ["0", "10", "20", "30", "40"]);
        assert_eq!((axis.place(0.0), axis.place(10.0), axis.place(99.0)), (100.0, 75.0, 0.0));
        assert_eq!(marks(&Axis::linear(0.3, 0.0, 1.0)).last().unwrap(), "0.3");
        assert_eq!(marks(&Axis::linear(1.0, 0.0, 1.0)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(marks(&Axis::linear(f64::NAN, 0.0, 1.0)).len(), 6);
    }

    #[test]
    fn a_logarithmic_axis_has_a_mark_for_each_power_of_ten() {
        let axis = Axis::logarithmic(0.1, 150.0, 0.0, 4.0);
        assert_eq!(marks(&axis), ["0.1", "1", "10", "100", "1000"]);
        assert!((axis.place(10.0) - 2.0).abs() < 1e-9);
        assert_eq!((axis.place(0.0), axis.place(f64::NAN)), (0.0, 0.0));
    }
}
