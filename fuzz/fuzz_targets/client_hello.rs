//! First bytes of a client that speaks TLS: see `checks/client_hello.rs`.

#![no_main]

#[path = "../checks/client_hello.rs"]
mod client_hello;

libfuzzer_sys::fuzz_target!(|data: &[u8]| client_hello::check(data));
