//! Connections with TLS that is not decrypted: the name in the client hello decides.

use std::collections::{BTreeMap, BTreeSet};

use super::attach::{Attachment, check_backend};
use super::render::{Rendered, listen};
use crate::cluster::gateway::Route;
use crate::cluster::object::{Backend, BackendPort, ObjectName};
use crate::site::build::Builder;

/// Makes the blocks of `stream` for all listeners that pass TLS through.
pub(super) fn render(builder: &mut Builder<'_>, attachment: &Attachment, rendered: &mut Rendered) {
    // Hosts by port, the first route of each counts.
    let mut ports: BTreeMap<u16, BTreeMap<String, (&Route, String)>> = BTreeMap::new();
    let mut groups: BTreeSet<String> = BTreeSet::new();
    for state in attachment.routes.iter().filter(|state| state.route.kind == "TLSRoute") {
        let owner = state.route.owner();
        let mut target = None;
        for backend in state.route.rules.iter().flat_map(|rule| &rule.backends) {
            if backend.weight == 0 || target.is_some() {
                continue;
            }
            let result = check_backend(builder.snapshot, &state.route, backend).map_err(|(_, error)| error);
            let name = &backend.service.name;
            let port = backend.port.map_or(BackendPort::First, BackendPort::Number);
            let service = Backend { service: name.name.clone(), port };
            let result =
                result.and_then(|()| builder.groups.of_stream(&name.namespace, &service, false, &owner));
            match result {
                Ok(group) => target = Some(group),
                Err(error) => builder.problem(&owner, format!("{error}: connections are closed")),
            }
        }
        let Some(group) = target else { continue };
        groups.insert(group.clone());
        for (number, index, names) in state.parents.iter().flat_map(|parent| &parent.listeners) {
            let gateway = attachment.gateways.get(*number);
            let Some(listener) = gateway.and_then(|state| state.gateway.listeners.get(*index)) else {
                continue;
            };
            let port = ports.entry(listener.port).or_default();
            for name in names {
                port.entry(name.clone()).or_insert((&state.route, group.clone()));
            }
        }
    }
    for (port, hosts) in &ports {
        let variable = format!("$gateway_tls_{port}");
        let mut add = |owner: &ObjectName, line: String| rendered.stream.push((owner.clone(), line));
        let nobody = ObjectName::default();
        add(&nobody, format!("map $ssl_preread_server_name {variable} {{"));
        add(&nobody, "hostnames;".to_owned());
        for (name, (route, group)) in hosts {
            // The keys are DNS names. A connection without a name has no route, unless there is one for all names.
            let name = if name.is_empty() { "default" } else { name };
            add(&route.owner(), format!("{name} {group};"));
        }
        add(&nobody, "}".to_owned());
        add(&nobody, "server {".to_owned());
        listen(builder, *port, "").into_iter().for_each(|line| add(&nobody, line));
        add(&nobody, "ssl_preread on;".to_owned());
        add(&nobody, format!("proxy_pass {variable};"));
        add(&nobody, "}".to_owned());
    }
}
