//! Readings of counters over a window of time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Readings of a source over a window of time, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Window<T> {
    span: Duration,
    readings: VecDeque<(Instant, T)>,
}

impl<T> Window<T> {
    /// Creates an empty window of this length.
    pub(super) fn new(span: Duration) -> Self {
        Self { span, readings: VecDeque::new() }
    }

    /// Adds the newest reading, and drops those that the window does not need.
    ///
    /// The window keeps one reading that is as old as its length or older, so that it covers all of
    /// it.
    pub(super) fn add(&mut self, at: Instant, reading: T) {
        self.readings.push_back((at, reading));
        let is_old = |(then, _): &(Instant, T)| at.duration_since(*then) >= self.span;
        while self.readings.len() > 2 && self.readings.get(1).is_some_and(is_old) {
            self.readings.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.readings.clear();
    }

    /// Returns the newest reading.
    pub(super) fn newest(&self) -> Option<&T> {
        self.readings.back().map(|(_, reading)| reading)
    }

    /// Returns the oldest reading.
    pub(super) fn oldest(&self) -> Option<&T> {
        self.readings.front().map(|(_, reading)| reading)
    }

    /// Returns the seconds from the oldest reading to the newest, if there are two.
    pub(super) fn seconds(&self) -> Option<f64> {
        let ((first, _), (last, _)) = (self.readings.front()?, self.readings.back()?);
        let seconds = last.duration_since(*first).as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }

    /// Returns each reading with its predecessor.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&T, &T)> {
        let readings = self.readings.iter().map(|(_, reading)| reading);
        readings.clone().zip(readings.skip(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Window;

    #[test]
    fn a_window_keeps_one_reading_from_before_it() {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        let mut window = Window::new(Duration::from_secs(10));
        assert_eq!((window.seconds(), window.newest()), (None, None));
        for second in [0, 4, 8, 12, 16] {
            window.add(at(second), second);
        }
        // The reading at 4 s is 12 s old, and that at 8 s is within the window.
        assert_eq!(
            (window.oldest(), window.newest(), window.seconds()),
            (Some(&4), Some(&16), Some(12.0))
        );
        assert_eq!(window.pairs().collect::<Vec<_>>(), [(&4, &8), (&8, &12), (&12, &16)]);
        // After a gap, the window is longer than its length rather than empty.
        window.add(at(100), 100);
        assert_eq!((window.oldest(), window.seconds()), (Some(&16), Some(84.0)));
        window.clear();
        assert_eq!(window.newest(), None);
    }
}
