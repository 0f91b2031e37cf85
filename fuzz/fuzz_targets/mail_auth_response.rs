//! Responses of auth servers of mail: see `checks/mail_auth_response.rs`.

#![no_main]

#[path = "../checks/mail_auth_response.rs"]
mod mail_auth_response;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mail_auth_response::check(data));
