//! OpenSSL's configuration strings: see `checks/tls_words.rs`.

#![no_main]

#[path = "../checks/tls_words.rs"]
mod tls_words;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tls_words::check(data));
