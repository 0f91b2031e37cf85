//! Texts in other charsets: see `checks/charset.rs`.

#![no_main]

#[path = "../checks/charset.rs"]
mod charset;
#[path = "../../crates/tw-modules/src/filters/charset/table.rs"]
mod table;

libfuzzer_sys::fuzz_target!(|data: &[u8]| charset::check(data));
