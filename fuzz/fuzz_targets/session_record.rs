//! Records of sessions over UDP for the next process: see `checks/session_record.rs`.

#![no_main]

#[path = "../checks/session_record.rs"]
mod session_record;

libfuzzer_sys::fuzz_target!(|data: &[u8]| session_record::check(data));
