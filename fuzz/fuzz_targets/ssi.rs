//! Pages with commands of SSI: see `checks/ssi.rs`.

#![no_main]

#[path = "../../crates/tw-modules/src/filters/ssi/parser.rs"]
mod parser;
#[path = "../checks/ssi.rs"]
mod ssi;
#[path = "../../crates/tw-modules/src/filters/ssi/words.rs"]
mod words;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ssi::check(data));
