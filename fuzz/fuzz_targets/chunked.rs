//! Chunked bodies from hostile peers: see `checks/chunked.rs`.

#![no_main]

#[path = "../checks/chunked.rs"]
mod chunked;

libfuzzer_sys::fuzz_target!(|data: &[u8]| chunked::check(data));
