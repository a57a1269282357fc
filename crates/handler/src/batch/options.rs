//! Operator options of every batching handler, merged with the options of the model.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::BatchLimits;
use crate::error::{Error, Result};

/// Option names. Names and meanings are those of TorchServe and DJLServing.
const BATCH_SIZE: &str = "batch_size";
const DELAY: &str = "max_batch_delay";

/// Maximum batch size, in inputs. The worker prefetches two batches, and the AMQP prefetch count
/// has 16 bits.
const MAX_BATCH_SIZE: usize = 1 << 14;
/// Maximum delay in milliseconds: one hour.
const MAX_DELAY_MS: f64 = 3_600_000.0;

/// `[handler]` table of a [`Batched`](super::Batched): these two options, and the model's own
/// options in the same table.
///
/// Names and units are those of TorchServe and DJLServing (`batch_size`, `max_batch_delay` in
/// `config.properties` or `serving.properties`). A literal ends in `..BatchOptions::default()`:
/// minor versions add fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchOptions<O> {
    /// Maximum number of inputs in a batch, from 1 to 16384. Absent: the model's own limit.
    pub batch_size: Option<usize>,
    /// Maximum time in milliseconds that a request waits for others to fill its batch; 0 runs the
    /// waiting requests at once. Absent: the model's own limit.
    pub max_batch_delay: Option<f64>,
    /// Options of the model.
    pub own: O,
}

/// Limits that the operator has set.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    batch_size: Option<usize>,
    max_batch_delay: Option<Duration>,
}

impl<O> BatchOptions<O> {
    /// Checks that both options are within their ranges.
    ///
    /// # Errors
    ///
    /// Returns an error that names the option that is out of range.
    pub(super) fn check(&self) -> Result<()> {
        let Self { batch_size, max_batch_delay, .. } = self;
        if let Some(size) = batch_size.filter(|size| !(1..=MAX_BATCH_SIZE).contains(size)) {
            return Err(Error::fatal(format!(
                "the option {BATCH_SIZE} is {size}, and must be from 1 to {MAX_BATCH_SIZE}"
            )));
        }
        if let Some(delay) = max_batch_delay.filter(|delay| !(0.0..=MAX_DELAY_MS).contains(delay)) {
            return Err(Error::fatal(format!(
                "the option {DELAY} is {delay}, and must be from 0 to {MAX_DELAY_MS} milliseconds"
            )));
        }
        Ok(())
    }

    /// Converts the options, which must have passed [`check`](Self::check).
    pub(super) fn limits(&self) -> Asked {
        let delay = |ms: f64| Duration::from_secs_f64(ms / 1000.0);
        Asked { batch_size: self.batch_size, max_batch_delay: self.max_batch_delay.map(delay) }
    }
}

impl Asked {
    /// Returns the effective limits: the operator's, or the model's where the operator has set
    /// none.
    ///
    /// # Errors
    ///
    /// Returns an error if the model's own batch size is out of range.
    pub(super) fn over(self, model: BatchLimits) -> Result<BatchLimits> {
        let batch_size = self.batch_size.unwrap_or(model.batch_size);
        if !(1..=MAX_BATCH_SIZE).contains(&batch_size) {
            let why = format!(
                "the model's own limit {BATCH_SIZE} is {batch_size}, not from 1 to {MAX_BATCH_SIZE}"
            );
            return Err(Error::fatal(why));
        }
        let max_batch_delay = self.max_batch_delay.unwrap_or(model.max_batch_delay);
        Ok(BatchLimits { batch_size, max_batch_delay })
    }
}

/// Written by hand because `serde(flatten)` would accept unknown options.
impl<'de, O: Deserialize<'de>> Deserialize<'de> for BatchOptions<O> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Table(PhantomData))
    }
}

struct Table<O>(PhantomData<O>);

impl<'de, O: Deserialize<'de>> Visitor<'de> for Table<O> {
    type Value = BatchOptions<O>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of options")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        let mut ours = Ours::default();
        let own = O::deserialize(Rest(Others { map, ours: &mut ours }))?;
        let Ours { batch_size, max_batch_delay } = ours;
        Ok(BatchOptions { batch_size, max_batch_delay, own })
    }
}

#[derive(Default)]
struct Ours {
    batch_size: Option<usize>,
    max_batch_delay: Option<f64>,
}

/// Map without the batching options, as the model's own options see it.
struct Others<'a, M> {
    map: M,
    ours: &'a mut Ours,
}

impl<'de, M: MapAccess<'de>> Others<'_, M> {
    /// Returns the next key that is not a batching option.
    fn name(&mut self) -> Result<Option<String>, M::Error> {
        while let Some(name) = self.map.next_key::<String>()? {
            match name.as_str() {
                BATCH_SIZE => self.ours.batch_size = Some(self.value(BATCH_SIZE)?),
                DELAY => self.ours.max_batch_delay = Some(self.value(DELAY)?),
                _ => return Ok(Some(name)),
            }
        }
        Ok(None)
    }

    fn value<T: Deserialize<'de>>(&mut self, name: &str) -> Result<T, M::Error> {
        self.map.next_value().map_err(|error| M::Error::custom(format!("{name}: {error}")))
    }
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Others<'_, M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, M::Error> {
        let Some(name) = self.name()? else { return Ok(None) };
        let key = seed.deserialize(StringDeserializer::<M::Error>::new(name));
        // The error of the model's options lists only their own names.
        let more = |error| {
            M::Error::custom(format!(
                "{error}; each handler that batches has `{BATCH_SIZE}`, `{DELAY}`"
            ))
        };
        key.map(Some).map_err(more)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Deserializer of the model's own options. `()`, which no table deserializes to, stands for no
/// further options.
struct Rest<'a, M>(Others<'a, M>);

impl<'de, M: MapAccess<'de>> Rest<'_, M> {
    fn is_empty(&mut self) -> Result<(), M::Error> {
        let Some(name) = self.0.name()? else { return Ok(()) };
        let _: IgnoredAny = self.0.map.next_value()?;
        Err(M::Error::unknown_field(&name, &[BATCH_SIZE, DELAY]))
    }
}

impl<'de, M: MapAccess<'de>> Deserializer<'de> for Rest<'_, M> {
    type Error = M::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, M::Error> {
        MapAccessDeserializer::new(self.0).deserialize_any(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, M::Error> {
        self.is_empty()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, M::Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, M::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, M::Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}
