//! Cache of data keys with at most one pending call per entry.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::provider::KeyError;

/// Bounded cache whose values expire after a time and after a number of uses.
///
/// A caller that needs a value for which a call is already pending waits for that call's outcome,
/// be it a key or an error. A hundred requests under one new key thus cause one call, and so do a
/// hundred under a throttled one. Expired values are dropped, and thereby wiped, at the next use of
/// the cache.
pub(super) struct Cache<K, V> {
    slots: Mutex<HashMap<K, Slot<V>>>,
    most: usize,
    kept_for: Duration,
    uses: u64,
}

enum Slot<V> {
    Coming(watch::Receiver<Option<KeyError>>),
    Here { value: V, until: Instant, uses: u64 },
}

/// Result of a lookup.
enum Found<V> {
    Here(V),
    Coming(watch::Receiver<Option<KeyError>>),
    /// No call is pending, so this caller makes it.
    Ours(watch::Sender<Option<KeyError>>),
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    pub(super) fn new(most: usize, kept_for: Duration, uses: u64) -> Self {
        Self { slots: Mutex::default(), most, kept_for, uses }
    }

    /// Returns the value of `key`, from `ask` if it is not cached.
    pub(super) async fn get(
        &self,
        key: &K,
        ask: impl Future<Output = Result<V, KeyError>>,
    ) -> Result<V, KeyError> {
        loop {
            let mut coming = match self.find(key) {
                Found::Here(value) => return Ok(value),
                Found::Ours(said) => {
                    // Removes the pending slot if this future is dropped before the call completes.
                    let turn = Turn { cache: self, key };
                    let answer = ask.await;
                    match &answer {
                        Ok(value) => turn.keep(value),
                        Err(error) => {
                            said.send_replace(Some(error.clone()));
                        }
                    }
                    return answer;
                }
                Found::Coming(coming) => coming,
            };
            // The sender is dropped when the value is cached, or when the future that made the call
            // is dropped.
            if let Ok(said) = coming.wait_for(Option::is_some).await
                && let Some(error) = said.clone()
            {
                return Err(error);
            }
        }
    }

    fn find(&self, key: &K) -> Found<V> {
        let mut slots = self.slots();
        let now = Instant::now();
        slots.retain(|_, slot| match slot {
            Slot::Coming(_) => true,
            Slot::Here { until, uses, .. } => *until > now && *uses > 0,
        });
        match slots.get_mut(key) {
            Some(Slot::Here { value, uses, .. }) => {
                *uses -= 1;
                Found::Here(value.clone())
            }
            Some(Slot::Coming(coming)) => Found::Coming(coming.clone()),
            None => {
                let (said, coming) = watch::channel(None);
                slots.insert(key.clone(), Slot::Coming(coming));
                Found::Ours(said)
            }
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<K, Slot<V>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of the caller that fills a slot. Dropping it removes a slot that is still pending.
struct Turn<'a, K: Clone + Eq + Hash, V: Clone> {
    cache: &'a Cache<K, V>,
    key: &'a K,
}

impl<K: Clone + Eq + Hash, V: Clone> Turn<'_, K, V> {
    /// Stores the value, which has been used once already, and evicts the oldest one if the cache
    /// is full.
    fn keep(&self, value: &V) {
        let mut slots = self.cache.slots();
        let here = slots.iter().filter_map(|(key, slot)| match slot {
            Slot::Here { until, .. } => Some((*until, key)),
            Slot::Coming(_) => None,
        });
        if here.clone().count() >= self.cache.most {
            let oldest = here.min_by_key(|(until, _)| *until).map(|(_, key)| key.clone());
            oldest.and_then(|key| slots.remove(&key));
        }
        let (until, uses) = (Instant::now() + self.cache.kept_for, self.cache.uses - 1);
        slots.insert(self.key.clone(), Slot::Here { value: value.clone(), until, uses });
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Drop for Turn<'_, K, V> {
    fn drop(&mut self) {
        let mut slots = self.cache.slots();
        if matches!(slots.get(self.key), Some(Slot::Coming(_))) {
            slots.remove(self.key);
        }
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("most", &self.most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
