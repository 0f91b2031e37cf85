//! `resolver` and `resolver_timeout` of a location.

use tw_conf::{Args, Directive, record};

use super::ALL;

/// One record per directive.
pub(super) const DIRECTIVES: &[Directive<super::Raw>] = &[
    record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", ALL, Args::at_least(1))
        .since("0.6.28")
        .doc("Name servers, for names that are not known before a request needs them.")
        .set(|raw, node, _| raw.resolving.read(node)),
    record::time("resolver_timeout", ALL)
        .default("30s")
        .since("0.6.28")
        .doc("How long a name may take to be found.")
        .set(|raw, node, _| raw.resolving.read_timeout(node)),
];
