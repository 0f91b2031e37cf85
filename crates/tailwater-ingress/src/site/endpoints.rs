//! Upstream groups: the endpoints of the services that rules name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::files::digest;
use crate::cluster::object::{Backend, BackendPort, EndpointSlice, ObjectName, ServicePort};
use crate::cluster::store::Snapshot;
use crate::quote;

/// Way to the servers of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// To endpoints, over TCP.
    Endpoints,
    /// To endpoints, over UDP.
    Datagrams,
    /// To the address of the service.
    Service,
}

/// Upstream group.
#[derive(Debug, Clone, Default)]
pub struct UpstreamGroup {
    /// Lines before the servers.
    pub lines: Vec<String>,
    /// Servers, as `server` has them.
    pub servers: BTreeSet<String>,
    /// Name that is resolved while the server runs; its addresses are no endpoints of the cluster.
    pub is_external: bool,
    /// First Ingress that uses it.
    pub owner: ObjectName,
}

/// All groups of a configuration, and the services they are made of.
pub(super) struct UpstreamGroups<'a> {
    snapshot: &'a Snapshot,
    slices: HashMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>,
    pub(super) groups: BTreeMap<String, UpstreamGroup>,
    /// Groups of `stream`.
    pub(super) streams: BTreeMap<String, UpstreamGroup>,
    /// Lines of every group.
    common: Vec<String>,
}

impl<'a> UpstreamGroups<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, common: Vec<String>) -> Self {
        let mut slices: HashMap<_, Vec<_>> = HashMap::new();
        for slice in snapshot.slices.values() {
            let key = (&*slice.metadata.name.namespace, &*slice.service);
            slices.entry(key).or_default().push(&**slice);
        }
        Self { snapshot, slices, groups: BTreeMap::new(), streams: BTreeMap::new(), common }
    }

    /// Group of a backend. `lines` are balancing and sessions; `by_service` sends requests to the address of the service.
    ///
    /// # Errors
    /// The service has no endpoints, no such port, or does not exist.
    pub(super) fn of_backend(
        &mut self,
        namespace: &str,
        backend: &Backend,
        lines: &[String],
        by_service: bool,
        owner: &ObjectName,
    ) -> Result<String, String> {
        let mut group =
            self.find(namespace, backend, if by_service { Reach::Service } else { Reach::Endpoints }, owner)?;
        group.0.lines = [lines, &self.common].concat();
        // Names of objects have no underscore.
        let kind = if by_service { "_service" } else { "" };
        let mut key = format!("{namespace}_{}_{}{kind}", backend.service, group.1);
        if !lines.is_empty() {
            let options: String = digest(lines.join("\n").as_bytes()).chars().take(8).collect();
            key += &format!("_{options}");
        }
        self.groups.entry(key.clone()).or_insert(group.0);
        Ok(key)
    }

    /// Group of a backend in the block `stream`.
    ///
    /// # Errors
    /// As [`Self::of_backend`].
    pub(super) fn of_stream(
        &mut self,
        namespace: &str,
        backend: &Backend,
        is_datagram: bool,
        owner: &ObjectName,
    ) -> Result<String, String> {
        let (group, port) = self.find(
            namespace,
            backend,
            if is_datagram { Reach::Datagrams } else { Reach::Endpoints },
            owner,
        )?;
        // Names of objects have no underscore.
        let kind = if is_datagram { "_udp" } else { "" };
        let key = format!("{namespace}_{}_{port}{kind}", backend.service);
        self.streams.entry(key.clone()).or_insert(group);
        Ok(key)
    }

    /// Servers of a backend, and the port of its service.
    fn find(
        &self,
        namespace: &str,
        backend: &Backend,
        reach: Reach,
        owner: &ObjectName,
    ) -> Result<(UpstreamGroup, u16), String> {
        let name = ObjectName::new(namespace, &*backend.service);
        let service =
            self.snapshot.services.get(&name).ok_or_else(|| format!("service \"{name}\" is missing"))?;
        let mut ports = service.ports.iter().filter(|port| port.is_datagram == (reach == Reach::Datagrams));
        let port = match &backend.port {
            BackendPort::First => ports.next(),
            BackendPort::Number(number) => ports.find(|port| port.number == *number),
            BackendPort::Name(name) => ports.find(|port| port.name == *name),
        };
        let mut group = UpstreamGroup { owner: owner.clone(), ..UpstreamGroup::default() };
        let port_number = match (&service.external_name, port, &backend.port) {
            (Some(host), port, backend_port) => {
                let number = match (port, backend_port) {
                    (Some(port), _) => port.number,
                    (None, BackendPort::Number(number)) => *number,
                    _ => return Err(format!("service \"{name}\" has no such port")),
                };
                let host = host.trim_end_matches('.');
                let is_local = host == "unix" || host == "localhost" || host.ends_with(".localhost");
                if !quote::is_host(host)
                    || is_local
                    || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
                {
                    return Err(format!("service \"{name}\" has an invalid externalName"));
                }
                group.is_external = true;
                let resolve = if host.parse::<IpAddr>().is_ok() { "" } else { " resolve" };
                group.servers.insert(format!("{host}:{number}{resolve}"));
                number
            }
            (None, Some(port), _) if reach == Reach::Service => {
                let address =
                    service.cluster_ip.ok_or_else(|| format!("service \"{name}\" has no address"))?;
                group.servers.insert(SocketAddr::new(address, port.number).to_string());
                port.number
            }
            (None, Some(port), _) => {
                group.servers = self.endpoints(&name, port);
                port.number
            }
            (None, None, _) => return Err(format!("service \"{name}\" has no such port")),
        };
        if group.servers.is_empty() {
            return Err(format!("service \"{name}\" has no endpoints"));
        }
        Ok((group, port_number))
    }

    /// Addresses of a port: those that are ready, or else those that still serve while they end.
    fn endpoints(&self, service: &ObjectName, service_port: &ServicePort) -> BTreeSet<String> {
        let slices = self.slices.get(&(&*service.namespace, &*service.name));
        let of = |is_wanted: fn(&crate::cluster::object::Endpoint) -> bool| {
            let mut servers = BTreeSet::new();
            for slice in slices.into_iter().flatten() {
                let is_meant = |port: &&ServicePort| {
                    port.name == service_port.name && port.is_datagram == service_port.is_datagram
                };
                for port in slice.ports.iter().filter(is_meant) {
                    let endpoints = slice.endpoints.iter().filter(|endpoint| is_wanted(endpoint));
                    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
                    servers
                        .extend(addresses.map(|address| SocketAddr::new(*address, port.number).to_string()));
                }
            }
            servers
        };
        let ready = of(|endpoint| endpoint.ready && !endpoint.terminating);
        if ready.is_empty() { of(|endpoint| endpoint.serving) } else { ready }
    }
}
