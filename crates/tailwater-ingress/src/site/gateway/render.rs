//! Servers of all hosts of Gateway objects.

use std::collections::BTreeSet;

use super::attach::{Attachment, attach, socket_of};
use super::hosts::{GatewayHost, hosts};
use super::predicate::{Predicates, path_regex};
use super::rule::{self, RuleListener};
use crate::cluster::gateway::PathMatch;
use crate::cluster::object::ObjectName;
use crate::quote;
use crate::site::build::Builder;
use crate::site::host::OWN_PATHS;
use crate::site::passthrough;
use crate::site::ports::ExtraPort;

/// Lines of a configuration, each with the object that it belongs to.
#[derive(Debug, Default)]
pub(in crate::site) struct Rendered {
    /// Lines of the block `http` before the servers.
    pub(in crate::site) http: Vec<(ObjectName, String)>,
    /// Servers.
    pub(in crate::site) servers: Vec<(ObjectName, String)>,
    /// Blocks of `stream`.
    pub(in crate::site) stream: Vec<(ObjectName, String)>,
    /// Ports, as listeners have them, whose default server is one of these.
    pub(in crate::site) defaults: BTreeSet<u16>,
}

/// Makes the servers. Certificates are added to the files, backends to the groups.
pub(in crate::site) fn render(builder: &mut Builder<'_>, default: &(String, String)) -> Rendered {
    let attachment = attach(builder.snapshot, builder.options);
    report_ports(builder, &attachment);
    let mut rendered = Rendered::default();
    let mut predicates = Predicates::default();
    let hosts = hosts(&attachment);
    // A host with paths of an Ingress belongs to the Ingress, so that routes can be made before those objects are removed.
    let is_taken = |builder: &Builder<'_>, port: u16, name: &str| {
        matches!(port, 80 | 443) && builder.hosts.get(name).is_some_and(|host| !host.locations.is_empty())
    };
    let ports: BTreeSet<u16> = hosts.keys().map(|(port, _)| *port).collect();
    for port in ports {
        let is_tls = hosts.iter().any(|((other, _), host)| *other == port && host.is_tls);
        let has_catch_all = hosts.contains_key(&(port, String::new()));
        // On other ports the controller has no server of its own.
        if !has_catch_all && !matches!(port, 80 | 443) {
            let parameters = if is_tls { " ssl default_server" } else { " default_server" };
            let mut lines = vec!["server {".to_owned()];
            lines.extend(listen(builder, port, parameters));
            lines.push("server_name _;".to_owned());
            if is_tls {
                lines.push(format!("ssl_certificate {};", default.0));
                lines.push(format!("ssl_certificate_key {};", default.1));
            }
            lines.extend(["return 404;".to_owned(), "}".to_owned()]);
            let owner =
                hosts.iter().find(|((other, _), _)| *other == port).map(|(_, host)| host.gateway.clone());
            let owner = owner.unwrap_or_default();
            rendered.servers.extend(lines.into_iter().map(|line| (owner.clone(), line)));
        }
    }
    for (number, ((port, name), host)) in hosts.iter().enumerate() {
        if is_taken(builder, *port, name) {
            let owners: BTreeSet<_> = host.entries.iter().map(|entry| entry.route.owner()).collect();
            for owner in owners {
                builder.problem(&owner, format!("host \"{name}\" on port {port} belongs to Ingress objects"));
            }
            continue;
        }
        if name.is_empty() && matches!(*port, 80 | 443) {
            rendered.defaults.insert(*port);
        }
        write_host(builder, &mut rendered, &mut predicates, number + 1, *port, name, host);
    }
    rendered.http.splice(0..0, predicates.lines);
    super::stream::render(builder, &attachment, &mut rendered);
    rendered
}

/// Notes the ports that are listened on, and reports those that cannot be.
fn report_ports(builder: &mut Builder<'_>, attachment: &Attachment) {
    for state in &attachment.gateways {
        for (listener, listener_state) in state.gateway.listeners.iter().zip(&state.listeners) {
            let port = socket_of(listener);
            if let Some(reason) = builder.options.unavailable.get(&port) {
                let text = format!("listener \"{}\" is not served: {port}: {reason}", listener.name);
                builder.problem(&state.gateway.owner(), text);
            } else if listener_state.is_served && (port.is_datagram || !matches!(listener.port, 80 | 443)) {
                builder.listens.insert(port);
            }
        }
    }
}

/// Lines that listen on the port of a listener: 80 and 443 are the ports of the options, others are themselves.
pub(super) fn listen(builder: &Builder<'_>, port: u16, parameters: &str) -> Vec<String> {
    let options = builder.options;
    let address = match port {
        80 => options.http.clone(),
        443 => match passthrough::https_socket(builder) {
            // The server before it has read the header of the PROXY protocol.
            Some(socket) => {
                return vec![format!("listen {socket}{};", parameters.replace(" proxy_protocol", ""))];
            }
            None => options.https.clone(),
        },
        port => return ExtraPort::tcp(port).listen(options, parameters),
    };
    let mut lines = vec![format!("listen {address}{parameters};")];
    if options.ipv6 && address.bytes().all(|byte| byte.is_ascii_digit()) {
        lines.push(format!("listen [::]:{address}{parameters};"));
    }
    lines
}

fn write_host(
    builder: &mut Builder<'_>,
    rendered: &mut Rendered,
    predicates: &mut Predicates,
    number: usize,
    port: u16,
    name: &str,
    host: &GatewayHost<'_>,
) {
    // The owner of lines of the Gateway is never an Ingress or a route.
    let gateway = ObjectName::new(&*host.gateway.namespace, format!("Gateway/{}", host.gateway.name));
    let globals = builder.options.globals.clone();
    let mut lines: Vec<(ObjectName, String)> = Vec::new();
    let mut add = |owner: &ObjectName, line: String| lines.push((owner.clone(), line));
    add(&gateway, "server {".to_owned());
    let mut parameters = if host.is_tls { " ssl".to_owned() } else { String::new() };
    if name.is_empty() {
        parameters += " default_server";
    }
    if globals.proxy_protocol {
        parameters += " proxy_protocol";
    }
    listen(builder, port, &parameters).into_iter().for_each(|line| add(&gateway, line));
    add(&gateway, format!("http2 {};", if globals.http2 { "on" } else { "off" }));
    // Hosts are names of DNS; a wildcard stands for any number of labels, as in the API.
    add(&gateway, format!("server_name {};", if name.is_empty() { "_" } else { name }));
    for (chain, key) in host.certificates {
        let chain = builder.files.add("crt", chain.clone());
        let key = builder.files.add("key", key.clone());
        add(&gateway, format!("ssl_certificate {chain};"));
        add(&gateway, format!("ssl_certificate_key {key};"));
    }
    globals.server.iter().for_each(|line| add(&gateway, line.clone()));
    let rule_listener = RuleListener { port, is_tls: host.is_tls };
    let mut has_root = false;
    for (index, entry) in host.entries.iter().enumerate() {
        let owner = entry.route.owner();
        let heads = if entry.is_predicate {
            match predicates.of_match(entry.route_match, &owner) {
                Ok(variable) => vec![variable],
                Err(error) => {
                    builder.problem(&owner, format!("a match is not supported and has no effect: {error}"));
                    continue;
                }
            }
        } else {
            heads(&entry.route_match.path, host)
        };
        has_root |= heads.iter().any(|head| head == "\"/\"");
        let id = format!("{number}_{}", index + 1);
        let rule_lines = rule::write(builder, entry, rule_listener, &id);
        let (location, http, server) = match rule_lines {
            Ok(rule_lines) => (rule_lines.location, rule_lines.http, rule_lines.server),
            Err(error) => (rule::refused(builder, &owner, &error), Vec::new(), Vec::new()),
        };
        rendered.http.extend(http.into_iter().map(|line| (owner.clone(), line)));
        server.into_iter().for_each(|line| add(&owner, line));
        let name = &entry.route.metadata.name;
        for head in heads {
            add(&owner, format!("# {} {name}, rule {}", entry.route.kind, entry.number + 1));
            add(&owner, format!("location {head} {{"));
            location.iter().for_each(|line| add(&owner, line.clone()));
            add(&owner, "}".to_owned());
        }
    }
    add(&gateway, format!("location ^~ {OWN_PATHS}/ {{ return 404; }}"));
    if !has_root {
        add(&gateway, "location / { return 404; }".to_owned());
    }
    add(&gateway, "}".to_owned());
    rendered.servers.append(&mut lines);
}

/// Words after `location` for a path, none if it is not valid or belongs to the controller.
fn heads(path: &PathMatch, host: &GatewayHost<'_>) -> Vec<String> {
    let (PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Regex(text)) = path;
    if text.starts_with(OWN_PATHS) {
        return Vec::new();
    }
    let heads = match path {
        PathMatch::Exact(path) => vec![("= ", path.clone())],
        PathMatch::Regex(_) => vec![("~ ", path_regex(path))],
        PathMatch::Prefix(path) if path.is_empty() => vec![("", "/".to_owned())],
        PathMatch::Prefix(path) => {
            let is_exact = |other: &PathMatch| matches!(other, PathMatch::Exact(other) if other == path);
            let has_exact = host.entries.iter().any(|entry| is_exact(&entry.route_match.path));
            let exact = (!has_exact).then(|| ("= ", path.clone()));
            exact.into_iter().chain([("", format!("{path}/"))]).collect()
        }
    };
    let words = heads.into_iter().filter_map(|(begin, text)| Some((begin, quote::verbatim(&text)?)));
    words.map(|(begin, word)| format!("{begin}{word}")).collect()
}
