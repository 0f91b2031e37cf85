//! The lines of one location.

use super::globals::Globals;
use super::host::{Location, Target, WrittenLocation};
use crate::annotation::policy::{Policy, Protocol};

/// Directives of the proxy that gRPC has, too, under its own name.
pub(super) const GRPC: &[&str] = &[
    "buffer_size",
    "connect_timeout",
    "hide_header",
    "intercept_errors",
    "next_upstream",
    "next_upstream_timeout",
    "next_upstream_tries",
    "read_timeout",
    "send_timeout",
    "set_header",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_name",
    "ssl_protocols",
    "ssl_server_name",
    "ssl_trusted_certificate",
    "ssl_verify",
    "ssl_verify_depth",
];
/// Directives of the proxy that FastCGI has, too.
const FASTCGI: &[&str] = &[
    "buffer_size",
    "buffering",
    "buffers",
    "busy_buffers_size",
    "connect_timeout",
    "intercept_errors",
    "max_temp_file_size",
    "next_upstream",
    "next_upstream_timeout",
    "next_upstream_tries",
    "read_timeout",
    "request_buffering",
    "send_timeout",
];

/// Fields of requests to endpoints.
pub(super) const FIELDS: &[(&str, &str)] = &[
    ("Host", "$ingress_host"),
    ("X-Request-ID", "$ingress_request_id"),
    ("X-Real-IP", "$remote_addr"),
    ("X-Forwarded-For", "$ingress_forwarded_for"),
    ("X-Forwarded-Host", "$ingress_host"),
    ("X-Forwarded-Port", "$ingress_port"),
    ("X-Forwarded-Proto", "$ingress_scheme"),
    ("X-Forwarded-Scheme", "$ingress_scheme"),
    ("X-Scheme", "$ingress_scheme"),
    ("X-Original-Forwarded-For", "$http_x_forwarded_for"),
    ("Proxy", "\"\""),
    ("Upgrade", "$http_upgrade"),
    ("Connection", "$ingress_connection"),
];

/// Lines within a location.
pub(super) fn lines(
    location: &Location,
    written_location: &WrittenLocation,
    policy: &Policy,
    globals: &Globals,
    has_tls: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    let ssl_redirect = policy.ssl_redirect.unwrap_or(globals.ssl_redirect) && has_tls;
    if ssl_redirect || policy.force_ssl_redirect || globals.force_ssl_redirect {
        let code = globals.redirect_code;
        lines.push(format!("if ($ingress_scheme = http) {{ return {code} https://$host$request_uri; }}"));
    }
    if policy.denied.is_some() {
        lines.push("return 503;".to_owned());
        return lines;
    }
    lines.extend_from_slice(&policy.first);
    if let Some((code, target)) = &policy.redirect {
        lines.push(format!("return {code} {target};"));
        return lines;
    }
    if let Target::Unavailable(_) = location.target {
        lines.extend_from_slice(&policy.fields);
        lines.push("return 503;".to_owned());
        return lines;
    }
    if let (Some(target), Some(pattern)) = (&policy.rewrite, &written_location.regex) {
        let word = crate::quote::verbatim(&format!("(?i){pattern}")).unwrap_or_default();
        lines.push(format!("rewrite {word} {target} break;"));
    }
    let (family, known_names, pass) = match policy.protocol {
        Protocol::Http => ("proxy", None, "proxy_pass http://"),
        Protocol::Https => ("proxy", None, "proxy_pass https://"),
        Protocol::Grpc => ("grpc", Some(GRPC), "grpc_pass grpc://"),
        Protocol::Grpcs => ("grpc", Some(GRPC), "grpc_pass grpcs://"),
        Protocol::Fastcgi => ("fastcgi", Some(FASTCGI), "fastcgi_pass "),
    };
    let mut add = |line: &str| match (line.strip_prefix("proxy_"), known_names) {
        (Some(rest), Some(known_names)) => {
            let directive = rest.split(' ').next().unwrap_or_default();
            if known_names.contains(&directive) {
                lines.push(format!("{family}_{rest}"));
            }
        }
        _ => lines.push(line.to_owned()),
    };
    globals.location.iter().chain(&policy.location).for_each(|line| add(line));
    if globals.hsts.is_some() && has_tls {
        add("add_header Strict-Transport-Security $ingress_hsts always;");
    }
    policy.fields.iter().for_each(|line| add(line));
    if policy.protocol != Protocol::Fastcgi {
        let replaced =
            |name: &str| policy.request_fields.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        // A connection of HTTP/2 knows neither.
        let is_hop = |name: &str| matches!(name, "Upgrade" | "Connection") && family == "grpc";
        for (name, value) in FIELDS.iter().filter(|(name, _)| !replaced(name) && !is_hop(name)) {
            add(&format!("proxy_set_header {name} {value};"));
        }
        for (name, value) in &policy.request_fields {
            add(&format!("proxy_set_header {name} {value};"));
        }
    }
    let errors = policy.error_statuses.iter().filter(|_| policy.default_backend.is_some());
    for (index, code) in errors.enumerate() {
        if index == 0 {
            add("proxy_intercept_errors on;");
        }
        add(&format!("error_page {code} = @ingress_error_{code}_{};", policy.id));
    }
    match &location.target {
        Target::Group(name) | Target::Choice(name) => lines.push(format!("{pass}{name};")),
        Target::Unavailable(_) => {}
    }
    lines
}
