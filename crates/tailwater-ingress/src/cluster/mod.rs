//! The cluster: the API server, its objects, and copies of them that follow their changes.

pub mod client;
pub mod gateway;
pub mod object;
pub mod store;
pub mod watch;
