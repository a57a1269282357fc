//! Sealed requests, which clients with keys of their own send through the gateway.

pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod wire;
