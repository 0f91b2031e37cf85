//! Frames of clients of HTTP/2: see `checks/http2.rs`.

#![no_main]

#[path = "../checks/http2.rs"]
mod http2;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http2::check(data));
