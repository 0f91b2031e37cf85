//! The lines of one rule: filters, and the backends that answer.

use super::attach::check_backend;
use super::hosts::Entry;
use crate::cluster::gateway::{FieldChanges, Filter, NewPath, PathMatch, RouteBackend, is_hostname};
use crate::cluster::object::{Backend, BackendPort, ObjectName};
use crate::quote;
use crate::site::build::Builder;
use crate::site::host::OWN_PATHS;
use crate::site::location::{FIELDS, GRPC};

/// Longest time, for rules without a limit.
const TIMEOUT_MAX: u64 = 86_400_000;

/// Lines of rules by the places that they belong to.
#[derive(Debug, Default)]
pub(super) struct RuleLines {
    /// Lines of the location.
    pub(super) location: Vec<String>,
    /// Lines of the block `http`.
    pub(super) http: Vec<String>,
    /// Lines of the server.
    pub(super) server: Vec<String>,
}

/// Listener as seen by a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleListener {
    /// Port.
    pub(super) port: u16,
    /// TLS is decrypted.
    pub(super) is_tls: bool,
}

/// Destination of a part of the requests.
enum Destination {
    Group(String),
    Status(u16),
}

/// Writes the lines of a rule. `id` makes names unique.
///
/// # Errors
/// A part of it cannot be expressed.
pub(super) fn write(
    builder: &mut Builder<'_>,
    entry: &Entry<'_>,
    rule_listener: RuleListener,
    id: &str,
) -> Result<RuleLines, String> {
    let mut rule_lines = RuleLines::default();
    if let Some(part) = entry.rule.unsupported.first() {
        return Err(part.clone());
    }
    let is_grpc = entry.route.kind == "GRPCRoute";
    let family = if is_grpc { "grpc" } else { "proxy" };
    let mut own_fields = Vec::new();
    let mut host = None;
    let mut mirrors = 0;
    for filter in &entry.rule.filters {
        match filter {
            Filter::Redirect { scheme, hostname, port, path, status } => {
                let url = redirect_base(scheme.as_deref(), hostname.as_deref(), *port, rule_listener)?;
                rule_lines.location.extend(redirect(entry, *status, &url, path.as_ref())?);
                return Ok(rule_lines);
            }
            Filter::Request(changes) => {
                for (name, value) in request_fields(changes, id, &mut rule_lines.http)? {
                    own_fields.push((name, value));
                }
            }
            Filter::Response(changes) => rule_lines.location.extend(response_fields(changes)?),
            Filter::Rewrite { hostname, path } => {
                if let Some(name) = hostname {
                    host = Some(name.clone());
                }
                rule_lines.location.extend(path.as_ref().map(|path| rewrite(entry, path)).transpose()?);
            }
            Filter::Mirror { share: 0, .. } => {}
            Filter::Mirror { backend, share } => {
                mirrors += 1;
                if let Destination::Group(group) = destination(builder, entry, backend) {
                    let path = format!("{OWN_PATHS}/mirror/{id}-{mirrors}");
                    rule_lines.location.push(format!("mirror {path};"));
                    rule_lines.server.extend([format!("location = {path} {{"), "internal;".to_owned()]);
                    if *share < 10_000 {
                        let variable = format!("$gateway_mirror_{id}_{mirrors}");
                        // The text before the number makes the choice independent of that between backends.
                        let line = format!("split_clients \"{mirrors} $request_id\" {variable}");
                        let percent = format!("{}.{:02}%", share / 100, share % 100);
                        rule_lines.http.push(format!("{line} {{ {percent} \"1\"; * \"\"; }}"));
                        rule_lines.server.push(format!("if ({variable} = \"\") {{ return 204; }}"));
                    }
                    rule_lines.server.extend([
                        "proxy_set_header Host $ingress_host;".to_owned(),
                        format!("proxy_pass http://{group}$request_uri;"),
                        "}".to_owned(),
                    ]);
                }
            }
        }
    }
    let is_h2c = !is_grpc && speaks_h2c(builder, entry)?;
    let target = choose(builder, entry, id, &mut rule_lines);
    let target = match target {
        Destination::Status(status) => {
            // `return` goes first, because directives behind a rewrite do not run.
            rule_lines.location.insert(0, format!("return {status};"));
            return Ok(rule_lines);
        }
        Destination::Group(target) => target,
    };
    for line in &builder.options.globals.location {
        match (line.strip_prefix("proxy_"), is_grpc) {
            (Some(rest), true) => {
                if GRPC.contains(&rest.split(' ').next().unwrap_or_default()) {
                    rule_lines.location.push(format!("grpc_{rest}"));
                }
            }
            _ => rule_lines.location.push(line.clone()),
        }
    }
    if let Some(host) = host {
        if !is_hostname(&host) || host.starts_with('*') {
            return Err(format!("host \"{host}\""));
        }
        own_fields.push(("Host".to_owned(), host));
    }
    if let Some(time) = entry.rule.request_timeout {
        rule_lines.location.retain(|line| !line.starts_with("request_timeout "));
        rule_lines.location.push(format!("request_timeout {time}ms;"));
    }
    if let Some(time) = entry.rule.backend_timeout {
        let time = if time == 0 { TIMEOUT_MAX } else { time };
        let inherited = [format!("{family}_read_timeout "), format!("{family}_next_upstream_timeout ")];
        rule_lines.location.retain(|line| !inherited.iter().any(|begin| line.starts_with(begin)));
        rule_lines.location.extend(inherited.map(|begin| format!("{begin}{time}ms;")));
    }
    for (name, value) in FIELDS {
        let is_replaced = own_fields.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        // A connection of HTTP/2 knows neither.
        let is_hop = (is_grpc || is_h2c) && matches!(*name, "Upgrade" | "Connection");
        if !is_replaced && !is_hop {
            rule_lines.location.push(format!("{family}_set_header {name} {value};"));
        }
    }
    for (name, value) in own_fields {
        rule_lines.location.push(format!("{family}_set_header {name} {value};"));
    }
    if is_h2c {
        rule_lines.location.retain(|line| !line.starts_with("proxy_http_version "));
        rule_lines.location.push("proxy_http_version 2;".to_owned());
    }
    let scheme = if is_grpc { "grpc" } else { "http" };
    rule_lines.location.push(format!("{family}_pass {scheme}://{target};"));
    Ok(rule_lines)
}

/// Returns true if the services of all backends name HTTP/2 without TLS as their protocol.
///
/// # Errors
/// Some of them do, and others do not.
fn speaks_h2c(builder: &Builder<'_>, entry: &Entry<'_>) -> Result<bool, String> {
    let mut answers = entry.rule.backends.iter().filter(|backend| backend.weight > 0).filter_map(|backend| {
        let service = builder.snapshot.services.get(&backend.service.name)?;
        let port =
            service.ports.iter().find(|port| Some(port.number) == backend.port && !port.is_datagram)?;
        Some(port.is_h2c)
    });
    let first = answers.next().unwrap_or(false);
    if answers.all(|answer| answer == first) {
        Ok(first)
    } else {
        Err("backends with appProtocol kubernetes.io/h2c beside others".to_owned())
    }
}

/// Group of a backend, or the status with which its share is answered.
fn destination(builder: &mut Builder<'_>, entry: &Entry<'_>, backend: &RouteBackend) -> Destination {
    let owner = entry.route.owner();
    if let Err((_, error)) = check_backend(builder.snapshot, entry.route, backend) {
        builder.problem(&owner, format!("{error}: its requests are answered with 500"));
        return Destination::Status(500);
    }
    let name = &backend.service.name;
    let port = backend.port.map_or(BackendPort::First, BackendPort::Number);
    let service = Backend { service: name.name.clone(), port };
    match builder.groups.of_backend(&name.namespace, &service, &[], false, &owner) {
        Ok(group) => Destination::Group(group),
        Err(error) => {
            builder.problem(&owner, format!("{error}: its requests are answered with 503"));
            Destination::Status(503)
        }
    }
}

/// Chooses between the backends of a rule by their weights.
fn choose(builder: &mut Builder<'_>, entry: &Entry<'_>, id: &str, rule_lines: &mut RuleLines) -> Destination {
    let backends: Vec<_> = entry.rule.backends.iter().filter(|backend| backend.weight > 0).collect();
    let total: u64 = backends.iter().map(|backend| u64::from(backend.weight)).sum();
    let mut parts = Vec::new();
    for backend in &backends {
        parts.push((destination(builder, entry, backend), u64::from(backend.weight)));
    }
    if parts.len() < 2 {
        return parts.pop().map_or(Destination::Status(500), |(destination, _)| destination);
    }
    let variable = format!("$gateway_backend_{id}");
    let mut line = format!("split_clients $request_id {variable} {{ ");
    let mut sum = 0;
    let mut before = 0;
    let mut statuses = Vec::new();
    let last = parts.len() - 1;
    for (index, (destination, weight)) in parts.iter().enumerate() {
        let value = match destination {
            Destination::Group(group) => group.clone(),
            Destination::Status(status) => {
                statuses.push(*status);
                format!("={status}")
            }
        };
        sum += weight;
        // Sums are rounded, not parts, so that no error adds up.
        let end = sum * 10_000 / total;
        let share = end - before;
        before = end;
        if index == last {
            line += &format!("* \"{value}\"; }}");
        } else if share > 0 {
            line += &format!("{}.{:02}% \"{value}\"; ", share / 100, share % 100);
        }
    }
    rule_lines.http.push(line);
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        // `return` goes first, because directives behind a rewrite do not run.
        let line = format!("if ({variable} = \"={status}\") {{ return {status}; }}");
        rule_lines.location.insert(0, line);
    }
    Destination::Group(variable)
}

/// Fields of requests with their values as words.
fn request_fields(
    changes: &FieldChanges,
    id: &str,
    http: &mut Vec<String>,
) -> Result<Vec<(String, String)>, String> {
    let mut fields = Vec::new();
    for (name, value) in &changes.set {
        fields.push((field_name(name)?, word(value)?));
    }
    for (index, (name, value)) in changes.add.iter().enumerate() {
        let name = field_name(name)?;
        let source = format!("$http_{}", name.to_ascii_lowercase().replace('-', "_"));
        let variable = format!("$gateway_field_{id}_{index}");
        let alone = word(value)?;
        let after = word(&format!(",{value}"))?;
        let after = after.replacen('"', &format!("\"{source}"), 1);
        http.push(format!("map {source} {variable} {{ \"\" {alone}; default {after}; }}"));
        fields.push((name, variable));
    }
    for name in &changes.remove {
        fields.push((field_name(name)?, "\"\"".to_owned()));
    }
    Ok(fields)
}

fn response_fields(changes: &FieldChanges) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for (begin, fields) in [("more_set_headers", &changes.set), ("more_set_headers -a", &changes.add)] {
        for (name, value) in fields {
            lines.push(format!("{begin} {};", word(&format!("{}: {value}", field_name(name)?))?));
        }
    }
    for name in &changes.remove {
        lines.push(format!("more_clear_headers {};", field_name(name)?));
    }
    Ok(lines)
}

fn field_name(name: &str) -> Result<String, String> {
    if quote::is_end_to_end_field(name) {
        Ok(name.to_owned())
    } else {
        Err(format!("field \"{name}\" in a filter"))
    }
}

fn word(value: &str) -> Result<String, String> {
    quote::literal(value).ok_or_else(|| format!("value {value:?} with a dollar or control characters"))
}

/// Path as a part of a replacement, without the slash at its end for a prefix.
fn new_path(path: &str) -> Result<&str, String> {
    let is_valid = (path.is_empty() || path.starts_with('/'))
        && !path.contains(['$', '?', '#', ' '])
        && !path.chars().any(char::is_control);
    if is_valid { Ok(path) } else { Err(format!("path {path:?}")) }
}

/// Path of the match, if it is a prefix.
fn prefix<'a>(entry: &Entry<'a>) -> Result<&'a str, String> {
    match &entry.route_match.path {
        PathMatch::Prefix(path) => Ok(path),
        _ => Err("a new prefix for a match that has none".to_owned()),
    }
}

fn rewrite(entry: &Entry<'_>, path: &NewPath) -> Result<String, String> {
    let (regex, target) = match path {
        NewPath::Full(path) => {
            let path = new_path(path)?;
            ("^".to_owned(), if path.is_empty() { "/".to_owned() } else { path.to_owned() })
        }
        NewPath::Prefix(path) => {
            let old = quote::regex_escaped(prefix(entry)?);
            match new_path(path)?.trim_end_matches('/') {
                "" => (format!("^{old}/?(.*)$"), "/$1".to_owned()),
                new => (format!("^{old}(.*)$"), format!("{new}$1")),
            }
        }
    };
    let words = quote::verbatim(&regex).zip(quote::rewrite_target(&target));
    let (regex, target) = words.ok_or_else(|| format!("path {target:?}"))?;
    Ok(format!("rewrite {regex} {target} break;"))
}

/// Scheme, host and port of a redirect.
fn redirect_base(
    scheme: Option<&str>,
    hostname: Option<&str>,
    port: Option<u16>,
    rule_listener: RuleListener,
) -> Result<String, String> {
    let own = if rule_listener.is_tls { "https" } else { "http" };
    let name = match scheme {
        None => own,
        Some(name @ ("http" | "https")) => name,
        Some(name) => return Err(format!("scheme \"{name}\"")),
    };
    let host = match hostname {
        None => "$host".to_owned(),
        Some(host) if is_hostname(host) && !host.starts_with('*') => host.to_owned(),
        Some(host) => return Err(format!("host \"{host}\"")),
    };
    let usual = if name == "https" { 443 } else { 80 };
    // Another scheme implies its default port.
    let port = port.unwrap_or(if scheme.is_some() { usual } else { rule_listener.port });
    let port = if port == usual { String::new() } else { format!(":{port}") };
    Ok(format!("{name}://{host}{port}"))
}

fn redirect(
    entry: &Entry<'_>,
    status: u16,
    base: &str,
    path: Option<&NewPath>,
) -> Result<Vec<String>, String> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Err(format!("status {status} of a redirect"));
    }
    Ok(match path {
        None => vec![format!("return {status} {base}$request_uri;")],
        Some(NewPath::Full(path)) => {
            let path = new_path(path)?;
            let path = if path.is_empty() { "/" } else { path };
            let word = quote::literal(path).ok_or_else(|| format!("path {path:?}"))?;
            // The word without its first quote goes on behind the variables.
            let rest = word.get(1..word.len() - 1).unwrap_or_default();
            vec![format!("return {status} \"{base}{rest}$is_args$args\";")]
        }
        Some(NewPath::Prefix(path)) => {
            let old = quote::regex_escaped(prefix(entry)?);
            let (regex, rest) = match new_path(path)?.trim_end_matches('/') {
                "" => (format!("^{old}/?([^?]*)"), "/$1".to_owned()),
                new => (format!("^{old}([^?]*)"), format!("{new}$1")),
            };
            let words = quote::verbatim(&regex).zip(quote::rewrite_target(&rest));
            let (regex, rest) = words.ok_or_else(|| format!("path {path:?}"))?;
            let rest = rest.get(1..rest.len() - 1).unwrap_or_default();
            vec![
                format!("if ($request_uri ~ {regex}) {{ return {status} \"{base}{rest}$is_args$args\"; }}"),
                // The prefix is encoded in another way.
                "return 404;".to_owned(),
            ]
        }
    })
}

/// Lines of a rule that cannot be served.
pub(super) fn refused(builder: &mut Builder<'_>, owner: &ObjectName, error: &str) -> Vec<String> {
    builder.problem(owner, format!("not supported, answered with 500: {error}"));
    vec!["return 500;".to_owned()]
}
