//! Compressed responses: see `checks/gunzip.rs`.

#![no_main]

#[path = "../checks/gunzip.rs"]
mod gunzip;
#[path = "../../crates/tw-modules/src/filters/gunzip/members.rs"]
mod members;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gunzip::check(data));
