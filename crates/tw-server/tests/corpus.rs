//! The checks of the fuzz targets, in small.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/codecs.rs"]
mod codecs;
#[path = "../../../fuzz/checks/http2.rs"]
mod http2;

/// Some seconds for each target without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 3000, alphabet: b"\r\n :0129\x00\x01\x03\x06\x07\x08\xffVALUEND" };

#[test]
fn responses_in_fastcgi() {
    MUTATIONS.run("fastcgi", codecs::fastcgi);
}

#[test]
fn responses_of_applications() {
    MUTATIONS.run("application", codecs::application);
}

#[test]
fn responses_of_memcached() {
    MUTATIONS.run("memcached", codecs::memcached);
}

#[test]
fn frames_of_http2() {
    // Bytes of types, flags and small lengths, and of fields.
    let alphabet = b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x10\x25\x7f\x80\x82\x84\x86\x8f\xff:/";
    Mutations { count: 10_000, alphabet }.run("http2", http2::check);
}
