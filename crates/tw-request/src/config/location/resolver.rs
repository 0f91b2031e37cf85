//! `resolver` and `resolver_timeout` of a location.

use std::marker::PhantomData;

use tw_conf::{Args, Directive, record};
use tw_connect::resolving::RawResolving;

use super::contexts::ALL;

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<RawResolving> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", ALL, Args::at_least(1))
            .since("0.6.28")
            .doc("Name servers, for names that are not known before a request needs them.")
            .set(|raw, node, _| raw.as_mut().read(node)),
        record::time("resolver_timeout", ALL)
            .default("30s")
            .since("0.6.28")
            .doc("Time limit for resolving a name.")
            .set(|raw, node, _| raw.as_mut().read_timeout(node)),
    ];
}
