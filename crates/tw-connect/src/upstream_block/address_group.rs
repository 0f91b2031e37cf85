//! Groups of the addresses in directives: an `upstream` block of that name, or a server alone.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use tw_conf::{ConfError, MachineSubject, Word};
use tw_core::load::Resolve;
use tw_upstream::{BalanceMethod, Group, PeerParams, Server, ServerAddress};

use super::server;
use super::shared_groups::group;
use crate::group::UpstreamGroup;
use crate::protocol::ConnectingProtocol;

/// Addresses that variables can name and that are looked at for a warning.
const POSSIBLE_ADDRESSES_MAX: usize = 1024;

/// The group of what stands in a URL: an `upstream`, or a server alone, as `host:port` or `unix:path`. A server without a
/// port listens on `usual`.
///
/// # Errors
/// No such address, in nginx's words.
pub fn named<P: ConnectingProtocol>(
    word: &Word,
    text: &str,
    usual: Option<u16>,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<UpstreamGroup<P>>, ConfError> {
    if let Some(group) = P::upstream_block(&cx.block).groups.find(text).cloned() {
        P::upstream_block_mut(&mut cx.block).use_group(text);
        return Ok(group);
    }
    let block = P::upstream_block(&cx.block);
    let refused = |error: String| ConfError::new(error).at(word.span);
    // Most host names have dots, and a name with a port is no group.
    let is_plain = !text.contains(['.', ':']);
    let meant = is_plain.then(|| block.groups.nearest(text)).flatten();
    let meant = meant.map(|name| format!("did you mean the upstream \"{name}\"?"));
    let place = server::place(text, usual).map_err(|error| {
        let error = refused(format!("{error} in upstream \"{text}\""));
        match &meant {
            Some(hint) => error.hint(hint),
            None => error,
        }
    })?;
    let host_and_port = server::host_and_port(text);
    if let Some((host, port)) = host_and_port.filter(|(host, _)| block.groups.find(host).is_some()) {
        return Err(refused(format!("upstream \"{host}\" may not have port {port}")));
    }
    // A host is another server with every port that a scheme has.
    let name: Cow<'_, str> = match usual {
        Some(port) if usual != P::SERVER_PORT => server::with_port(text, port).into(),
        _ => text.into(),
    };
    if let Some(group) = block.implicit.get(&*name) {
        return Ok(group.clone());
    }
    if let Some(hint) = meant {
        let message = format!("no upstream has the name \"{text}\", it is resolved as the name of a host");
        cx.report(ConfError::warn(message).at(word.span).hint(hint));
    }
    if let ServerAddress::Named { host, .. } = &place {
        cx.expect(MachineSubject::Host(host.clone()), || unresolved(host, word));
    }
    let server = Server { name: text.into(), address: place, params: PeerParams::default() };
    let peers = group(&name, BalanceMethod::RoundRobin, vec![server], cx);
    let group = Arc::new(UpstreamGroup::plain(peers));
    P::upstream_block_mut(&mut cx.block).implicit.insert((*name).into(), group.clone());
    Ok(group)
}

/// Makes a group of a URL that is known only now. It lives as long as its request. A name is asked of `resolver`: what has a
/// variable in it may be anything. `is_given` says if its first byte is not of the configuration.
///
/// # Errors
/// No address and no name of a host, or the path of a socket that is given.
pub fn alone<P: ConnectingProtocol>(
    text: &str,
    usual: Option<u16>,
    is_given: impl FnOnce() -> bool,
) -> Result<Arc<UpstreamGroup<P>>, String> {
    // DIFF(nginx): who sends a name does not choose a socket of this machine, which has no other protection than its path.
    if server::is_unix(text) && is_given() {
        return Err("Unix socket that the configuration does not name".to_owned());
    }
    let server = server::named(text, None, usual)?;
    let peers = Arc::new(Group::new(text, BalanceMethod::RoundRobin, vec![server], None));
    Ok(Arc::new(UpstreamGroup::plain(peers)))
}

// DIFF(nginx): such a name is resolved by the system, and that is said; nginx answers 502.
/// Warns, once, of an address with variables where no `resolver` is. `host` is the part of `word` that names a server.
pub fn warn_without_resolver<P: ConnectingProtocol>(word: &Word, host: &[u8], cx: &mut Resolve<'_, P>) {
    let texts = cx.vars.possible_texts(host, POSSIBLE_ADDRESSES_MAX).unwrap_or_else(|| vec![host.to_vec()]);
    let block = P::upstream_block_mut(&mut cx.block);
    let needs_none = |text: &Vec<u8>| {
        let text = String::from_utf8_lossy(text);
        let address = text.split_once("://").map_or(&*text, |(_, address)| address);
        let is_path = address.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:"));
        let address = if is_path { address } else { address.split('/').next().unwrap_or_default() };
        text.is_empty() || is_address(address) || block.groups.find(address).is_some()
    };
    if block.has_resolver
        || texts.iter().all(needs_none)
        || std::mem::replace(&mut block.is_resolver_missed, true)
    {
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

/// The note that a test says if the name of a host has no address now.
pub(super) fn unresolved(host: &str, word: &Word) -> ConfError {
    let message = format!("the host name \"{host}\" has no address now");
    ConfError::notice(message).at(word.span).hint("requests to it fail until it has one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_name_server() {
        for (text, expected) in [
            ("192.0.2.1", true),
            ("192.0.2.1:80", true),
            ("[2001:db8::1]", true),
            ("[2001:db8::1]:80", true),
            ("unix:/run/app.sock", true),
            ("UNIX:/run/app.sock", true),
            ("example.com", false),
            ("example.com:80", false),
            ("[example.com]:80", false),
            ("", false),
        ] {
            assert_eq!(is_address(text), expected, "{text}");
        }
    }
}
