//! Instructions and field sections of QPACK: see `checks/qpack.rs`.

#![no_main]

#[path = "../checks/qpack.rs"]
mod qpack;

libfuzzer_sys::fuzz_target!(|data: &[u8]| qpack::check(data));
