//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/cache_file.rs"]
mod cache_file;
#[path = "../../../fuzz/checks/cache_policy.rs"]
mod cache_policy;

/// Some seconds for each target without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 4000, alphabet: b"\r\n\r\n \t:=,;\"\\*@()?0129aAzZ-_./\x00\x01\x7f\x80\xff" };

#[test]
fn files_of_the_cache() {
    MUTATIONS.run("cache_file", cache_file::check);
}

#[test]
fn responses_and_requests() {
    MUTATIONS.run("cache_policy", cache_policy::check);
}
