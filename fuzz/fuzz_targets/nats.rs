//! Bytes of the engine of a fleet: see `checks/nats.rs`.

#![no_main]

#[path = "../checks/nats.rs"]
mod nats;

libfuzzer_sys::fuzz_target!(|data: &[u8]| nats::check(data));
