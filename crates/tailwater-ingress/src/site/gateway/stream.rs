//! Connections and datagrams whose content is not read: TLSRoute by the name in the client hello, TCPRoute and UDPRoute by the port.

use std::collections::BTreeMap;

use super::attach::{Attachment, ListenerState, check_backend, ends_tls, socket_of};
use super::render::{Rendered, listen};
use crate::cluster::gateway::{Listener, Route, RouteBackend};
use crate::cluster::object::{Backend, BackendPort, ObjectName};
use crate::site::build::Builder;
use crate::site::ports::ExtraPort;

/// Key of the choice between backends: it differs between the sessions of a client, and between those of a moment.
const SPLIT_KEY: &str = "$remote_addr:$remote_port:$connection:$msec";

/// Routes of one port, by host. The empty host stands for all.
struct StreamPort<'a> {
    listener: &'a Listener,
    hosts: BTreeMap<String, StreamHost<'a>>,
}

/// Host of a port, which belongs to the oldest of its routes.
struct StreamHost<'a> {
    state: &'a ListenerState,
    owner: ObjectName,
    target: String,
}

/// Makes the blocks of `stream` for all listeners of TLSRoute, TCPRoute and UDPRoute.
pub(super) fn render(builder: &mut Builder<'_>, attachment: &Attachment, rendered: &mut Rendered) {
    for (port, stream_port) in &ports(builder, attachment, rendered) {
        match &*stream_port.listener.protocol {
            "TLS" if ends_tls(stream_port.listener) => write_ended(builder, rendered, *port, stream_port),
            "TLS" => write_passed(builder, rendered, *port, stream_port),
            _ => write_plain(builder, rendered, *port, stream_port),
        }
    }
}

/// Ports with their hosts. Listeners without a route are not listened on.
fn ports<'a>(
    builder: &mut Builder<'_>,
    attachment: &'a Attachment,
    rendered: &mut Rendered,
) -> BTreeMap<ExtraPort, StreamPort<'a>> {
    let mut ports: BTreeMap<ExtraPort, StreamPort<'_>> = BTreeMap::new();
    for (index, state) in attachment.routes.iter().enumerate().filter(|(_, state)| state.route.is_stream()) {
        let owner = state.route.owner();
        let Some(target) = target(builder, rendered, &state.route, index + 1) else { continue };
        for (number, index, names) in state.parents.iter().flat_map(|parent| &parent.listeners) {
            let gateway = attachment.gateways.get(*number);
            let pair = gateway
                .and_then(|state| state.gateway.listeners.get(*index).zip(state.listeners.get(*index)));
            let Some((listener, listener_state)) = pair else { continue };
            let port = ports
                .entry(socket_of(listener))
                .or_insert_with(|| StreamPort { listener, hosts: BTreeMap::new() });
            for name in names {
                let host = port.hosts.entry(name.clone()).or_insert_with(|| StreamHost {
                    state: listener_state,
                    owner: owner.clone(),
                    target: target.clone(),
                });
                if host.owner != owner {
                    let text = format!("listener \"{}\" belongs to an older route", listener.name);
                    builder.problem(&owner, text);
                }
            }
        }
    }
    ports
}

/// Group of a route, or a variable with one of several by their weights. `None` if no backend can be reached.
fn target(
    builder: &mut Builder<'_>,
    rendered: &mut Rendered,
    route: &Route,
    number: usize,
) -> Option<String> {
    let owner = route.owner();
    if route.rules.len() > 1 {
        builder.problem(&owner, "only the first rule has an effect".to_owned());
    }
    let mut groups: Vec<(Option<String>, u64)> = Vec::new();
    for backend in route.rules.iter().take(1).flat_map(|rule| &rule.backends) {
        if backend.weight > 0 {
            groups.push((group(builder, route, backend), u64::from(backend.weight)));
        }
    }
    if groups.len() < 2 {
        return groups.pop()?.0;
    }
    groups.iter().find(|(group, _)| group.is_some())?;
    let total: u64 = groups.iter().map(|(_, weight)| weight).sum();
    let variable = format!("$gateway_stream_{number}");
    let mut lines = vec![format!("split_clients {SPLIT_KEY} {variable} {{")];
    let (mut sum, mut before) = (0, 0);
    for (index, (group, weight)) in groups.iter().enumerate() {
        // A connection without a group has no upstream server, and is closed.
        let group = group.as_deref().unwrap_or("\"\"");
        sum += weight;
        // Sums are rounded, not parts, so that no error adds up.
        let end = sum * 10_000 / total;
        let share = end - before;
        before = end;
        if index + 1 == groups.len() {
            lines.push(format!("* {group};"));
        } else if share > 0 {
            lines.push(format!("{}.{:02}% {group};", share / 100, share % 100));
        }
    }
    lines.push("}".to_owned());
    rendered.stream.extend(lines.into_iter().map(|line| (owner.clone(), line)));
    Some(variable)
}

/// Group of a backend.
fn group(builder: &mut Builder<'_>, route: &Route, backend: &RouteBackend) -> Option<String> {
    let owner = route.owner();
    let is_datagram = route.kind == "UDPRoute";
    let name = &backend.service.name;
    let port = backend.port.map_or(BackendPort::First, BackendPort::Number);
    let service = Backend { service: name.name.clone(), port };
    let result = check_backend(builder.snapshot, route, backend).map_err(|(_, error)| error);
    match result.and_then(|()| builder.groups.of_stream(&name.namespace, &service, is_datagram, &owner)) {
        Ok(group) => Some(group),
        Err(error) => {
            builder.problem(&owner, format!("{error}: connections are closed"));
            None
        }
    }
}

/// Connections with TLS that is not decrypted.
fn write_passed(
    builder: &Builder<'_>,
    rendered: &mut Rendered,
    port: ExtraPort,
    stream_port: &StreamPort<'_>,
) {
    let variable = format!("$gateway_tls_{}", port.number);
    let mut add = |owner: &ObjectName, line: String| rendered.stream.push((owner.clone(), line));
    let nobody = ObjectName::default();
    add(&nobody, format!("map $ssl_preread_server_name {variable} {{"));
    add(&nobody, "hostnames;".to_owned());
    for (name, host) in &stream_port.hosts {
        // The keys are DNS names. A connection without a name has no route, unless there is one for all names.
        let name = if name.is_empty() { "default" } else { name };
        add(&host.owner, format!("{name} {};", host.target));
    }
    add(&nobody, "}".to_owned());
    add(&nobody, "server {".to_owned());
    listen(builder, port.number, "").into_iter().for_each(|line| add(&nobody, line));
    add(&nobody, "ssl_preread on;".to_owned());
    add(&nobody, format!("proxy_pass {variable};"));
    add(&nobody, "}".to_owned());
}

/// Connections with TLS that is decrypted: a server for each host, and one that refuses all other names.
fn write_ended(
    builder: &mut Builder<'_>,
    rendered: &mut Rendered,
    port: ExtraPort,
    stream_port: &StreamPort<'_>,
) {
    let mut add = |owner: &ObjectName, line: String| rendered.stream.push((owner.clone(), line));
    let nobody = ObjectName::default();
    if !stream_port.hosts.contains_key("") {
        add(&nobody, "server {".to_owned());
        listen(builder, port.number, " ssl default_server").into_iter().for_each(|line| add(&nobody, line));
        add(&nobody, "ssl_reject_handshake on;".to_owned());
        add(&nobody, "return \"\";".to_owned());
        add(&nobody, "}".to_owned());
    }
    for (name, host) in &stream_port.hosts {
        let owner = &host.owner;
        let parameters = if name.is_empty() { " ssl default_server" } else { " ssl" };
        add(owner, "server {".to_owned());
        listen(builder, port.number, parameters).into_iter().for_each(|line| add(owner, line));
        if !name.is_empty() {
            add(owner, format!("server_name {name};"));
        }
        for (chain, key) in &host.state.certificates {
            add(owner, format!("ssl_certificate {};", builder.files.add("crt", chain.clone())));
            add(owner, format!("ssl_certificate_key {};", builder.files.add("key", key.clone())));
        }
        add(owner, format!("proxy_pass {};", host.target));
        add(owner, "}".to_owned());
    }
}

/// Connections over TCP, and datagrams.
fn write_plain(
    builder: &Builder<'_>,
    rendered: &mut Rendered,
    port: ExtraPort,
    stream_port: &StreamPort<'_>,
) {
    for host in stream_port.hosts.values() {
        let mut add = |line: String| rendered.stream.push((host.owner.clone(), line));
        add("server {".to_owned());
        port.listen(builder.options, "").into_iter().for_each(&mut add);
        add(format!("proxy_pass {};", host.target));
        add("}".to_owned());
    }
}
