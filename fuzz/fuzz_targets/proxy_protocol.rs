//! Headers of the PROXY protocol: see `checks/proxy_protocol.rs`.

#![no_main]

#[path = "../checks/proxy_protocol.rs"]
mod proxy_protocol;

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy_protocol::check(data));
