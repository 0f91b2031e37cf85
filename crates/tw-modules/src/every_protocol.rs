//! Modules of several protocols.

pub(crate) mod access;
pub(crate) mod geo;
pub(crate) mod geoip2;
pub(crate) mod limit_conn;
pub(crate) mod log;
pub(crate) mod map;
pub(crate) mod num_map;
pub(crate) mod session_real_ip;
pub(crate) mod split_clients;
