//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/script.rs"]
mod script;

/// Some seconds without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 20_000, alphabet: b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x7f\x80\xff" };

#[test]
fn messages_of_script_processes() {
    MUTATIONS.run("script", script::check);
}
