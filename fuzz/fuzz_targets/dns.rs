//! Messages to the socket of a DNS query: see `checks/dns.rs`.

#![no_main]

#[path = "../checks/dns.rs"]
mod dns;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dns::check(data));
