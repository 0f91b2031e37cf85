//! Files of certificates and keys: see `checks/pem.rs`.

#![no_main]

#[path = "../checks/pem.rs"]
mod pem;

libfuzzer_sys::fuzz_target!(|data: &[u8]| pem::check(data));
