//! What goes wrong, when, and for whom.

use std::time::Duration;

use bytes::Bytes;

use super::call::{Call, Kind};

/// Something that an object store does on a bad day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error instead of an answer: status and code, such as 403 and `AccessDenied`.
    Refuse(u16, &'static str),
    /// The connection is reset before a header is sent.
    ResetAtOnce,
    /// The connection is reset after so many bytes of the body, at the latest.
    Reset(u64),
    /// The connection is closed in good order after so many bytes of the body: fewer than the
    /// headers promised.
    Truncate(u64),
    /// Nothing more comes for this long, after so many bytes of the body.
    Stall(u64, Duration),
    /// So many bytes of the body in a second.
    Slow(u64),
    /// A body without a length that begins as it should and never ends.
    Endless,
    /// A body of so many bytes more than was asked for, and a length that says so.
    Longer(u64),
    /// The byte at this offset of the object has one bit changed, where it is among those sent.
    Flip(u64),
    /// The object has become this one, with another ETag, just before the request is answered.
    Change(Bytes),
    /// The whole object with status 200, whatever range was asked for.
    IgnoreRange,
    /// A `Content-Range` one byte further than the one asked for.
    WrongRange,
}

impl Fault {
    /// What S3 says when it is asked too much.
    pub const SLOW_DOWN: Self = Self::Refuse(503, "SlowDown");

    /// What S3 says when something broke in it.
    pub const INTERNAL_ERROR: Self = Self::Refuse(500, "InternalError");

    /// What S3 says of temporary credentials whose time is over.
    pub const EXPIRED_TOKEN: Self = Self::Refuse(400, "ExpiredToken");
}

/// Which of the requests that a rule is for are struck; the first one has the number 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Each of them.
    Always,
    /// One of them.
    Nth(u64),
    /// Those whose number can be divided by this.
    Every(u64),
    /// All those behind this number.
    After(u64),
    /// Each with this probability: the same ones for the same seed.
    Chance(f64),
}

/// A fault, whom it strikes and when.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    when: When,
    kinds: Vec<Kind>,
    path: String,
    /// Requests so far that the rule was for.
    met: u64,
}

impl Rule {
    /// Strikes every read of an object.
    pub fn new(fault: Fault) -> Self {
        Self { fault, when: When::Always, kinds: vec![Kind::Get], path: String::new(), met: 0 }
    }

    /// Only some of the requests.
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Only requests for a path, `bucket/key`, that has this in it.
    pub fn of(mut self, part_of_path: impl Into<String>) -> Self {
        self.path = part_of_path.into();
        self
    }

    /// Requests of these kinds instead of reads.
    pub fn on(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    fn is_for(&self, call: &Call) -> bool {
        self.kinds.contains(&call.kind) && call.path.contains(&self.path)
    }
}

/// Rules, and the seed of their chances. The first rule that strikes a request is the only one.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    seed: u64,
    rules: Vec<Rule>,
}

impl Faults {
    /// None.
    pub fn none() -> Self {
        Self::default()
    }

    /// None yet; `seed` decides what strikes by chance.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, rules: Vec::new() }
    }

    /// One more rule.
    pub fn with(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// What strikes this request. Every rule that it is for counts it.
    pub(super) fn strike(&mut self, call: &Call) -> Option<Fault> {
        let seed = self.seed;
        let mut struck = None;
        for (index, rule) in self.rules.iter_mut().enumerate().filter(|(_, rule)| rule.is_for(call))
        {
            rule.met += 1;
            let strikes = match rule.when {
                When::Always => true,
                When::Nth(number) => rule.met == number,
                When::Every(step) => step > 0 && rule.met % step == 0,
                When::After(number) => rule.met > number,
                When::Chance(share) => chance(seed, index as u64, rule.met) < share,
            };
            if strikes && struck.is_none() {
                struck = Some(rule.fault.clone());
            }
        }
        struck
    }
}

impl From<Rule> for Faults {
    fn from(rule: Rule) -> Self {
        Self::none().with(rule)
    }
}

/// A number from 0 up to 1 that depends on nothing else: SplitMix64's finish.
fn chance(seed: u64, rule: u64, number: u64) -> f64 {
    let mut mixed = seed
        .wrapping_add(rule.wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{Fault, Faults, Rule, When};
    use crate::s3::call::{Call, Kind};

    fn struck(faults: impl Into<Faults>, kind: Kind, path: &str, count: usize) -> Vec<usize> {
        let mut faults = faults.into();
        let call = Call { kind, path: path.to_owned() };
        (1..=count).filter(|_| faults.strike(&call).is_some()).collect()
    }

    #[test]
    fn a_rule_strikes_whom_it_is_for_and_when_it_is_time() {
        let rule = || Rule::new(Fault::SLOW_DOWN);
        assert_eq!(struck(rule(), Kind::Get, "b/k", 2), [1, 2]);
        assert_eq!(struck(rule(), Kind::Put, "b/k", 2), [0; 0]);
        assert_eq!(struck(rule().on([Kind::Put]), Kind::Put, "b/k", 1), [1]);
        assert_eq!(struck(rule().when(When::Nth(3)), Kind::Get, "b/k", 7), [3]);
        assert_eq!(struck(rule().when(When::Every(3)), Kind::Get, "b/k", 7), [3, 6]);
        assert_eq!(struck(rule().when(When::After(5)), Kind::Get, "b/k", 7), [6, 7]);
        assert_eq!(struck(rule().of("shard-2"), Kind::Get, "b/shard-1", 2), [0; 0]);
        assert_eq!(struck(rule().of("shard-2"), Kind::Get, "b/shard-2", 1), [1]);
    }

    #[test]
    fn what_strikes_by_chance_is_the_seeds_choice() {
        let by_chance = |seed, share| {
            let rule = Rule::new(Fault::ResetAtOnce).when(When::Chance(share));
            struck(Faults::seeded(seed).with(rule), Kind::Get, "b/k", 10_000)
        };
        assert_eq!(by_chance(1, 0.1), by_chance(1, 0.1));
        assert_ne!(by_chance(1, 0.1), by_chance(2, 0.1));
        assert!((900..1100).contains(&by_chance(1, 0.1).len()));
        assert_eq!(by_chance(1, 0.0).len(), 0);
        assert_eq!(by_chance(1, 1.0).len(), 10_000);
    }

    #[test]
    fn the_first_rule_that_strikes_is_the_only_one_and_the_others_count_on() {
        let mut faults = Faults::none()
            .with(Rule::new(Fault::SLOW_DOWN).when(When::Nth(1)))
            .with(Rule::new(Fault::ResetAtOnce).when(When::Every(2)));
        let call = Call { kind: Kind::Get, path: "b/k".into() };
        let struck: Vec<_> = (0..4).map(|_| faults.strike(&call)).collect();
        let reset = Some(Fault::ResetAtOnce);
        assert_eq!(struck, [Some(Fault::SLOW_DOWN), reset.clone(), None, reset]);
    }
}
