//! Caching fields of responses and requests: see `checks/cache_policy.rs`.

#![no_main]

#[path = "../checks/cache_policy.rs"]
mod cache_policy;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cache_policy::check(data));
