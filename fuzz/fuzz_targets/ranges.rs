//! Ranges, conditions and dates from hostile clients: see `checks/ranges.rs`.

#![no_main]

#[path = "../checks/ranges.rs"]
mod ranges;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ranges::check(data));
