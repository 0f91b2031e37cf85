//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/waf.rs"]
mod waf;

/// Some seconds without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 1500, alphabet: b"\x00\x01\x7f\x80\xff\"'\\\n%+;=&:<>{}[]()a1" };

#[test]
fn rules_and_requests() {
    MUTATIONS.run("waf", waf::check);
}
