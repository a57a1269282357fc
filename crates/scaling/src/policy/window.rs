//! Largest number of the last seconds.

use std::collections::VecDeque;

/// Numbers of the last `delay_s` seconds, of which only those are kept that can still become the largest.
#[derive(Clone, Debug)]
pub(super) struct Window {
    delay_s: f64,
    /// Times and numbers: later ones are smaller.
    kept: VecDeque<(f64, u32)>,
}

impl Window {
    pub(super) fn new(delay_s: f64) -> Self {
        Self { delay_s, kept: VecDeque::new() }
    }

    /// Adds a number, and returns the largest one since `delay_s` before its time.
    pub(super) fn add(&mut self, at_s: f64, number: u32) -> u32 {
        while self.kept.back().is_some_and(|(_, last)| *last <= number) {
            self.kept.pop_back();
        }
        self.kept.push_back((at_s, number));
        while self.kept.front().is_some_and(|(first_s, _)| at_s - first_s > self.delay_s) {
            self.kept.pop_front();
        }
        self.kept.front().map_or(number, |(_, largest)| *largest)
    }
}

#[cfg(test)]
mod tests {
    //! Comparison with the plain definition.

    use proptest::prelude::proptest;

    use super::Window;

    #[test]
    fn a_lower_number_counts_when_it_has_held_for_the_delay() {
        let mut window = Window::new(300.0);
        assert_eq!(window.add(0.0, 5), 5);
        assert_eq!(window.add(300.0, 2), 5);
        assert_eq!(window.add(301.0, 2), 2);
        assert_eq!(window.add(302.0, 9), 9);
    }

    proptest! {
        #[test]
        fn it_is_the_largest_number_of_the_delay(
            delay in 0_u32..50, steps in proptest::collection::vec((0_u32..20, 0_u32..9), 1..60),
        ) {
            let mut window = Window::new(f64::from(delay));
            let (mut at, mut all) = (0, Vec::new());
            for (step, number) in steps {
                at += step;
                all.push((at, number));
                let recent = all.iter().filter(|(then, _)| at - then <= delay);
                assert_eq!(Some(window.add(f64::from(at), number)), recent.map(|it| it.1).max());
            }
        }
    }
}
