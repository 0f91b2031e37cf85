//! Lists of fields from hostile clients: see `checks/head_list.rs`.

#![no_main]

#[path = "../checks/head_list.rs"]
mod head_list;

libfuzzer_sys::fuzz_target!(|data: &[u8]| head_list::check(data));
