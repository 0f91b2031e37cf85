//! The checks of the fuzz target, in small.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/http2.rs"]
mod http2;

#[test]
fn frames_of_peers() {
    // Types, flags and small lengths, and what stands in heads.
    let alphabet = b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x10\x25\x7f\x80\x82\x84\x86\x8f\xff:/";
    Mutations { count: 10_000, alphabet }.run("http2", http2::check);
}
