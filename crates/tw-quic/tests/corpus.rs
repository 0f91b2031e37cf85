//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/quic.rs"]
mod quic;

/// Some seconds without optimisation: many inputs take a whole handshake.
const MUTATIONS: Mutations<'_> = Mutations {
    count: 5000,
    alphabet:
        b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0c\x0e\x0f\x10\x13\x18\x19\x1a\x1b\x1c\x1e\x40\x80\xc0\xff",
};

#[test]
fn quic_datagrams() {
    MUTATIONS.run("quic", quic::check);
}
