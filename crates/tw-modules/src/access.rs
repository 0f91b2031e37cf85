//! Modules that decide if a client may come in.

pub(crate) mod auth_basic;
pub(crate) mod auth_request;
pub(crate) mod auth_require;
pub(crate) mod deny_request;
pub(crate) mod waf;
