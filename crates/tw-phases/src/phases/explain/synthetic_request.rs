//! Synthetic request: its listening address, its head, and its server.

use std::net::IpAddr;
use std::rc::Rc;

use tw_accept::find_destination;
use tw_core::host_names::HostName;
use tw_core::server_names::ServerName;
use tw_http::Progress;

use super::explanation::{DetailedExplanation, RequestToExplain};
use crate::start;
use tw_request::generation::{GenerationRef, ListenGroup};
use tw_request::request::Request;
use tw_request::request_body::RequestBody;

/// A request for a path alone, with the host and port of the default server of the first address. If there is one server, that is it.
pub(super) fn at_default_server(
    generation: &GenerationRef,
    request: &RequestToExplain,
) -> Option<RequestToExplain> {
    let mut groups = generation.groups.iter().filter(|group| !group.is_quic());
    let (group, address) = groups.find_map(|group| Some((group, group.address.inet()?)))?;
    let server = generation.server(group.default_server);
    let exact = server.settings.names.iter().find_map(|name| match name {
        ServerName::Host(host @ HostName::Exact(_)) => Some(host.to_bytes().to_vec()),
        ServerName::Host(_) | ServerName::Regex(_) => None,
    });
    let host = match address.ip() {
        ip if ip.is_unspecified() => b"localhost".to_vec(),
        IpAddr::V4(ip) => ip.to_string().into_bytes(),
        IpAddr::V6(ip) => format!("[{ip}]").into_bytes(),
    };
    let host = exact.filter(|name| !name.is_empty()).unwrap_or(host);
    Some(RequestToExplain { host, port: Some(address.port()), ..request.clone() })
}

/// Port of the first address with a server whose name fits `host`, else of the first address. `None` if no address has a port.
pub(super) fn port_of_host(generation: &GenerationRef, host: &[u8]) -> Option<u16> {
    let has_name = |group: &&ListenGroup| {
        let names = group.members.iter().flat_map(|server| &generation.server(*server).settings.names);
        names.into_iter().any(|name| name.matches(host))
    };
    let inet: Vec<_> = generation.groups.iter().filter(|group| group.address.inet().is_some()).collect();
    let group = inet.iter().copied().find(has_name).or(inet.first().copied());
    group.and_then(|group| group.address.inet()).map(|address| address.port())
}

/// Index of the listening address that a client comes to: over TCP, with which clients begin, else over QUIC.
pub(super) fn find_group(groups: &[ListenGroup], host: &[u8], port: u16) -> Option<usize> {
    let find = |is_quic: bool| {
        let of_kind: Vec<_> =
            groups.iter().enumerate().filter(|(_, group)| group.is_quic() == is_quic).collect();
        let addresses = of_kind.iter().map(|(_, group)| &group.address);
        let position = find_destination(addresses, host, port)?;
        of_kind.get(position).map(|(at, _)| *at)
    };
    find(false).or_else(|| find(true))
}

pub(super) fn speaks_tls(group: &ListenGroup) -> bool {
    group.ssl || group.is_quic()
}

/// Makes the head and reads it as it would be read from a socket.
pub(super) fn read(r: &mut Request, at: usize, request: &RequestToExplain, port: u16) -> Result<(), String> {
    let generation = r.generation().clone();
    let group = &generation.groups[at];
    r.route.server = group.default_server;
    let port = match port {
        port if port == r.client().scheme().default_port() => String::new(),
        port => format!(":{port}"),
    };
    let mut head = [&*request.method, b" ", &request.target, b" HTTP/1.1\r\nHost: ", &request.host].concat();
    head.extend_from_slice(port.as_bytes());
    head.extend_from_slice(b"\r\nConnection: close\r\n");
    for (name, value) in &request.fields {
        head.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    r.head.push(&head);
    let limits = generation.server(r.route.server).settings.head;
    match r.head.parse(&limits) {
        Ok(Progress::Complete) => {
            if !request.body.is_empty() {
                r.body = RequestBody::of_bytes(request.body.clone().into());
            }
            if request.is_detailed {
                r.extensions.put(Rc::new(DetailedExplanation));
            }
            start::choose_server(r, group);
            Ok(())
        }
        Ok(Progress::NeedMore) => Err("the URL is not one line".to_owned()),
        Err(error) => {
            let text = r.head.error_text(error);
            let status = error.status();
            Err(format!("such a request is refused with {status}: {text}"))
        }
    }
}
