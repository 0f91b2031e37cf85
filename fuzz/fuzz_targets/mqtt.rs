//! First packets of MQTT: see `checks/mqtt.rs`.

#![no_main]

#[path = "../checks/mqtt.rs"]
mod mqtt;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mqtt::check(data));
