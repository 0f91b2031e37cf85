//! Messages to the socket of a question: see `checks/dns.rs`.

#![no_main]

#[path = "../checks/dns.rs"]
mod dns;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dns::check(data));
