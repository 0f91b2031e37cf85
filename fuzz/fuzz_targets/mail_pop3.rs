//! Clients of mail over POP3 before their login: see `checks/mail_dialogue.rs`.

#![no_main]

#[path = "../checks/mail_dialogue.rs"]
#[allow(dead_code, reason = "the other targets use the rest")]
mod mail_dialogue;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mail_dialogue::pop3(data));
