//! HTTP on the loops: what a loop has of it, and the begin of connections. The rest is in crates below.
//!
//! ```text
//! application what a loop runs and keeps
//! accept      begin of a connection: steps of its address (tw_accept), choice of its protocol
//! handshake   a client during the handshake of its connection: server, certificates, protocol
//! variables   variables of the core
//! ```
//! | crate | content |
//! |---|---|
//! | `tw-http-versions` | connections of each version: request heads in, response heads and bodies out |
//! | `tw-proxy` | upstream servers: retries, connections, requests, responses |
//! | `tw-http-cache` | stored responses of upstream servers |
//! | `tw-phases` | server, location, phases, error pages, conditions, ranges, subrequests |
//! | `tw-request` | what all of them share: the request, its wire, its body, the plan it runs by |
//!
//! State of a module for a request is a variable that it stores, or a typed value in the request's extensions; state beyond one
//! configuration comes from `Resolve::keep`.

pub(crate) mod accept;
pub mod acme;
mod application;
pub(crate) mod handshake;
pub mod history;
mod ocsp_stapling;
pub mod variables;

pub use self::application::{BackgroundTask, HttpLoop, new_loop};

#[cfg(test)]
mod quic_tests;
