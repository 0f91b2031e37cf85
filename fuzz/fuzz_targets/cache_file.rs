//! Files of the cache: see `checks/cache_file.rs`.

#![no_main]

#[path = "../checks/cache_file.rs"]
mod cache_file;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cache_file::check(data));
