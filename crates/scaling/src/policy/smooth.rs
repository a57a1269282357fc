//! Smoothed rate of arrivals that rises quickly and falls slowly.

use crate::math::exp;

/// Moving average of a rate. Its weights fall exponentially with time constants for a rise and for a fall.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    rise_s: f64,
    fall_s: f64,
    counted_s: Option<f64>,
    /// Arrivals since `counted_s`, if no time has passed in between.
    count: u64,
    per_s: Option<f64>,
}

impl Rate {
    pub(super) fn new(rise_s: f64, fall_s: f64) -> Self {
        Self { rise_s, fall_s, counted_s: None, count: 0, per_s: None }
    }

    /// Adds the arrivals since the last call, and returns the rate per second.
    ///
    /// The first call begins the time: over which time its arrivals came is not known.
    pub(super) fn add(&mut self, at_s: f64, arrived: u64) -> f64 {
        let Some(before_s) = self.counted_s else {
            self.counted_s = Some(at_s);
            return 0.0;
        };
        self.count = self.count.saturating_add(arrived);
        let passed_s = at_s - before_s;
        if passed_s > 0.0 {
            let sample = self.count as f64 / passed_s;
            let old = self.per_s.unwrap_or(sample);
            let constant_s = if sample > old { self.rise_s } else { self.fall_s };
            self.per_s = Some(old + (sample - old) * (1.0 - exp(-passed_s / constant_s)));
            (self.counted_s, self.count) = (Some(at_s), 0);
        }
        self.per_s.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    //! Steps of the rate.

    use super::Rate;

    #[test]
    fn the_rate_rises_quickly_and_falls_slowly() {
        let mut rate = Rate::new(30.0, 300.0);
        assert_eq!(rate.add(0.0, 1000), 0.0);
        assert_eq!(rate.add(10.0, 20), 2.0);
        let risen = rate.add(40.0, 300);
        assert!((risen - (2.0 + 8.0 * (1.0 - (-1.0_f64).exp()))).abs() < 1e-12, "{risen}");
        let fallen = rate.add(70.0, 0);
        assert!((fallen - risen * (-0.1_f64).exp()).abs() < 1e-12, "{fallen}");
    }

    #[test]
    fn arrivals_without_time_between_them_are_counted_later() {
        let mut rate = Rate::new(30.0, 300.0);
        rate.add(0.0, 0);
        assert_eq!(rate.add(0.0, 30), 0.0);
        assert_eq!(rate.add(10.0, 10), 4.0);
    }
}
