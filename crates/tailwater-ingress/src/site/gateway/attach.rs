//! Gateway objects with their routes: what is accepted, and why the rest is not.

use crate::cluster::gateway::{
    GROUP, Gateway, Listener, Namespaces, Parent, Reference, Route, RouteBackend, is_hostname,
};
use crate::cluster::object::ObjectName;
use crate::cluster::store::Snapshot;
use crate::site::certificate;
use crate::site::ports::ExtraPort;
use crate::site::services::service_ports;
use crate::site::settings::SiteOptions;

/// Reason, one word, and a text for people.
type Refusal = (&'static str, String);
/// Chain and key of a certificate.
type Pair = (Vec<u8>, Vec<u8>);
/// Numbers of listeners with the hosts that they serve.
type ListenerHosts = Vec<(usize, Vec<String>)>;

/// Condition of a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Type.
    pub kind: &'static str,
    /// Value.
    pub is_true: bool,
    /// Reason, one word.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
}

impl Condition {
    fn new(kind: &'static str, result: Result<(), Refusal>) -> Self {
        match result {
            Ok(()) => Self { kind, is_true: true, reason: kind, message: String::new() },
            Err((reason, message)) => Self { kind, is_true: false, reason, message },
        }
    }
}

/// All Gateway objects of our classes, and all routes that name one of them.
#[derive(Debug, Clone, Default)]
pub struct Attachment {
    /// Gateway objects, the oldest first.
    pub gateways: Vec<GatewayState>,
    /// Routes, the oldest first.
    pub routes: Vec<RouteState>,
}

/// A Gateway.
#[derive(Debug, Clone, Default)]
pub struct GatewayState {
    /// The object.
    pub gateway: Gateway,
    /// Listeners in their order.
    pub listeners: Vec<ListenerState>,
}

/// A listener of a Gateway.
#[derive(Debug, Clone, Default)]
pub struct ListenerState {
    /// Kinds of routes that may be attached.
    pub kinds: Vec<&'static str>,
    /// Number of attached routes.
    pub attached: usize,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// The listener is served.
    pub is_served: bool,
    /// Chains and keys.
    pub certificates: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A route.
#[derive(Debug, Clone)]
pub struct RouteState {
    /// The object.
    pub route: Route,
    /// Gateways of ours that it names.
    pub parents: Vec<ParentState>,
}

/// A route at one Gateway.
#[derive(Debug, Clone, Default)]
pub struct ParentState {
    /// The reference.
    pub parent: Parent,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Numbers of the Gateway and its listeners that serve the route, with the hosts.
    pub listeners: Vec<(usize, usize, Vec<String>)>,
}

/// Finds out which route is attached to which listener.
pub fn attach(snapshot: &Snapshot, options: &SiteOptions) -> Attachment {
    let is_ours = |gateway: &Gateway| {
        let class = snapshot.gateway_classes.get(&ObjectName::new("", &*gateway.class));
        class.is_some_and(|class| class.controller == options.gateway_controller)
    };
    let mut gateways: Vec<_> =
        snapshot.gateways.values().filter(|gateway| is_ours(gateway)).map(|gateway| &**gateway).collect();
    gateways.sort_by_key(|gateway| (&gateway.metadata.created, &gateway.metadata.name));
    let mut attachment = Attachment::default();
    let services = service_ports(snapshot, options);
    for gateway in gateways {
        let mut state = GatewayState { gateway: gateway.clone(), listeners: Vec::new() };
        for listener in &gateway.listeners {
            let taken: Vec<_> = attachment.gateways.iter().chain([&state]).flat_map(served).collect();
            let next = listener_state(snapshot, options, gateway, listener, &taken, &services);
            state.listeners.push(next);
        }
        attachment.gateways.push(state);
    }
    for route in snapshot.routes() {
        attachment.add_route(snapshot, route);
    }
    attachment
}

/// Listeners of a Gateway that are served.
fn served(state: &GatewayState) -> impl Iterator<Item = &Listener> {
    let listeners = state.gateway.listeners.iter().zip(&state.listeners);
    listeners.filter(|(_, state)| state.is_served).map(|(listener, _)| listener)
}

fn listener_state(
    snapshot: &Snapshot,
    options: &SiteOptions,
    gateway: &Gateway,
    listener: &Listener,
    taken: &[&Listener],
    services: &[ExtraPort],
) -> ListenerState {
    let known_names: &[&'static str] = match (&*listener.protocol, listener.passthrough) {
        ("HTTP", _) | ("HTTPS", false) => &["HTTPRoute", "GRPCRoute"],
        ("TLS", _) => &["TLSRoute"],
        ("TCP", _) => &["TCPRoute"],
        ("UDP", _) => &["UDPRoute"],
        _ => &[],
    };
    let is_allowed = |kind: &&&str| {
        let mut kinds = listener.kinds.iter();
        listener.kinds.is_empty() || kinds.any(|(group, allowed)| group == GROUP && allowed == **kind)
    };
    let kinds: Vec<_> = known_names.iter().filter(is_allowed).copied().collect();
    let accepted = accept(options, listener, known_names, taken, services);
    let conflict = taken.iter().find(|other| socket_of(other) == socket_of(listener)).and_then(|other| {
        if protocol_family(other) != protocol_family(listener) {
            return Some("ProtocolConflict");
        }
        let same = |other: &&&Listener| {
            socket_of(other) == socket_of(listener) && other.hostname == listener.hostname
        };
        taken.iter().find(same).map(|_| "HostnameConflict")
    });
    let mut certificates = Vec::new();
    let mut resolved = Ok(());
    let all_known =
        listener.kinds.iter().all(|(group, kind)| group == GROUP && known_names.contains(&kind.as_str()));
    if !all_known {
        resolved = Err(("InvalidRouteKinds", "a kind of routes is not supported here".to_owned()));
    }
    let needs_certificate = ends_tls(listener);
    if needs_certificate {
        for reference in &listener.certificates {
            match read_certificate(snapshot, gateway, reference) {
                Ok(pair) => certificates.push(pair),
                Err(error) => resolved = Err(error),
            }
        }
        if listener.certificates.is_empty() && resolved.is_ok() {
            resolved = Err(("InvalidCertificateRef", "there is no certificate".to_owned()));
        }
    }
    let has_certificate = !needs_certificate || !certificates.is_empty();
    let is_served = accepted.is_ok() && conflict.is_none() && has_certificate;
    let programmed =
        if is_served { Ok(()) } else { Err(("Invalid", "the listener is not served".to_owned())) };
    let mut conditions = vec![
        Condition::new("Accepted", accepted),
        Condition::new("Programmed", programmed),
        Condition::new("ResolvedRefs", resolved),
    ];
    conditions.push(match conflict {
        Some(reason) => Condition {
            kind: "Conflicted",
            is_true: true,
            reason,
            message: "an older listener has the port and the host".to_owned(),
        },
        None => {
            Condition { kind: "Conflicted", is_true: false, reason: "NoConflicts", message: String::new() }
        }
    });
    ListenerState { kinds, attached: 0, conditions, is_served, certificates }
}

/// Protocol and mode of TLS, which all listeners of a port share.
fn protocol_family(listener: &Listener) -> (&str, bool) {
    (&listener.protocol, listener.protocol == "TLS" && listener.passthrough)
}

/// Returns true if TLS is decrypted here.
pub(super) fn ends_tls(listener: &Listener) -> bool {
    listener.protocol == "HTTPS" || (listener.protocol == "TLS" && !listener.passthrough)
}

/// Port with its transport: the same number over TCP and UDP is no conflict.
pub(super) fn socket_of(listener: &Listener) -> ExtraPort {
    ExtraPort { number: listener.port, is_datagram: listener.protocol == "UDP" }
}

fn accept(
    options: &SiteOptions,
    listener: &Listener,
    known_names: &[&str],
    taken: &[&Listener],
    services: &[ExtraPort],
) -> Result<(), Refusal> {
    if known_names.is_empty() {
        let text = format!("protocol \"{}\" is not supported in this mode", listener.protocol);
        return Err(("UnsupportedProtocol", text));
    }
    if !(listener.hostname.is_empty() || is_hostname(&listener.hostname)) {
        return Err(("UnsupportedValue", "the host is invalid".to_owned()));
    }
    if listener.wants_client_certificates && ends_tls(listener) {
        let text =
            "certificates of clients are not checked for a Gateway: use an Ingress with auth-tls-secret";
        return Err(("UnsupportedValue", text.to_owned()));
    }
    let own = [&options.http, &options.https, &options.status].map(|address| port_of(address));
    let port = socket_of(listener);
    let is_mapped = matches!(listener.port, 80 | 443);
    let is_own = own.contains(&Some(listener.port)) && !is_mapped;
    let is_other = matches!(
        (listener.port, &*listener.protocol),
        (80, "HTTPS" | "TLS" | "TCP") | (443, "HTTP" | "TLS" | "TCP")
    );
    let is_taken = !port.is_datagram && (is_own || is_other || (listener.port < 1024 && !is_mapped));
    if listener.port == 0 || is_taken {
        let text = format!("port {} is not available for {}", listener.port, listener.protocol);
        return Err(("PortUnavailable", text));
    }
    if let Some(reason) = options.unavailable.get(&port) {
        return Err(("PortUnavailable", format!("{port} cannot be listened on: {reason}")));
    }
    if services.contains(&port) {
        return Err(("PortUnavailable", format!("{port} is that of a service in a map of the options")));
    }
    if taken
        .iter()
        .any(|other| socket_of(other) == port && protocol_family(other) != protocol_family(listener))
    {
        return Err(("PortUnavailable", "an older listener has the port".to_owned()));
    }
    Ok(())
}

/// Port of an address or a port.
fn port_of(address: &str) -> Option<u16> {
    address.rsplit(':').next()?.parse().ok()
}

fn read_certificate(snapshot: &Snapshot, gateway: &Gateway, reference: &Reference) -> Result<Pair, Refusal> {
    if !reference.group.is_empty() || reference.kind != "Secret" {
        return Err(("InvalidCertificateRef", format!("\"{}\" is no Secret", reference.name)));
    }
    let namespace = &gateway.metadata.name.namespace;
    if !is_granted(snapshot, &ReferenceSource { group: GROUP, kind: "Gateway", namespace }, reference) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows secret \"{}\"", reference.name)));
    }
    let secret = snapshot.secrets.get(&reference.name).ok_or_else(|| "it is missing".to_owned());
    match secret.and_then(|secret| certificate::of_secret(secret)) {
        Ok((chain, key)) => Ok((chain.clone(), key.clone())),
        Err(error) => Err(("InvalidCertificateRef", format!("secret \"{}\": {error}", reference.name))),
    }
}

/// Object that refers to another one.
pub(super) struct ReferenceSource<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
}

/// Returns true if an object may refer to another one.
pub(super) fn is_granted(snapshot: &Snapshot, from: &ReferenceSource<'_>, to: &Reference) -> bool {
    let ReferenceSource { group, kind, namespace } = *from;
    namespace == to.name.namespace
        || snapshot.grants.values().any(|grant| {
            grant.metadata.name.namespace == to.name.namespace
                && grant.from.iter().any(|(g, k, n)| g == group && k == kind && n == namespace)
                && grant.to.iter().any(|(g, k, name)| {
                    *g == to.group && *k == to.kind && name.as_ref().is_none_or(|name| *name == to.name.name)
                })
        })
}

/// Service of a backend, or the reason why it has none.
pub(super) fn check_backend(
    snapshot: &Snapshot,
    route: &Route,
    backend: &RouteBackend,
) -> Result<(), Refusal> {
    let service = &backend.service;
    if !service.group.is_empty() || service.kind != "Service" {
        return Err(("InvalidKind", format!("backend \"{}\" is no Service", service.name)));
    }
    let namespace = &*route.metadata.name.namespace;
    let from = ReferenceSource { group: GROUP, kind: route.kind, namespace };
    if !is_granted(snapshot, &from, service) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows service \"{}\"", service.name)));
    }
    let is_datagram = route.kind == "UDPRoute";
    let found_service = snapshot.services.get(&service.name);
    let has_port = |number: u16| {
        found_service.is_some_and(|service| {
            service.external_name.is_some()
                || service.ports.iter().any(|port| port.number == number && port.is_datagram == is_datagram)
        })
    };
    match (found_service, backend.port) {
        (Some(_), Some(number)) if has_port(number) => Ok(()),
        (Some(_), _) => Err(("BackendNotFound", format!("service \"{}\" has no such port", service.name))),
        (None, _) => Err(("BackendNotFound", format!("service \"{}\" is missing", service.name))),
    }
}

impl Attachment {
    fn add_route(&mut self, snapshot: &Snapshot, route: &Route) {
        let mut parents = Vec::new();
        for parent in &route.parents {
            let is_gateway = parent.gateway.group == GROUP && parent.gateway.kind == "Gateway";
            let named = |state: &GatewayState| state.gateway.metadata.name == parent.gateway.name;
            let Some(number) = self.gateways.iter().position(named).filter(|_| is_gateway) else { continue };
            parents.push(self.parent(snapshot, route, parent, number));
        }
        if !parents.is_empty() {
            self.routes.push(RouteState { route: route.clone(), parents });
        }
    }

    fn parent(&mut self, snapshot: &Snapshot, route: &Route, parent: &Parent, number: usize) -> ParentState {
        let mut state = ParentState { parent: parent.clone(), ..ParentState::default() };
        let accepted = match self.gateways.get(number) {
            Some(gateway) => listeners_of(snapshot, route, parent, gateway),
            None => Err(("NoMatchingParent", String::new())),
        };
        let accepted = accepted.and_then(|listeners| {
            // A rule that is not known in part is answered with 500.
            let broken: Vec<_> = route.rules.iter().flat_map(|rule| &rule.unsupported).collect();
            let is_whole = !route.rules.is_empty() || route.is_stream();
            state.listeners = listeners.into_iter().map(|(index, hosts)| (number, index, hosts)).collect();
            match broken.first() {
                Some(first) if route.rules.iter().all(|rule| !rule.unsupported.is_empty()) || !is_whole => {
                    Err(("UnsupportedValue", format!("not supported: {first}")))
                }
                Some(first) => {
                    state.conditions.push(Condition {
                        kind: "PartiallyInvalid",
                        is_true: true,
                        reason: "UnsupportedValue",
                        message: format!("rules that are answered with 500, not supported: {first}"),
                    });
                    Ok(())
                }
                None => Ok(()),
            }
        });
        for (_, index, _) in &state.listeners {
            if let Some(listener) =
                self.gateways.get_mut(number).and_then(|state| state.listeners.get_mut(*index))
            {
                listener.attached += 1;
            }
        }
        let backends = route.rules.iter().flat_map(|rule| {
            let mirrors = rule.filters.iter().filter_map(|filter| match filter {
                crate::cluster::gateway::Filter::Mirror { backend, .. } => Some(backend),
                _ => None,
            });
            rule.backends.iter().chain(mirrors)
        });
        let resolved = backends
            .map(|backend| check_backend(snapshot, route, backend))
            .find(Result::is_err)
            .unwrap_or(Ok(()));
        state.conditions.push(Condition::new("Accepted", accepted));
        state.conditions.push(Condition::new("ResolvedRefs", resolved));
        state.conditions.sort_by_key(|condition| condition.kind);
        state
    }
}

/// Numbers of the listeners that a route is attached to, with the hosts.
fn listeners_of(
    snapshot: &Snapshot,
    route: &Route,
    parent: &Parent,
    state: &GatewayState,
) -> Result<ListenerHosts, Refusal> {
    let mut failure = ("NoMatchingParent", "no listener has this name, port and protocol".to_owned());
    let mut results = Vec::new();
    let own = &state.gateway.metadata.name.namespace;
    let namespace = &route.metadata.name.namespace;
    let labels = snapshot
        .namespaces
        .get(&ObjectName::new("", &**namespace))
        .map(|found_namespace| &found_namespace.labels);
    for (index, (listener, state)) in state.gateway.listeners.iter().zip(&state.listeners).enumerate() {
        let is_meant = parent.section.as_ref().is_none_or(|name| *name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port);
        if !is_meant {
            continue;
        }
        let allows = |namespaces: &Namespaces| namespaces.allow(own, namespace, labels);
        if !state.kinds.contains(&route.kind) || !allows(&listener.namespaces) {
            failure = ("NotAllowedByListeners", "no listener allows the route".to_owned());
            continue;
        }
        let hosts = intersection(&listener.hostname, &route.hostnames);
        if hosts.is_empty() {
            if failure.0 == "NoMatchingParent" {
                failure = ("NoMatchingListenerHostname", "no listener has one of the hosts".to_owned());
            }
            continue;
        }
        if state.is_served {
            results.push((index, hosts));
        } else if failure.0 == "NoMatchingParent" {
            failure = ("NoMatchingParent", "the listener is not served".to_owned());
        }
    }
    if results.is_empty() { Err(failure) } else { Ok(results) }
}

/// Hosts that both have; the empty one stands for all.
fn intersection(listener: &str, hosts: &[String]) -> Vec<String> {
    if hosts.is_empty() {
        return vec![listener.to_owned()];
    }
    let mut both = Vec::new();
    for host in hosts.iter().filter(|host| is_hostname(host)) {
        if listener.is_empty() || covers(listener, host) {
            both.push(host.clone());
        } else if covers(host, listener) {
            both.push(listener.to_owned());
        }
    }
    both.sort();
    both.dedup();
    both
}

/// Returns true if all names of `host` are names of `pattern`.
pub(super) fn covers(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => {
            let name = host.strip_prefix('*').unwrap_or(host);
            name.ends_with(suffix) && (host.starts_with('*') || name.len() > suffix.len())
        }
        None => pattern.is_empty() || pattern == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_intersect() {
        for (listener, hosts, expected) in [
            ("", &[][..], &[""][..]),
            ("a.example", &[], &["a.example"]),
            ("", &["b.example"], &["b.example"]),
            ("*.example", &["a.example", "b.a.example", "example", "a.other"], &["a.example", "b.a.example"]),
            ("a.example", &["*.example"], &["a.example"]),
            ("*.a.example", &["*.example"], &["*.a.example"]),
            ("*.example", &["*.a.example"], &["*.a.example"]),
            ("a.example", &["b.example"], &[]),
            ("", &["a b"], &[]),
        ] {
            let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
            assert_eq!(intersection(listener, &hosts), expected, "{listener} {hosts:?}");
        }
    }
}
