//! HTTP on the loops: what its block of the configuration becomes, and how requests are served.
//!
//! [`load`] turns a configuration into plans; [`http`] serves requests by them on the loops.

pub mod http;
pub mod limits;
pub mod load;
pub mod metrics;
