//! `resolver` and `resolver_timeout` of a location.

use std::net::IpAddr;

use tw_conf::{Args, ConfError, Directive, Word, record};

use super::ALL;
use crate::load::Resolve;

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

// DIFF(nginx): such a name is resolved by the system, and that is said; nginx answers 502.
/// Warns, once, of an address with variables where no `resolver` is. `host` is the part of `word` that names a server.
pub fn warn_without(word: &Word, host: &[u8], cx: &mut Resolve<'_>) {
    let block = &mut cx.block;
    let text = String::from_utf8_lossy(host);
    let needs_none = is_address(&text) || block.upstreams.find(&text).is_some();
    if block.has_resolver || needs_none || std::mem::replace(&mut block.is_resolver_missed, true) {
        return;
    }
    let message =
        format!("no resolver is defined for the names in \"{word}\", the system's name servers are asked");
    cx.report(ConfError::warn(message).at(word.span).hint("\"resolver\" says which name servers are asked"));
}

/// Returns true if `text` needs no name server, with a port or without.
fn is_address(text: &str) -> bool {
    let is_unix = text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:"));
    let ip = match text.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => text.split(':').next().unwrap_or_default(),
    };
    is_unix || ip.parse::<IpAddr>().is_ok()
}
