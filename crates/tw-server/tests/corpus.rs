//! The checks of the fuzz targets, in small.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/codecs.rs"]
mod codecs;

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
