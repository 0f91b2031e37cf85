//! The controller with an API server of the tests, the real server, and scripted pods.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a test fails by panicking, and is no library"
)]

mod cluster;
mod documents;
mod fake;
mod gateway;
mod golden;
mod hostile;
mod manifests;
mod serving;
mod streams;
mod watching;
