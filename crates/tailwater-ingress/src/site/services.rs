//! Services over TCP and UDP: maps of ports and services, with the format of ingress-nginx.

use std::collections::BTreeMap;

use super::build::Builder;
use super::ports::ExtraPort;
use super::settings::SiteOptions;
use crate::cluster::object::{Backend, BackendPort, ObjectName, is_name};
use crate::cluster::store::Snapshot;

/// Service of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PortService {
    service: ObjectName,
    port: BackendPort,
    /// Connections begin with a header of the PROXY protocol.
    takes_header: bool,
    /// Connections to endpoints begin with such a header.
    sends_header: bool,
}

/// Services by port, and the maps that have something without effect.
#[derive(Debug, Default)]
pub(super) struct PortServices {
    services: BTreeMap<ExtraPort, (ObjectName, PortService)>,
    problems: Vec<(ObjectName, String)>,
}

/// Ports of services, which no listener of a Gateway can have.
pub(super) fn service_ports(snapshot: &Snapshot, options: &SiteOptions) -> Vec<ExtraPort> {
    PortServices::read(snapshot, options).services.into_keys().collect()
}

impl PortServices {
    pub(super) fn read(snapshot: &Snapshot, options: &SiteOptions) -> Self {
        let mut services = Self::default();
        for (name, is_datagram) in [(&options.tcp_services, false), (&options.udp_services, true)] {
            let Some(name) = name else { continue };
            let Some(map) = snapshot.config_maps.get(name) else { continue };
            for (key, value) in &map.data {
                let number = key.trim().parse().ok().filter(|number| *number > 0);
                let result = match number.map(|number| ExtraPort { number, is_datagram }) {
                    None => Err("no port".to_owned()),
                    Some(port) if !is_datagram && is_own(options, port.number) => {
                        Err("the controller itself listens there".to_owned())
                    }
                    Some(port) => read(value, is_datagram).map(|service| (port, service)),
                };
                match result {
                    Ok((port, service)) => drop(services.services.insert(port, (name.clone(), service))),
                    Err(error) => services.problems.push((name.clone(), format!("key \"{key}\": {error}"))),
                }
            }
        }
        services
    }
}

/// Returns true for a port of the options.
fn is_own(options: &SiteOptions, number: u16) -> bool {
    let own = [&options.http, &options.https, &options.status];
    own.iter().any(|address| address.rsplit(':').next().and_then(|port| port.parse().ok()) == Some(number))
}

/// Reads `namespace/service:port`, and for TCP then `:PROXY` for the connection of the client, and once more for that to the endpoint.
fn read(text: &str, is_datagram: bool) -> Result<PortService, String> {
    let mut parts = text.trim().split(':');
    let name = parts.next().filter(|name| name.contains('/'));
    let service = name.and_then(|name| ObjectName::reference(name, ""));
    let service = service.ok_or("the value is not namespace/service:port")?;
    let port = match parts.next() {
        Some(number) if number.parse::<u16>().is_ok_and(|number| number > 0) => {
            BackendPort::Number(number.parse().unwrap_or_default())
        }
        // A number that is no port is no name either.
        Some(name) if is_name(name) && name.parse::<u32>().is_err() => BackendPort::Name(name.to_owned()),
        _ => return Err("the value is not namespace/service:port".to_owned()),
    };
    let mut header = |what: &str| match parts.next() {
        None | Some("") => Ok(false),
        Some("PROXY") if !is_datagram => Ok(true),
        Some(other) => Err(format!("{what}: \"{other}\" is unknown")),
    };
    let takes_header = header("client")?;
    let sends_header = header("endpoint")?;
    match parts.next() {
        None => Ok(PortService { service, port, takes_header, sends_header }),
        Some(_) => Err("the value has too many parts".to_owned()),
    }
}

/// Makes the servers of all ports: lines of the block `stream`.
pub(super) fn render(builder: &mut Builder<'_>) -> Vec<String> {
    let PortServices { services: results, problems } = PortServices::read(builder.snapshot, builder.options);
    builder.problems.extend(problems);
    let mut lines = Vec::new();
    for (port, (map, service)) in results {
        if let Some(reason) = builder.options.unavailable.get(&port) {
            builder.problem(&map, format!("{port} is not served: {reason}"));
            continue;
        }
        let backend = Backend { service: service.service.name.clone(), port: service.port };
        let owner = ObjectName::default();
        let group =
            match builder.groups.of_stream(&service.service.namespace, &backend, port.is_datagram, &owner) {
                Ok(group) => group,
                Err(error) => {
                    builder.problem(&map, format!("{port} is not served: {error}"));
                    continue;
                }
            };
        builder.listens.insert(port);
        lines.push("server {".to_owned());
        let parameters = if service.takes_header { " proxy_protocol" } else { "" };
        lines.extend(port.listen(builder.options, parameters));
        if service.takes_header {
            lines.extend(["set_real_ip_from 0.0.0.0/0;", "set_real_ip_from ::/0;"].map(str::to_owned));
        }
        if service.sends_header {
            lines.push("proxy_protocol on;".to_owned());
        }
        lines.push(format!("proxy_pass {group};"));
        lines.push("}".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_ingress_nginx() {
        let service = |port, takes_header, sends_header| {
            let service = ObjectName::new("shop", "db");
            Some(PortService { service, port, takes_header, sends_header })
        };
        let number = BackendPort::Number(5432);
        for (text, is_datagram, expected) in [
            ("shop/db:5432", false, service(number.clone(), false, false)),
            ("shop/db:sql", false, service(BackendPort::Name("sql".to_owned()), false, false)),
            ("shop/db:5432:PROXY", false, service(number.clone(), true, false)),
            ("shop/db:5432::PROXY", false, service(number.clone(), false, true)),
            ("shop/db:5432:PROXY:PROXY", false, service(number.clone(), true, true)),
            ("shop/db:5432", true, service(number, false, false)),
            ("shop/db:5432:PROXY", true, None),
            ("shop/db:5432:X", false, None),
            ("shop/db:5432:::x", false, None),
            ("shop/db:0", false, None),
            ("shop/db:a;b", false, None),
            ("shop/db", false, None),
            ("db:5432", false, None),
            ("", false, None),
        ] {
            assert_eq!(read(text, is_datagram).ok(), expected, "{text}");
        }
    }
}
