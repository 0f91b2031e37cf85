//! Response bodies from hostile origins: see `checks/response_body.rs`.

#![no_main]

#[path = "../checks/response_body.rs"]
mod response_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| response_body::check(data));
