//! Modules that define variables of requests.

pub(crate) mod browser;
pub(crate) mod json;
pub(crate) mod referer;
pub(crate) mod secure_link;
