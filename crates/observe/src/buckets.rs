//! Growth of counters, and quantiles of histograms as PromQL defines them.

/// Returns the growth of a counter. A counter that went down was restarted from zero.
pub(crate) fn growth(before: f64, now: f64) -> f64 {
    if now < before { now } else { now - before }
}

/// Cumulative buckets of a histogram, by ascending upper bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// Adds a count to the bucket with this upper bound.
    pub fn add(&mut self, bound: f64, count: f64) {
        match self.0.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(place) => self.0[place].1 += count,
            Err(place) => self.0.insert(place, (bound, count)),
        }
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&mut self, other: &Self) {
        for (bound, count) in &other.0 {
            self.add(*bound, *count);
        }
    }

    /// Returns the growth since an earlier reading. A histogram of which a bucket went down, or that
    /// has other buckets, was restarted from zero.
    pub fn growth(&self, before: &Self) -> Self {
        let pairs = || self.0.iter().zip(&before.0);
        let restarted = |((bound, now), (known, then)): (&(f64, f64), &(f64, f64))| {
            bound.total_cmp(known).is_ne() || now < then
        };
        if self.0.len() != before.0.len() || pairs().any(restarted) {
            return self.clone();
        }
        Self(pairs().map(|((bound, now), (_, then))| (*bound, now - then)).collect())
    }

    /// Returns the quantile `q`, from 0 to 1, as PromQL's `histogram_quantile` estimates it.
    ///
    /// Values are taken as evenly spread within a bucket, and those of the first bucket as above 0.
    /// A quantile in the last bucket, which has no upper bound, is that bucket's lower bound. Returns
    /// `None` without values, or without a bucket for all values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (last, finite) = self.0.split_last()?;
        let total = self.0.iter().fold(0.0, |most: f64, (_, count)| most.max(*count));
        if last.0 != f64::INFINITY || finite.is_empty() || total <= 0.0 {
            return None;
        }
        let rank = q * total;
        let (mut lower, mut below) = (0.0, 0.0_f64);
        for (place, &(bound, count)) in finite.iter().enumerate() {
            // The counts of two moments may be out of order by a little.
            let count = count.max(below);
            if count >= rank {
                if place == 0 && bound <= 0.0 {
                    return Some(bound);
                }
                let share = if count > below { (rank - below) / (count - below) } else { 0.0 };
                return Some(lower + (bound - lower) * share);
            }
            (lower, below) = (bound, count);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::{Buckets, growth};

    fn buckets(counts: &[(f64, f64)]) -> Buckets {
        let mut buckets = Buckets::default();
        for (bound, count) in counts {
            buckets.add(*bound, *count);
        }
        buckets
    }

    #[track_caller]
    fn check(buckets: &Buckets, q: f64, expected: f64) {
        let found = buckets.quantile(q).unwrap();
        assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
    }

    /// Ten values below 0.1 s, ten more up to 0.25 s, none up to 0.5 s, and five above.
    fn some() -> Buckets {
        buckets(&[(0.1, 10.0), (0.25, 20.0), (0.5, 20.0), (f64::INFINITY, 25.0)])
    }

    #[test]
    fn quantiles_are_those_of_histogram_quantile() {
        // Rank 12.5 is a quarter of the second bucket: 0.1 + 0.15 * 2.5 / 10.
        check(&some(), 0.5, 0.1375);
        // Rank 5 is half of the first bucket.
        check(&some(), 0.2, 0.05);
        check(&some(), 0.4, 0.1);
        check(&some(), 0.8, 0.25);
        // In the bucket without an upper bound.
        check(&some(), 0.95, 0.5);
        check(&some(), 1.0, 0.5);
        check(&some(), 0.0, 0.0);
    }

    #[test]
    fn quantiles_of_no_values_are_none() {
        assert_eq!(Buckets::default().quantile(0.5), None);
        assert_eq!(buckets(&[(0.1, 0.0), (f64::INFINITY, 0.0)]).quantile(0.5), None);
        assert_eq!(buckets(&[(f64::INFINITY, 3.0)]).quantile(0.5), None);
        assert_eq!(buckets(&[(0.1, 1.0), (0.2, 3.0)]).quantile(0.5), None);
        check(&buckets(&[(-1.0, 2.0), (f64::INFINITY, 3.0)]), 0.5, -1.0);
    }

    #[test]
    fn a_histogram_that_went_down_was_restarted() {
        let later = buckets(&[(0.1, 10.0), (0.25, 24.0), (0.5, 24.0), (f64::INFINITY, 29.0)]);
        let grown = buckets(&[(0.1, 0.0), (0.25, 4.0), (0.5, 4.0), (f64::INFINITY, 4.0)]);
        assert_eq!(later.growth(&some()), grown);
        assert_eq!(some().growth(&later), some());
        assert_eq!(some().growth(&Buckets::default()), some());
        let (mut sum, mut twice) = (some(), some());
        sum.add_all(&some());
        twice.0.iter_mut().for_each(|(_, count)| *count *= 2.0);
        assert_eq!(sum, twice);
    }

    #[test]
    fn a_counter_that_went_down_was_restarted() {
        assert_eq!(growth(3.0, 10.0), 7.0);
        assert_eq!(growth(10.0, 4.0), 4.0);
        assert_eq!(growth(4.0, 4.0), 0.0);
    }
}
