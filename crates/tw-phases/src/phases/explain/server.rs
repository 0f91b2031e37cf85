//! Explanation of the address and the server of a request.

use tw_core::host_names::HostName;
use tw_core::server_names::ServerName;

use super::explanation::{Explanation, text};
use super::synthetic_request::speaks_tls;
use tw_request::client::Scheme;
use tw_request::generation::{ListenGroup, ServerId};
use tw_request::request::Request;

pub(super) fn explain_server(r: &Request, at: usize, scheme: Option<Scheme>, explanation: &mut Explanation) {
    let generation = r.generation();
    let group = &generation.groups[at];
    let address = &generation.groups[at].address;
    let server = generation.server(r.route.server);
    let listen = server.settings.listens.iter().find(|listen| listen.addresses.contains(address));
    let note = if group.proxy_protocol { ", behind the PROXY protocol" } else { "" };
    let protocols = protocols(r, group);
    explanation.add("listen", format!("{address}{note}{protocols}"), listen.and_then(|listen| listen.span));
    match (scheme, speaks_tls(group)) {
        (Some(Scheme::Http), true) => {
            let text = "http:// is refused here with 400 (error_page 497); what follows is for https://";
            explanation.add("", text, None);
        }
        (Some(Scheme::Https), false) => {
            explanation.add("", "the address does not speak TLS; what follows is for http://", None);
        }
        _ => {}
    }
    let host = String::from_utf8_lossy(&r.route.host);
    let name = match &*server.settings.name {
        b"" => "without a name".to_owned(),
        name => String::from_utf8_lossy(name).into_owned(),
    };
    explanation.add("server", format!("{name}: {}", why_server(r, group, &host)), Some(server.span));
}

/// Protocols that the server speaks at an address with TLS, and over QUIC at the same address and port.
fn protocols(r: &Request, group: &ListenGroup) -> String {
    let generation = r.generation();
    let server = generation.server(r.route.server);
    let is_its_quic = |other: &&ListenGroup| {
        other.is_quic() && other.address == group.address && other.members.contains(&r.route.server)
    };
    let mut spoken = Vec::new();
    match (group.ssl, group.speaks_http2(server)) {
        (true, true) => spoken.push("TLS: HTTP/2, HTTP/1.1"),
        (true, false) => spoken.push("TLS: HTTP/1.1"),
        (false, _) => {}
    }
    if server.protocols.http3 && generation.groups.iter().any(|other| is_its_quic(&other)) {
        spoken.push("QUIC: HTTP/3");
    }
    if spoken.is_empty() { String::new() } else { format!(" ({})", spoken.join("; ")) }
}

fn why_server(r: &Request, group: &ListenGroup, host: &str) -> String {
    let generation = r.generation();
    let takes =
        |id: ServerId, name: &&ServerName| name.matches(host.as_bytes()) && group.members.contains(&id);
    let name =
        generation.server(r.route.server).settings.names.iter().find(|name| takes(r.route.server, name));
    match name {
        Some(ServerName::Host(HostName::Exact(_))) if host.is_empty() => {
            "for requests without a host".to_owned()
        }
        Some(ServerName::Host(HostName::Exact(_))) => format!("server_name is \"{host}\""),
        Some(ServerName::Host(name)) => {
            format!("\"{host}\" fits server_name \"{}\"", text(&name.to_bytes()))
        }
        Some(ServerName::Regex(regex)) => {
            format!("\"{host}\" matches server_name \"~{}\"", regex.pattern())
        }
        None if group.members.len() == 1 => "the only server of the address".to_owned(),
        None => format!("no server_name fits \"{host}\", so the default server of the address answers"),
    }
}
