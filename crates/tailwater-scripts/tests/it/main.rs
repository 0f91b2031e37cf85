//! Tests of the script process: the API, calls and their messages, limits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod api;
mod calls;
mod host;
mod limits;
mod request;
