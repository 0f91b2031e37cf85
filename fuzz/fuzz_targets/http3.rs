//! Streams and frames of HTTP/3: see `checks/http3.rs`.

#![no_main]

#[path = "../checks/http3.rs"]
mod http3;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http3::check(data));
