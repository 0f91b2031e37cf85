//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/mqtt.rs"]
mod mqtt;
#[path = "../../../fuzz/checks/session_record.rs"]
mod session_record;

/// Some seconds for each target without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 2000, alphabet: b"\x00\x01\x02\x04\x05\x10\x7f\x80\xc2\xc6\xffMQTTaz" };

#[test]
fn mqtt_packets() {
    MUTATIONS.run("mqtt", mqtt::check);
}

#[test]
fn session_records() {
    const MUTATIONS: Mutations<'_> = Mutations { count: 20_000, alphabet: b"\x00\x01\x02\x7f\x80\xff" };
    MUTATIONS.run("session_record", session_record::check);
}
