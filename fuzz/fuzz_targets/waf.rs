//! Rules, targets and bodies of the firewall: see `checks/waf.rs`.

#![no_main]

#[path = "../checks/waf.rs"]
mod waf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| waf::check(data));
