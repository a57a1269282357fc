//! HTTP: connections, TLS, routes, and what is the same for all endpoints.

pub(crate) mod body_memory;
pub(crate) mod cors;
pub(crate) mod drain_body;
pub(crate) mod openapi;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod routes;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod traces;
