//! Datagrams that worker processes pass to each other: see `checks/process_packet.rs`.

#![no_main]

#[path = "../checks/process_packet.rs"]
mod process_packet;

libfuzzer_sys::fuzz_target!(|data: &[u8]| process_packet::check(data));
