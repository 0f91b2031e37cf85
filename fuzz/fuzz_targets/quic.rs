//! Datagrams and frames of a QUIC client: see `checks/quic.rs`.

#![no_main]

#[path = "../checks/quic.rs"]
mod quic;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quic::check(data));
