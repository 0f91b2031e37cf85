//! Responses of ACME authorities: see `checks/acme.rs`.

#![no_main]

#[path = "../checks/acme.rs"]
mod acme;

libfuzzer_sys::fuzz_target!(|data: &[u8]| acme::check(data));
