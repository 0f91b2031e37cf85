//! Matches by port and host, in the order of precedence.

use std::collections::BTreeMap;

use super::attach::{Attachment, covers};
use crate::cluster::gateway::{PathMatch, Route, RouteMatch, RouteRule};
use crate::cluster::object::ObjectName;

/// One host of one port.
#[derive(Debug)]
pub(super) struct GatewayHost<'a> {
    /// Gateway.
    pub(super) gateway: &'a ObjectName,
    /// TLS is decrypted.
    pub(super) is_tls: bool,
    /// Chains and keys.
    pub(super) certificates: &'a [(Vec<u8>, Vec<u8>)],
    /// Matches in the order of precedence.
    pub(super) entries: Vec<Entry<'a>>,
}

/// A match of a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// Route.
    pub(super) route: &'a Route,
    /// Number of the rule in the route.
    pub(super) number: usize,
    /// Rule.
    pub(super) rule: &'a RouteRule,
    /// Match.
    pub(super) route_match: &'a RouteMatch,
    /// The variable of a predicate chooses it, not the path of a location.
    pub(super) is_predicate: bool,
}

/// Hosts of all listeners of HTTP and HTTPS, by port and name; the empty name stands for all.
pub(super) fn hosts(attachment: &Attachment) -> BTreeMap<(u16, String), GatewayHost<'_>> {
    let mut hosts = BTreeMap::new();
    let mut listeners = Vec::new();
    for (number, state) in attachment.gateways.iter().enumerate() {
        for (index, (listener, listener_state)) in
            state.gateway.listeners.iter().zip(&state.listeners).enumerate()
        {
            if listener_state.is_served && matches!(&*listener.protocol, "HTTP" | "HTTPS") {
                let host = GatewayHost {
                    gateway: &state.gateway.metadata.name,
                    is_tls: listener.protocol == "HTTPS",
                    certificates: &listener_state.certificates,
                    entries: Vec::new(),
                };
                hosts.insert((listener.port, listener.hostname.clone()), host);
                listeners.push((number, index, listener, listener_state, &state.gateway.metadata.name));
            }
        }
    }
    for state in &attachment.routes {
        for (number, index, names) in state.parents.iter().flat_map(|parent| &parent.listeners) {
            let of = listeners.iter().find(|(n, i, ..)| n == number && i == index);
            let Some((_, _, listener, listener_state, gateway)) = of else { continue };
            for name in names {
                // Requests for a host belong to the listener with the most specific hostname, and to no other.
                let is_better = |other: &str| {
                    covers(other, name) && covers(&listener.hostname, other) && other != listener.hostname
                };
                let port = listener.port;
                if listeners.iter().any(|(_, _, other, ..)| other.port == port && is_better(&other.hostname))
                {
                    continue;
                }
                let host = hosts.entry((port, name.clone())).or_insert_with(|| GatewayHost {
                    gateway,
                    is_tls: listener.protocol == "HTTPS",
                    certificates: &listener_state.certificates,
                    entries: Vec::new(),
                });
                let rules = state.route.rules.iter().enumerate();
                for (number, rule) in rules {
                    let route = &state.route;
                    let entries = rule.matches.iter().map(|route_match| Entry {
                        route,
                        number,
                        rule,
                        route_match,
                        is_predicate: false,
                    });
                    host.entries.extend(entries);
                }
            }
        }
    }
    hosts.values_mut().for_each(GatewayHost::sort);
    hosts
}

impl GatewayHost<'_> {
    fn sort(&mut self) {
        // Routes are sorted by age, and rules by their number, so that this order remains between equal ranks.
        self.entries.sort_by_key(|entry| entry.route_match.rank());
        let mut kept: Vec<Entry<'_>> = Vec::new();
        for entry in &self.entries {
            if !kept.iter().any(|other| other.route_match == entry.route_match) {
                kept.push(*entry);
            }
        }
        for entry in &mut kept {
            entry.is_predicate = !entry.route_match.is_plain();
        }
        // Exact locations and regular expressions come before predicates, and those before prefixes.
        loop {
            let next = kept
                .iter()
                .position(|entry| !entry.is_predicate && kept.iter().any(|other| is_hidden(entry, other)));
            let Some(entry) = next.and_then(|index| kept.get_mut(index)) else { break };
            entry.is_predicate = true;
        }
        self.entries = kept;
    }
}

/// Returns true if a location for `entry` would be chosen in the wrong order with regard to the predicate `other`.
fn is_hidden(entry: &Entry<'_>, other: &Entry<'_>) -> bool {
    if !other.is_predicate {
        return false;
    }
    match (&entry.route_match.path, &other.route_match.path) {
        (PathMatch::Exact(path), PathMatch::Exact(other)) => path == other,
        (PathMatch::Exact(_), _) => false,
        (PathMatch::Regex(_), path) => !matches!(path, PathMatch::Prefix(_)),
        // All other matches have a predicate, too, or come before.
        (PathMatch::Prefix(path), _) if path.is_empty() => false,
        (PathMatch::Prefix(path), PathMatch::Exact(other)) => path == other,
        (PathMatch::Prefix(_), PathMatch::Regex(_)) => true,
        (PathMatch::Prefix(path), PathMatch::Prefix(other)) => {
            path.strip_prefix(&**other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    }
}
