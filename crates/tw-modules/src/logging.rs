//! Modules that count, trace and log requests.

pub(crate) mod session_log;
