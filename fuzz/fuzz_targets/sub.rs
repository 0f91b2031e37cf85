//! Words replaced in bodies: see `checks/sub.rs`.

#![no_main]

#[path = "../../crates/tw-modules/src/filters/sub/matcher.rs"]
mod matcher;
#[path = "../checks/sub.rs"]
mod sub;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sub::check(data));
