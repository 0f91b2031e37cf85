//! HTTP on the loops: what its block of the configuration becomes, and what knows all parts of HTTP.
//!
//! [`load`] turns a configuration into plans; [`http`] has the state of a loop and the begin of connections. Requests are served by the
//! crates below.

pub mod http;
pub mod limits;
pub mod load;
pub mod metrics;
