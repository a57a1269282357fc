//! Set of limited size.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// Maximum number of members.
const REMEMBERED: usize = 4096;

/// Set that drops its oldest members beyond a limit.
#[derive(Debug)]
pub(super) struct Bounded<T> {
    members: HashSet<T>,
    order: VecDeque<T>,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { members: HashSet::new(), order: VecDeque::new() }
    }
}

impl<T: Clone + Eq + Hash> Bounded<T> {
    pub(super) fn contains(&self, member: &T) -> bool {
        self.members.contains(member)
    }

    pub(super) fn insert(&mut self, member: T) {
        if self.members.insert(member.clone()) {
            self.order.push_back(member);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.members.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounded, REMEMBERED};

    #[test]
    fn the_oldest_is_forgotten_and_a_repeat_is_not_new() {
        let mut set = Bounded::default();
        for n in 0..=REMEMBERED {
            set.insert(n);
            set.insert(n);
        }
        assert!(!set.contains(&0) && set.contains(&1) && set.contains(&REMEMBERED));
        assert_eq!((set.members.len(), set.order.len()), (REMEMBERED, REMEMBERED));
    }
}
