//! Certificates of peers: see `checks/certificate.rs`.

#![no_main]

#[path = "../checks/certificate.rs"]
mod certificate;

libfuzzer_sys::fuzz_target!(|data: &[u8]| certificate::check(data));
