//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/http3.rs"]
mod http3;
#[path = "../../../fuzz/checks/qpack.rs"]
mod qpack;

#[test]
fn streams_of_http3() {
    // Bytes of streams, types and small lengths, and of field sections.
    let alphabet = b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0d\x10\x21\x28\x3f\x40\x50\x51\x80\x81\xc1\xd1\xd7\xff";
    Mutations { count: 10_000, alphabet }.run("http3", http3::check);
}

#[test]
fn sections_of_qpack() {
    let alphabet =
        b"\x00\x01\x02\x03\x04\x10\x11\x20\x21\x3f\x40\x41\x45\x50\x51\x61\x7f\x80\x81\x82\xc0\xc1\xd1\xff";
    Mutations { count: 20_000, alphabet }.run("qpack", qpack::check);
}
