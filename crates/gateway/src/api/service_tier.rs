//! Service tiers that clients ask for, and the class of a request in its queue.

use nsbridge_gateway_access::{Caller, Priority};

use crate::error::{ApiError, Result};
use crate::fields::Fields;

/// Service tier that a request asks for in its field `service_tier`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Tier of the caller's key; the request names none.
    #[default]
    Unnamed,
    /// Tier of the caller's key. All names but `flex` mean it.
    Default,
    /// Tier of bulk requests.
    Flex,
}

/// Returns the name of the tier that serves a class.
pub(crate) fn tier_name(class: Priority) -> &'static str {
    if class == Priority::Bulk { "flex" } else { "default" }
}

impl Tier {
    /// Returns the class of a caller's request that asks for this tier. A key of bulk requests has no
    /// others.
    pub(crate) fn class(self, caller: &Caller) -> Priority {
        if self == Self::Flex { Priority::Bulk } else { caller.priority }
    }

    /// Takes the field `service_tier`.
    ///
    /// # Errors
    ///
    /// Returns an error if the tier is not one of OpenAI's or Anthropic's.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self> {
        match fields.take::<String>("service_tier")?.as_deref() {
            None => Ok(Self::Unnamed),
            Some("flex") => Ok(Self::Flex),
            Some("auto" | "default" | "fast" | "priority" | "scale" | "standard_only") => {
                Ok(Self::Default)
            }
            Some(_) => Err(ApiError::field(
                "service_tier",
                "`service_tier` must be `auto`, `default`, `flex` or `priority`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_gateway_access::{Access, Caller, Priority};

    use super::Tier;
    use crate::fields::Fields;

    fn caller(priority: Priority) -> Caller {
        let access = Access::open_to_all("t".parse().unwrap());
        let mut caller = access.check(None, None).unwrap().for_batch();
        caller.priority = priority;
        caller
    }

    fn tier(body: &str) -> Result<Tier, String> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        Tier::take(&mut fields).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn only_flex_and_a_key_of_bulk_requests_lead_to_the_bulk_class() {
        let interactive = caller(Priority::Interactive);
        for body in ["{}", r#"{"service_tier": null}"#] {
            assert_eq!(tier(body), Ok(Tier::Unnamed), "{body}");
        }
        for name in ["auto", "default", "priority", "fast", "scale", "standard_only"] {
            let tier = tier(&format!(r#"{{"service_tier": "{name}"}}"#)).unwrap();
            assert_eq!(tier.class(&interactive), Priority::Interactive, "{name}");
        }
        let flex = tier(r#"{"service_tier": "flex"}"#).unwrap();
        assert_eq!(flex.class(&interactive), Priority::Bulk);
        let bulk = caller(Priority::Bulk);
        for tier in [Tier::Unnamed, Tier::Default, Tier::Flex] {
            assert_eq!(tier.class(&bulk), Priority::Bulk);
        }
        let odd = tier(r#"{"service_tier": "canary"}"#).unwrap_err();
        assert!(odd.contains("`flex`") && !odd.contains("canary"), "{odd}");
    }

    #[test]
    fn lines_of_a_batch_are_bulk_requests_under_any_key() {
        let access = Access::open_to_all("t".parse().unwrap());
        let caller = access.check(None, None).unwrap();
        assert_eq!(Tier::Unnamed.class(&caller), Priority::Interactive);
        assert_eq!(Tier::Default.class(&caller.for_batch()), Priority::Bulk);
    }
}
