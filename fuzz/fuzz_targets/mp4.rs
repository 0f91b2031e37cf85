//! Movie headers of untrusted files: see `checks/mp4.rs`.

#![no_main]

#[path = "../../crates/tw-media/src/mp4/movie/mod.rs"]
#[allow(dead_code, unused_imports)]
mod movie;
#[path = "../checks/mp4.rs"]
mod mp4;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mp4::check(data));
