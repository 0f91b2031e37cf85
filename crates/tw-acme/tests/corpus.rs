//! The checks of the fuzz target, in small.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/acme.rs"]
mod acme;

/// A second or two without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 50_000, alphabet: b"{}[]\":,\\\r\n \t-+.0129eTZ:/?#@*%_a\x00\x7f\x80\xff" };

#[test]
fn arbitrary_responses_are_described() {
    MUTATIONS.run("acme", acme::check);
}
