//! Class of a request in its queue, and the service tiers that clients ask for.

use nsbridge_client::Request;

use crate::callers::access::Caller;
use crate::text::error::{ApiError, Result};
use crate::text::fields::Fields;

/// Class of a request: that of its API key, or a lower one that it asks for.
pub(crate) use crate::callers::access::Priority as Class;

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

impl Class {
    /// Returns the class of a caller's request that asks for this tier. A key of bulk requests has no
    /// others.
    pub(crate) fn of(caller: &Caller, tier: Tier) -> Self {
        if tier == Tier::Flex { Self::Bulk } else { caller.priority }
    }

    /// Returns the name of the tier that serves the class.
    pub(crate) fn tier(self) -> &'static str {
        match self {
            Self::Interactive => "default",
            Self::Bulk => "flex",
        }
    }

    /// Sets the class of a request. The class of every request of the gateway is set here.
    pub(crate) fn set<I>(self, request: Request<I>) -> Request<I> {
        request.priority(match self {
            Self::Interactive => nsbridge_client::Priority::Interactive,
            Self::Bulk => nsbridge_client::Priority::Bulk,
        })
    }
}

impl Tier {
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
    use super::{Class, Tier};
    use crate::callers::access::{Access, Caller, Priority};
    use crate::text::fields::Fields;

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
            assert_eq!(Class::of(&interactive, tier), Class::Interactive, "{name}");
        }
        let flex = tier(r#"{"service_tier": "flex"}"#).unwrap();
        assert_eq!(Class::of(&interactive, flex), Class::Bulk);
        let bulk = caller(Priority::Bulk);
        for tier in [Tier::Unnamed, Tier::Default, Tier::Flex] {
            assert_eq!(Class::of(&bulk, tier), Class::Bulk);
        }
        let odd = tier(r#"{"service_tier": "canary"}"#).unwrap_err();
        assert!(odd.contains("`flex`") && !odd.contains("canary"), "{odd}");
    }

    #[test]
    fn lines_of_a_batch_are_bulk_requests_under_any_key() {
        let access = Access::open_to_all("t".parse().unwrap());
        let caller = access.check(None, None).unwrap();
        assert_eq!(Class::of(&caller, Tier::Unnamed), Class::Interactive);
        assert_eq!(Class::of(&caller.for_batch(), Tier::Default), Class::Bulk);
    }
}
