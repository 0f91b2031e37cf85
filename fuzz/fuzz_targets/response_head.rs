//! Response heads from hostile origins: see `checks/response_head.rs`.

#![no_main]

#[path = "../checks/response_head.rs"]
mod response_head;

libfuzzer_sys::fuzz_target!(|data: &[u8]| response_head::check(data));
