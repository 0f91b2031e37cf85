//! End-to-end tests: the binary, real sockets, the loop guard on; one folder for each feature.
//!
//! The expected behaviour is that of nginx. `TAILWATER_TEST_BINARY` names another program to test, for example a script that
//! takes `loop_guard` out of the configuration and starts nginx: a test that fails then expects what nginx does not do.
//!
//! `cargo test -p tailwater --test it cache::` runs one folder. Helpers that folders share are in `support`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it leaves out"
)]

mod access;
mod acme;
mod cache;
mod commands;
mod configuration;
mod connections;
mod disk;
mod filters;
mod fleet;
mod gateways;
mod http1;
mod http2;
mod http3;
mod logging;
mod mail;
mod metrics;
mod proxy;
mod routing;
mod running;
mod scripts;
mod static_files;
mod stream;
mod support;
mod tls;
mod tracing;
mod upstream;
mod variables;
