//! TLS of an Ingress that is not decrypted (`ssl-passthrough`). As soon as there is one, a server of `stream` has the port of HTTPS: the name
//! in the client hello decides who gets the connection, `http` by a socket of its own or the endpoints.

use std::collections::BTreeMap;

use super::build::Builder;
use super::files::digest;
use crate::cluster::object::{Backend, Ingress, ObjectName, PathKind};

/// Host whose TLS is not decrypted.
#[derive(Debug)]
pub(super) struct Passthrough {
    /// Ingress.
    owner: ObjectName,
    /// Group of `stream`; without one, connections are closed.
    group: Option<String>,
}

/// Address on which `http` gets connections with TLS, if `stream` has the port.
pub(super) fn https_socket(builder: &Builder<'_>) -> Option<String> {
    (!builder.passthrough.is_empty()).then(|| format!("unix:{}/https.sock", builder.options.dir.display()))
}

impl Builder<'_> {
    /// Notes hosts of an Ingress, whose policy has this number, that are passed through: none if one of them cannot be.
    pub(super) fn add_passthrough(&mut self, number: usize, ingress: &Ingress) {
        if !self.policies.get(number).is_some_and(|policy| policy.passthrough && policy.denied.is_none()) {
            return;
        }
        let owner = &ingress.metadata.name;
        let root = (PathKind::Prefix, String::new());
        let mut passed = BTreeMap::new();
        for rule in &ingress.rules {
            let Some(host) = self.hosts.get(&rule.host) else { continue };
            // The oldest Ingress with paths of the host decides about all of them.
            if host.has_passthrough || host.policies.first() != Some(&number) {
                continue;
            }
            let has_root = host.locations.get(&root).is_some_and(|location| location.policy == number);
            let is_root = |path: &str| path.trim_end_matches('/').is_empty();
            let rules = ingress.rules.iter().filter(|other| other.host == rule.host);
            let backend = rules.filter(|other| is_root(&other.path)).find_map(|rule| rule.backend.clone());
            let backend = backend.or_else(|| ingress.default_backend.clone()).filter(|_| has_root);
            let (Some(backend), false) = (backend, rule.host.is_empty()) else {
                let text = "\"ssl-passthrough\" needs a host with a service for the path \"/\"".to_owned();
                self.problem(owner, format!("{text}; the paths are answered with 503"));
                if let Some(policy) = self.policies.get_mut(number) {
                    policy.deny(text);
                }
                return;
            };
            passed.insert(&rule.host, backend);
        }
        for (host, backend) in passed {
            self.pass_through(owner, host, &backend);
        }
    }

    fn pass_through(&mut self, owner: &ObjectName, name: &str, backend: &Backend) {
        let group = match self.groups.of_stream(&owner.namespace, backend, false, owner) {
            Ok(group) => Some(group),
            Err(error) => {
                self.problem(owner, format!("host \"{name}\": {error}; its connections with TLS are closed"));
                None
            }
        };
        self.passthrough.insert(name.to_owned(), Passthrough { owner: owner.clone(), group });
        if let Some(host) = self.hosts.get_mut(name) {
            host.has_passthrough = true;
        }
    }
}

/// Makes the servers, each line with its Ingress.
pub(super) fn render(builder: &Builder<'_>) -> Vec<(ObjectName, String)> {
    let Some(https) = https_socket(builder) else { return Vec::new() };
    let options = builder.options;
    let nobody = ObjectName::default();
    let socket = |name: &str| {
        let id: String = digest(name.as_bytes()).chars().take(12).collect();
        format!("unix:{}/tls.{id}.sock", options.dir.display())
    };
    let mut lines = Vec::new();
    let mut add = |owner: &ObjectName, line: String| lines.push((owner.clone(), line));
    add(&nobody, "map $ssl_preread_server_name $ingress_tls {".to_owned());
    add(&nobody, format!("default {https};"));
    for (name, host) in &builder.passthrough {
        // A wildcard stands for exactly one label, as elsewhere.
        let pattern = match name.strip_prefix("*.") {
            Some(rest) => format!("\"~*^[^.]+\\.{}$\"", rest.replace('.', "\\.")),
            None => name.clone(),
        };
        add(&host.owner, format!("{pattern} {};", socket(name)));
    }
    add(&nobody, "}".to_owned());
    add(&nobody, "server {".to_owned());
    let parameters = if options.globals.proxy_protocol { " proxy_protocol" } else { "" };
    add(&nobody, format!("listen {}{parameters};", options.https));
    if options.ipv6 && options.https.bytes().all(|byte| byte.is_ascii_digit()) {
        add(&nobody, format!("listen [::]:{}{parameters};", options.https));
    }
    add(&nobody, "ssl_preread on;".to_owned());
    add(&nobody, "pass $ingress_tls;".to_owned());
    add(&nobody, "}".to_owned());
    for (name, host) in &builder.passthrough {
        add(&host.owner, "server {".to_owned());
        add(&host.owner, format!("listen {};", socket(name)));
        match &host.group {
            Some(group) => add(&host.owner, format!("proxy_pass {group};")),
            None => add(&host.owner, "return \"\";".to_owned()),
        }
        add(&host.owner, "}".to_owned());
    }
    lines
}
