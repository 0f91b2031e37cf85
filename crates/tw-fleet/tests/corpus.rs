//! The checks of the fuzz target, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/nats.rs"]
mod nats;

#[test]
fn bytes_of_a_nats_server() {
    const MUTATIONS: Mutations<'_> =
        Mutations { count: 5000, alphabet: b"\r\n .*>0129-+MSGHPUBINFOPINGERR{}\":,[]\x00\xff$" };
    MUTATIONS.run("nats", nats::check);
}
