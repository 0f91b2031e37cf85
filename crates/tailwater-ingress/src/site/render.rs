//! The text of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::build::Builder;
use super::endpoints::UpstreamGroup;
use super::host::{Host, OWN_PATHS, server_name};
use super::{GroupName, Line, READY_FILE, Site, certificate, gateway, location, passthrough, services};
use crate::annotation::access::FLEET;
use crate::annotation::policy::Policy;
use crate::cluster::object::{Backend, BackendPort, ObjectName, PathKind};

/// Lines with their owners.
#[derive(Default)]
struct Text {
    lines: Vec<Line>,
    depth: usize,
    owner: Option<ObjectName>,
}

impl Text {
    fn line(&mut self, text: &str) {
        self.add(text, false);
    }

    fn add(&mut self, text: &str, is_endpoint: bool) {
        let closes = text.starts_with('}');
        self.depth -= usize::from(closes && self.depth > 0);
        let text_line =
            if text.is_empty() { String::new() } else { format!("{}{text}", "    ".repeat(self.depth)) };
        self.lines.push(Line { text: text_line, owner: self.owner.clone(), is_endpoint });
        self.depth += usize::from(text.ends_with('{'));
    }

    fn lines<'a>(&mut self, lines: impl IntoIterator<Item = &'a (impl AsRef<str> + 'a + ?Sized)>) {
        lines.into_iter().for_each(|line| self.line(line.as_ref()));
    }

    fn owned_by(&mut self, owner: &ObjectName) {
        self.owner = (!owner.name.is_empty()).then(|| owner.clone());
    }
}

pub(super) fn render(mut builder: Builder<'_>) -> Site {
    let options = builder.options;
    let globals = &options.globals;
    let dir = options.dir.display();
    let mut text = Text::default();
    text.line("# Written by tailwater-ingress; changes are overwritten.");
    text.line("daemon off;");
    text.line(&format!("pid {dir}/tailwater.pid;"));
    if let Some(user) = &options.user {
        text.line(&format!("user {user};"));
    }
    text.lines(&globals.main);
    if let Some(fleet) = &options.fleet {
        text.line(&format!("fleet {FLEET} {{"));
        text.line(&format!("node {};", fleet.node));
        text.line(&format!("engine {};", fleet.engine));
        if let Some(credentials) = &fleet.credentials {
            text.line(&format!("credentials {credentials};"));
        }
        text.line(&format!("state_directory {dir}/fleet;"));
        text.line("}");
    }
    text.line("events {");
    text.lines(&globals.events);
    text.line("}");
    text.line("http {");
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text.line(&format!("{name}_temp_path {dir}/temp/{name};"));
    }
    text.line(&format!("proxy_cache_path {dir}/temp/auth keys_zone=ingress_auth:1m max_size=16m;"));
    resolver(&mut text, &builder);
    http_lines(&mut text, &builder);
    let default = default_certificate(&mut builder);
    for (owner, line) in &builder.http {
        text.owned_by(owner);
        text.line(line);
    }
    let mut endpoints = BTreeMap::new();
    let errors = error_locations(&mut builder);
    let gateways = gateway::render(&mut builder, &default);
    for (owner, line) in &gateways.http {
        text.owned_by(owner);
        text.line(line);
    }
    for (name, group) in &builder.groups.groups {
        text.owned_by(&group.owner);
        text.line(&format!("upstream {name} {{"));
        write_servers(&mut text, &mut endpoints, "http", name, group);
    }
    text.owner = None;
    own_servers(&mut text, &builder);
    let names: Vec<String> = builder.hosts.keys().cloned().collect();
    let mut aliases = BTreeSet::new();
    for name in &names {
        let Some(host) = builder.hosts.get(name) else { continue };
        let others = if name.is_empty() { &gateways.defaults } else { &BTreeSet::new() };
        // If Gateways have the default servers of both ports, no listener is left for this host.
        if others.len() < 2 {
            let servers = HostServers { name, host, others };
            write_host(&mut text, &builder, &servers, &default, &mut aliases, &errors);
        }
    }
    for (owner, line) in &gateways.servers {
        text.owned_by(owner);
        text.line(line);
    }
    text.owner = None;
    text.line("}");
    let mut stream = gateways.stream;
    stream.extend(services::render(&mut builder).into_iter().map(|line| (ObjectName::default(), line)));
    stream.extend(passthrough::render(&builder));
    if !stream.is_empty() {
        text.line("stream {");
        resolver(&mut text, &builder);
        text.lines(&builder.options.globals.stream);
        for (name, group) in &builder.groups.streams {
            text.owned_by(&group.owner);
            text.line(&format!("upstream {name} {{"));
            write_servers(&mut text, &mut endpoints, "stream", name, group);
        }
        for (owner, line) in &stream {
            text.owned_by(owner);
            text.line(line);
        }
        text.owner = None;
        text.line("}");
    }
    Site {
        lines: text.lines,
        files: builder.files,
        groups: endpoints,
        listens: builder.listens,
        problems: builder.problems,
    }
}

/// Writes the rest of an upstream group. Groups of endpoints go to `endpoints`.
fn write_servers(
    text: &mut Text,
    endpoints: &mut BTreeMap<GroupName, BTreeSet<String>>,
    block: &'static str,
    name: &str,
    group: &UpstreamGroup,
) {
    if group.is_external {
        text.line(&format!("zone {name} 64k;"));
    }
    text.lines(&group.lines);
    for server in &group.servers {
        text.add(&format!("server {server};"), !group.is_external);
    }
    text.line("}");
    if !group.is_external {
        endpoints.insert(GroupName { block, name: name.to_owned() }, group.servers.clone());
    }
}

/// DNS servers, for services outside of the cluster.
fn resolver(text: &mut Text, builder: &Builder<'_>) {
    if builder.options.resolvers.is_empty() {
        return;
    }
    let mut servers = String::new();
    for address in &builder.options.resolvers {
        let _ =
            if address.is_ipv6() { write!(servers, " [{address}]") } else { write!(servers, " {address}") };
    }
    text.line(&format!("resolver{servers} valid=30s;"));
}

fn http_lines(text: &mut Text, builder: &Builder<'_>) {
    let globals = &builder.options.globals;
    text.line("proxy_http_version 1.1;");
    text.line("map $http_upgrade $ingress_connection { default upgrade; \"\" \"\"; }");
    text.line("map $http_host $ingress_host { default $http_host; \"\" $host; }");
    text.line("map $http_x_request_id $ingress_request_id { default $http_x_request_id; \"\" $request_id; }");
    match &globals.forwarded {
        None => {
            text.line("map \"\" $ingress_scheme { default $scheme; }");
            text.line("map \"\" $ingress_forwarded_for { default $remote_addr; }");
        }
        Some(forwarded) => {
            // Fields of the proxy in front count only if the connection comes from it.
            let networks: Vec<_> = forwarded.networks.iter().map(|network| format!("{network} 1;")).collect();
            text.line(&format!(
                "geo $realip_remote_addr $ingress_trusted {{ default 0; {} }}",
                networks.join(" ")
            ));
            text.line("map $ingress_trusted:$http_x_forwarded_proto $ingress_scheme { default $scheme; ~*^1:https$ https; ~*^1:http$ http; }");
            text.line("map $ingress_trusted $ingress_forwarded_for { default $remote_addr; 1 $proxy_add_x_forwarded_for; }");
            text.line(&format!("real_ip_header {};", forwarded.field));
            text.line("real_ip_recursive on;");
            for network in &forwarded.networks {
                text.line(&format!("set_real_ip_from {network};"));
            }
        }
    }
    if globals.forwarded.is_none() && globals.proxy_protocol {
        text.line("real_ip_header proxy_protocol;");
        text.line("set_real_ip_from 0.0.0.0/0;");
        text.line("set_real_ip_from ::/0;");
    }
    text.line("map $ingress_scheme $ingress_port { default 80; https 443; }");
    if let Some(hsts) = &globals.hsts {
        text.line(&format!("map $ingress_scheme $ingress_hsts {{ default \"\"; https \"{hsts}\"; }}"));
    }
    text.lines(&globals.http);
}

/// Certificate of hosts that have none: the one of the option, or one that nobody trusts.
fn default_certificate(builder: &mut Builder<'_>) -> (String, String) {
    let options = builder.options;
    let mut pair = options.default_certificate.clone();
    if let Some(name) = &options.default_secret {
        let found_secret = builder.snapshot.secrets.get(name).ok_or_else(|| "it is missing".to_owned());
        match found_secret.and_then(|secret| certificate::of_secret(secret)) {
            Ok((chain, key)) => pair = (chain.clone(), key.clone()),
            Err(error) => builder.problem(name, format!("default certificate: {error}")),
        }
    }
    (builder.files.add("crt", pair.0), builder.files.add("key", pair.1))
}

/// Servers of the controller: its probes, metrics, and changes of endpoints.
fn own_servers(text: &mut Text, builder: &Builder<'_>) {
    let options = builder.options;
    text.line("server {");
    text.line(&format!("listen unix:{}/api.sock;", options.dir.display()));
    text.line("access_log off;");
    text.line("location /api/ { api write=on; }");
    text.line("}");
    text.line("server {");
    listen(text, &options.status, options.ipv6, "");
    text.line("access_log off;");
    text.line("location = /livez { return 200; }");
    text.line("location = /healthz {");
    text.line(&format!("if (-f {}/{READY_FILE}) {{ return 200; }}", options.dir.display()));
    text.line("return 503;");
    text.line("}");
    text.line("location = /metrics { metrics; }");
    text.line("}");
}

fn listen(text: &mut Text, address: &str, ipv6: bool, parameters: &str) {
    text.line(&format!("listen {address}{parameters};"));
    if ipv6 && address.bytes().all(|byte| byte.is_ascii_digit()) {
        text.line(&format!("listen [::]:{address}{parameters};"));
    }
}

/// Named locations of `custom-http-errors` for each policy.
fn error_locations(builder: &mut Builder<'_>) -> Vec<Vec<String>> {
    let policies = builder.policies.clone();
    let lines = |policy: &Policy| {
        let Some(service) = policy.default_backend.clone().filter(|_| !policy.error_statuses.is_empty())
        else {
            return Vec::new();
        };
        let backend = Backend { service, port: BackendPort::First };
        let group = builder.groups.of_backend(&policy.owner.namespace, &backend, &[], false, &policy.owner);
        let mut lines = Vec::new();
        for code in &policy.error_statuses {
            lines.push(format!("location @ingress_error_{code}_{} {{", policy.id));
            lines.push("internal;".to_owned());
            match &group {
                Ok(group) => lines.extend([
                    "proxy_intercept_errors off;".to_owned(),
                    format!("proxy_set_header X-Code {code};"),
                    "proxy_set_header X-Format $http_accept;".to_owned(),
                    "proxy_set_header X-Original-URI $request_uri;".to_owned(),
                    format!("proxy_set_header X-Namespace {};", policy.owner.namespace),
                    format!("proxy_set_header X-Ingress-Name {};", policy.owner.name),
                    "proxy_set_header X-Request-ID $ingress_request_id;".to_owned(),
                    "proxy_set_header Host $ingress_host;".to_owned(),
                    "rewrite ^ / break;".to_owned(),
                    format!("proxy_pass http://{group};"),
                ]),
                Err(_) => lines.push(format!("return {code};")),
            }
            lines.push("}".to_owned());
        }
        lines
    };
    policies.iter().map(lines).collect()
}

/// Servers of one host.
struct HostServers<'a> {
    /// Name of the host; empty for the default servers.
    name: &'a str,
    host: &'a Host,
    /// Ports whose default servers belong to Gateways.
    others: &'a BTreeSet<u16>,
}

fn write_host(
    text: &mut Text,
    builder: &Builder<'_>,
    servers: &HostServers<'_>,
    default: &(String, String),
    aliases: &mut BTreeSet<String>,
    errors: &[Vec<String>],
) {
    let HostServers { name, host, others } = *servers;
    let globals = &builder.options.globals;
    let policies: Vec<_> =
        host.policies.iter().filter_map(|number| Some((*number, builder.policies.get(*number)?))).collect();
    text.owner =
        policies.first().map(|(_, policy)| policy.owner.clone()).filter(|owner| !owner.name.is_empty());
    let mut names = server_name(name);
    for alias in policies.iter().flat_map(|(_, policy)| &policy.aliases) {
        if !name.is_empty() && !builder.hosts.contains_key(alias) && aliases.insert(alias.clone()) {
            names += &format!(" {alias}");
        }
    }
    let wants_www = policies.iter().any(|(_, policy)| policy.www_redirect);
    let other = name.strip_prefix("www.").map_or_else(|| format!("www.{name}"), str::to_owned);
    let is_plain = !name.is_empty() && !name.starts_with('*');
    if wants_www && is_plain && !builder.hosts.contains_key(&other) && aliases.insert(other.clone()) {
        text.line("server {");
        begin_server(text, builder, &other, host, default, None);
        text.line(&format!("return {} $ingress_scheme://{name}$request_uri;", globals.redirect_code));
        text.line("}");
    }
    text.line("server {");
    begin_server(text, builder, &names, host, default, name.is_empty().then_some(others));
    text.lines(&globals.server);
    text.line("set_escape_uri $ingress_escaped_uri $request_uri;");
    let own = text.owner.clone();
    let mut directives = BTreeSet::new();
    for (number, policy) in &policies {
        text.owned_by(&policy.owner);
        for line in &policy.server {
            // Each directive is written once: that of the oldest Ingress counts.
            let directive = line.split(' ').next().unwrap_or_default();
            let is_single = directive.starts_with("ssl_");
            if !is_single || directives.insert(directive.to_owned()) {
                text.line(line);
            }
        }
        text.lines(&policy.internal);
        errors.get(*number).into_iter().for_each(|lines| text.lines(lines));
        let root = (PathKind::Exact, "/".to_owned());
        if let Some(target) = policy.app_root.as_ref().filter(|_| !host.locations.contains_key(&root))
            && directives.insert("app-root".to_owned())
        {
            text.line(&format!("location = / {{ return 302 {target}; }}"));
        }
    }
    text.owner = own;
    for location in host.written_locations(&builder.policies) {
        let Some(found_location) = host.locations.get(&location.key) else { continue };
        let Some(policy) = builder.policies.get(found_location.policy) else { continue };
        text.owned_by(&policy.owner);
        text.line(&format!("location {} {{", location.head));
        text.lines(&location::lines(found_location, &location, policy, globals, host.has_tls));
        text.line("}");
    }
    text.owner = None;
    text.line(&format!("location ^~ {OWN_PATHS}/ {{ return 404; }}"));
    if !host.locations.contains_key(&(PathKind::Prefix, String::new())) {
        text.line("location / { return 404; }");
    }
    text.line("}");
}

fn begin_server(
    text: &mut Text,
    builder: &Builder<'_>,
    names: &str,
    host: &Host,
    default: &(String, String),
    others: Option<&BTreeSet<u16>>,
) {
    let options = builder.options;
    let globals = &builder.options.globals;
    let mut parameters = String::new();
    if others.is_some() {
        parameters += " default_server";
    }
    if globals.proxy_protocol {
        parameters += " proxy_protocol";
    }
    // On ports in `others`, a Gateway has the default server.
    let is_own = |port: u16| others.is_none_or(|others| !others.contains(&port));
    if is_own(80) {
        listen(text, &options.http, options.ipv6, &parameters);
    }
    if is_own(443) && !host.has_passthrough {
        match passthrough::https_socket(builder) {
            // The server before it has read the header of the PROXY protocol.
            Some(socket) => {
                let default = if others.is_some() { " default_server" } else { "" };
                text.line(&format!("listen {socket} ssl{default};"));
            }
            None => listen(text, &options.https, options.ipv6, &format!(" ssl{parameters}")),
        }
    }
    text.line(&format!("http2 {};", if globals.http2 { "on" } else { "off" }));
    text.line(&format!("server_name {names};"));
    let own = text.owner.clone();
    let (chain, key) = match &host.certificate {
        Some((chain, key, owner)) => {
            text.owned_by(owner);
            (chain, key)
        }
        None => (&default.0, &default.1),
    };
    text.line(&format!("ssl_certificate {chain};"));
    text.line(&format!("ssl_certificate_key {key};"));
    text.owner = own;
}
