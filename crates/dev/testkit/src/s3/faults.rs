//! Fault injection for the S3 store: faults, and rules that select the requests.

use std::time::Duration;

use bytes::Bytes;

use super::call::{Call, Kind};

/// Injected fault of the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Error response with this status and code, such as 403 and `AccessDenied`.
    Refuse(u16, &'static str),
    /// Error response with this status and a body that never ends.
    RefuseEndlessly(u16),
    /// Connection reset before any response header.
    ResetAtOnce,
    /// Connection reset after at most this number of body bytes.
    Reset(u64),
    /// Graceful close after this number of body bytes, fewer than the headers promised.
    Truncate(u64),
    /// Pause of this duration after this number of body bytes.
    Stall(u64, Duration),
    /// Throttled body, in bytes per second.
    Slow(u64),
    /// Body without a length that starts correctly and never ends.
    Endless,
    /// Body with this number of additional bytes, and a content length that includes them.
    Longer(u64),
    /// One flipped bit in the byte at this offset of the object, if the response contains it.
    Flip(u64),
    /// Replacement of the object, with another ETag, just before the request is answered.
    Change(Bytes),
    /// Whole object with status 200, for any requested range.
    IgnoreRange,
    /// `Content-Range` header that is one byte off the requested range.
    WrongRange,
}

impl Fault {
    /// Throttling error of S3.
    pub const SLOW_DOWN: Self = Self::Refuse(503, "SlowDown");

    /// Internal error of S3.
    pub const INTERNAL_ERROR: Self = Self::Refuse(500, "InternalError");

    /// Error of S3 for expired temporary credentials.
    pub const EXPIRED_TOKEN: Self = Self::Refuse(400, "ExpiredToken");
}

/// Selects among the requests that a rule matches; the first one has number 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Every request.
    Always,
    /// Only the request with this number.
    Nth(u64),
    /// Requests whose number is divisible by this.
    Every(u64),
    /// All requests after this number.
    After(u64),
    /// Each request with this probability; the same seed selects the same requests.
    Chance(f64),
}

/// Fault, with the requests that it applies to.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    when: When,
    kinds: Vec<Kind>,
    path: String,
    /// Number of requests that the rule has matched.
    met: u64,
}

impl Rule {
    /// Creates a rule that applies the fault to every read of an object.
    pub fn new(fault: Fault) -> Self {
        Self { fault, when: When::Always, kinds: vec![Kind::Get], path: String::new(), met: 0 }
    }

    /// Limits the rule to some of the matching requests.
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Limits the rule to requests whose path, `bucket/key`, contains this text.
    pub fn of(mut self, part_of_path: impl Into<String>) -> Self {
        self.path = part_of_path.into();
        self
    }

    /// Applies the rule to requests of these kinds instead of reads.
    pub fn on(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    fn is_for(&self, call: &Call) -> bool {
        self.kinds.contains(&call.kind) && call.path.contains(&self.path)
    }
}

/// Rules, with the seed of their random choices. If several rules strike a request, the first
/// applies.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    seed: u64,
    rules: Vec<Rule>,
}

impl Faults {
    /// Creates an empty list of rules.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates an empty list of rules; `seed` drives [`When::Chance`].
    pub fn seeded(seed: u64) -> Self {
        Self { seed, rules: Vec::new() }
    }

    /// Appends a rule.
    pub fn with(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Returns the fault for this request. Every rule that matches the request counts it.
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

/// Returns a number in [0, 1) that depends only on its arguments: the finalizer of SplitMix64.
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
