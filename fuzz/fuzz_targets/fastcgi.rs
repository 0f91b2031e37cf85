//! Responses in FastCGI: see `checks/codecs.rs`.

#![no_main]

#[path = "../checks/codecs.rs"]
#[allow(dead_code, reason = "each target has one of the checks")]
mod codecs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| codecs::fastcgi(data));
