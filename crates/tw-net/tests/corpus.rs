//! The checks of the fuzz target, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/proxy_protocol.rs"]
mod proxy_protocol;

/// Some seconds without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 2000, alphabet: b"\r\n\x00\x01\x02\x0c\x11\x12\x20\x21\x24\x31\xff 0159.:PROXYTCPU" };

#[test]
fn headers_of_the_proxy_protocol() {
    MUTATIONS.run("proxy_protocol", proxy_protocol::check);
}
