//! Messages between a loop and its script process: see `checks/script.rs`.

#![no_main]

#[path = "../checks/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| script::check(data));
