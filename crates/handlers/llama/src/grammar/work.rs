//! Limits on the work that a schema takes, checked by counts before it is compiled.
//!
//! llguidance counts most of its work and refuses too much of it, the same on every machine. Some
//! of its work is not counted, and is limited here. The automaton of a `multipleOf` has a state for
//! each remainder, and as many as their product if several apply to one number. Expressions that a
//! text must match together become one automaton. The names that `patternProperties` match are
//! compared pairwise.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

/// Maximum `multipleOf`, and maximum least common multiple of those that apply to one number,
/// without their decimal points.
const MOST_STEP: u128 = 10_000;

/// Maximum sum of these over the whole schema: some 3 ms and 60 KiB for each hundred.
const MOST_STEPS: u128 = 20_000;

/// Maximum number of expressions that one text may have to match together.
const MOST_TOGETHER: usize = 12;

/// Maximum number of `patternProperties` expressions in the whole schema.
const MOST_NAMES: usize = 32;

/// Maximum number of visited values. References can lead to the same one many times.
const MOST_VISITS: usize = 100_000;

/// Keywords that do not constrain a value, or only apply where they are referenced.
const SILENT: [&str; 10] = [
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "x-guidance",
];

/// Returns the reason why a schema takes too much work, if it does.
pub(super) fn too_much(schema: &Value) -> Option<String> {
    let mut work = Work { root: schema, steps: 0, names: 0, visits: 0 };
    work.walk(schema).err()
}

type Fits = Result<(), String>;

struct Work<'a> {
    root: &'a Value,
    steps: u128,
    names: usize,
    visits: usize,
}

/// Constraints within a part of a schema, with references followed.
#[derive(Default)]
struct Within {
    steps: BTreeSet<Step>,
    expressions: usize,
    /// References that were followed.
    seen: HashSet<String>,
}

/// Value of `multipleOf`: its digits, and how many of them follow the decimal point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    digits: u128,
    behind: u32,
}

impl Work<'_> {
    fn walk(&mut self, value: &Value) -> Fits {
        self.visit()?;
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Array(items) => return items.iter().try_for_each(|item| self.walk(item)),
            _ => return Ok(()),
        };
        if let Some(Value::Object(names)) = fields.get("patternProperties") {
            self.names += names.len();
            if self.names > MOST_NAMES {
                return Err(format!("must have at most {MOST_NAMES} `patternProperties`"));
            }
        }
        if meets(fields) || fields.contains_key("anyOf") || fields.contains_key("oneOf") {
            let mut within = Within::default();
            self.gather(value, &mut within)?;
            if meets(fields) && within.expressions > MOST_TOGETHER {
                return Err(format!(
                    "must have at most {MOST_TOGETHER} of `pattern`, `format` and \
                     `patternProperties` within `allOf`, or beside `$ref`, `anyOf`, `oneOf`, `enum` \
                     or `const`"
                ));
            }
            return self.add(&within.steps).and_then(|()| self.walk_all(fields, true));
        }
        let own = fields.get("multipleOf").and_then(Step::of);
        self.add(&own.into_iter().collect())?;
        self.walk_all(fields, false)
    }

    /// Continues with all fields. If `apart`, continues only with definitions, which do not combine
    /// with the constraints here.
    fn walk_all(&mut self, fields: &Map<String, Value>, apart: bool) -> Fits {
        let is_apart = |name: &str| matches!(name, "$defs" | "definitions");
        let some = fields.iter().filter(|(name, _)| !apart || is_apart(name));
        some.map(|(_, value)| value).try_for_each(|value| self.walk(value))?;
        if apart { self.count_names(fields) } else { Ok(()) }
    }

    /// Counts the `patternProperties` below combined constraints.
    fn count_names(&mut self, fields: &Map<String, Value>) -> Fits {
        let mut open: Vec<&Value> = fields.values().collect();
        while let Some(value) = open.pop() {
            self.visit()?;
            match value {
                Value::Object(fields) => {
                    if let Some(Value::Object(names)) = fields.get("patternProperties") {
                        self.names += names.len();
                    }
                    open.extend(fields.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        if self.names > MOST_NAMES {
            return Err(format!("must have at most {MOST_NAMES} `patternProperties`"));
        }
        Ok(())
    }

    fn gather(&mut self, value: &Value, within: &mut Within) -> Fits {
        self.visit()?;
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Array(items) => {
                return items.iter().try_for_each(|item| self.gather(item, within));
            }
            _ => return Ok(()),
        };
        within.steps.extend(fields.get("multipleOf").and_then(Step::of));
        let texts = ["pattern", "format"]
            .iter()
            .filter(|name| fields.get(**name).is_some_and(Value::is_string));
        within.expressions += texts.count();
        if let Some(Value::Object(names)) = fields.get("patternProperties") {
            within.expressions += names.len();
        }
        if let Some(Value::String(to)) = fields.get("$ref")
            && within.seen.insert(to.clone())
            && let Some(there) = to.strip_prefix('#').and_then(|path| self.root.pointer(path))
        {
            self.gather(there, within)?;
        }
        let parts = fields.iter().filter(|(name, _)| !SILENT.contains(&name.as_str()));
        parts.map(|(_, value)| value).try_for_each(|value| self.gather(value, within))
    }

    /// Adds the steps that may apply to one number.
    fn add(&mut self, steps: &BTreeSet<Step>) -> Fits {
        let Some(together) = least_common_multiple(steps) else {
            return Err(format!(
                "must not have a `multipleOf` whose digits say more than {MOST_STEP}, or several for \
                 one number whose least common multiple does"
            ));
        };
        // Each pair of alternatives forms a number of its own.
        let count = steps.len() as u128;
        self.steps += together * count * count;
        if self.steps > MOST_STEPS {
            return Err(format!(
                "must not have several `multipleOf` whose digits say more than {MOST_STEPS} in sum"
            ));
        }
        Ok(())
    }

    fn visit(&mut self) -> Fits {
        self.visits += 1;
        if self.visits > MOST_VISITS {
            return Err("takes too much work: its references meet too often".to_owned());
        }
        Ok(())
    }
}

/// Returns true if a value must satisfy several parts of the schema at once.
fn meets(fields: &Map<String, Value>) -> bool {
    let has = |name: &str| fields.contains_key(name);
    let says = fields.keys().filter(|name| !SILENT.contains(&name.as_str())).count();
    let joins = ["$ref", "anyOf", "oneOf", "enum", "const"].iter().any(|name| has(name));
    has("allOf") || joins && says > 1 || has("patternProperties") && has("properties")
}

impl Step {
    fn of(value: &Value) -> Option<Self> {
        // 12.34 has the remainders of 1234. Numbers are formatted without an exponent.
        let told = value.as_f64()?.abs().to_string();
        let (whole, behind) = told.split_once('.').unwrap_or((&told, ""));
        let digits = format!("{whole}{behind}").parse().unwrap_or(u128::MAX);
        (digits > 0).then_some(Self { digits, behind: behind.len() as u32 })
    }
}

/// Returns the least common multiple, 0 for an empty set, or `None` if it exceeds [`MOST_STEP`].
fn least_common_multiple(steps: &BTreeSet<Step>) -> Option<u128> {
    let behind = steps.iter().map(|step| step.behind).max().unwrap_or_default();
    let mut all: u128 = 0;
    for step in steps {
        let scaled = 10u128.checked_pow(behind - step.behind)?.checked_mul(step.digits)?;
        if scaled > MOST_STEP {
            return None;
        }
        all = if all == 0 { scaled } else { all / common_divisor(all, scaled) * scaled };
        if all > MOST_STEP {
            return None;
        }
    }
    Some(all)
}

fn common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
