//! Access to a gateway: API keys and the limits of their holders, and the memory that tenants share.
//!
//! A caller sends an API key `nsk_<id>_<secret>`. The API key file holds a hash of it, with the
//! tenant and the rights of its holder. The file is reloaded at runtime, so a key that is disabled
//! or removed is refused from the next reload on.
//!
//! | you need | you take |
//! |---|---|
//! | the holder of a key | [`Access::check`] |
//! | an API key file | [`add`], [`list`], [`disable`] |
//! | limits per minute, with what was not used given back | [`Limiter`], [`Reservation`] |
//! | memory of requests, in which large bodies of a tenant wait for one another alone | [`Memory`] |
//! | a thing that tenants share and none uses up | [`Shares`], [`Semaphores`] |

mod access;
mod extent;
mod memory;
mod meter;
mod semaphores;
mod shares;

pub use self::access::edit::{add, disable, list};
pub use self::access::file::{AccessError, Entry};
pub use self::access::key::{ApiKey, ApiKeyId, InvalidApiKeyId};
pub use self::access::limits::{Limit, Limiter, Limits, Refusal, Reservation};
pub use self::access::watched::AccessFile;
pub use self::access::{Access, Caller, Denied};
pub use self::extent::Extent;
pub use self::memory::{Held, MAX_SMALL_BODY_BYTES, Memory};
pub use self::meter::Meter;
pub use self::semaphores::{Semaphores, kib};
pub use self::shares::{Account, Shares};
pub use nsbridge_base::random::NoRandomness;
pub use nsbridge_protocol::Priority;
