//! Bound of the copies of a schema's parts.

use serde_json::Value;

/// Most values that the copies of one schema's parts may have in all. A schema of references to one large
/// part would grow with the square of its size otherwise.
const MOST_COPIED_VALUES: usize = 64 << 10;

/// Copies that may still be made of a schema's parts.
pub(super) struct Copies {
    values_left: usize,
}

impl Default for Copies {
    fn default() -> Self {
        Self { values_left: MOST_COPIED_VALUES }
    }
}

impl Copies {
    /// Copies a part, or returns `None` beyond the bound.
    pub(super) fn copy(&mut self, part: &Value) -> Option<Value> {
        self.copies(part, 1).then(|| part.clone())
    }

    /// Returns true if `count` copies of a part may be made.
    pub(super) fn copies(&mut self, part: &Value, count: usize) -> bool {
        // Parts are not counted again and again once one was too large.
        let wanted = match self.values_left {
            0 => usize::MAX,
            _ => values(part).saturating_mul(count),
        };
        let left = self.values_left.checked_sub(wanted);
        self.values_left = left.unwrap_or_default();
        left.is_some()
    }
}

/// Returns the number of values in a value, itself included.
pub(super) fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        _ => 0,
    }
}
