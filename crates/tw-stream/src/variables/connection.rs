//! Variables of the session and its connection.

use std::net::IpAddr;

use tw_core::session::Session;
use tw_core::vars::write::{put, put_ip, put_number, put_port, put_seconds};
use tw_core::vars::{Value, VarDef};
use tw_log::Level;
use tw_net::Addr;
use tw_net::listen::SocketKind;
use tw_net::proxy_protocol::{Addrs, Tlv};

use crate::session::StreamSession;

pub(super) static VARIABLES: &[VarDef<StreamSession>] = &[
    VarDef::one("binary_remote_addr", binary_remote_addr, "Address of the client as 4 or 16 bytes."),
    VarDef::one("remote_addr", |s, out| put(out, s.client.addr_text().as_bytes()), "Address of the client."),
    VarDef::one("remote_port", |s, out| put_port(out, port(s.client_addr())), "Port of the client."),
    VarDef::one(
        "server_name",
        |s, out| put(out, &s.server().settings.name),
        "First name of the server of the session.",
    ),
    VarDef::one("server_addr", server_addr, "Address that took the connection."),
    VarDef::one(
        "server_port",
        |s, out| put_port(out, port(s.local_addr())),
        "Port that took the connection.",
    ),
    VarDef::one("protocol", protocol, "Protocol of the client: `TCP` or `UDP`."),
    VarDef::one("connection", |s, out| put_number(out, s.client.id), "Number of the connection."),
    VarDef::one("status", status, "End of the session: 200, 400, 403, 500, 502 or 503."),
    VarDef::one("session_time", session_time, "Duration of the session in seconds with milliseconds."),
    VarDef::one("bytes_received", |s, out| put_number(out, s.received), "Bytes received from the client."),
    VarDef::one("bytes_sent", |s, out| put_number(out, s.sent), "Bytes sent to the client."),
    VarDef::one(
        "proxy_protocol_addr",
        |s, out| proxied(s, out, |a, out| put_ip(out, a.src.ip())),
        "Address of the client as the PROXY protocol told.",
    ),
    VarDef::one(
        "proxy_protocol_port",
        |s, out| proxied(s, out, |a, out| put_port(out, Some(a.src.port()))),
        "Port of the client as the PROXY protocol told.",
    ),
    VarDef::one(
        "proxy_protocol_server_addr",
        |s, out| proxied(s, out, |a, out| put_ip(out, a.dst.ip())),
        "Address the client connected to as the PROXY protocol told.",
    ),
    VarDef::one(
        "proxy_protocol_server_port",
        |s, out| proxied(s, out, |a, out| put_port(out, Some(a.dst.port()))),
        "Port the client connected to as the PROXY protocol told.",
    ),
    VarDef::family(
        "proxy_protocol_tlv_",
        proxy_protocol_tlv,
        "Value of the PROXY protocol by its name or number.",
    ),
];

fn protocol(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    match s.client.kind {
        SocketKind::Stream => put(out, b"TCP"),
        SocketKind::Datagram => put(out, b"UDP"),
    }
}

fn port(addr: &Addr) -> Option<u16> {
    addr.inet().map(|addr| addr.port())
}

fn binary_remote_addr(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    match s.client_addr().inet().map(|addr| addr.ip()) {
        Some(IpAddr::V4(ip)) => put(out, &ip.octets()),
        Some(IpAddr::V6(ip)) => put(out, &ip.octets()),
        None => put(out, s.client.addr_text().as_bytes()),
    }
}

fn server_addr(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    match s.local_addr() {
        Addr::Inet(addr) => put_ip(out, addr.ip()),
        unix @ Addr::Unix(_) => put(out, unix.to_string().as_bytes()),
    }
}

/// Three digits; `000` as long as the session goes on.
fn status(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    put(out, format!("{:03}", s.status.0).as_bytes())
}

fn session_time(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    put_seconds(out, tw_rt::clock::now().saturating_duration_since(s.client.accepted))
}

fn proxied(s: &StreamSession, out: &mut Vec<u8>, put: fn(&Addrs, &mut Vec<u8>) -> Value) -> Value {
    match s.client.proxy.get().and_then(|header| header.addrs.as_ref()) {
        Some(addrs) => put(addrs, out),
        None => Value::Missing,
    }
}

fn proxy_protocol_tlv(s: &StreamSession, name: &[u8], out: &mut Vec<u8>) -> Value {
    let Some(header) = s.client.proxy.get() else { return Value::Missing };
    let Some(tlv) = std::str::from_utf8(name).ok().and_then(Tlv::from_name) else { return Value::Missing };
    match header.tlv(tlv) {
        Ok(Some(value)) => put(out, &value),
        Ok(None) => Value::Missing,
        Err(error) => {
            s.log(Level::Error, format_args!("{error}"));
            Value::Missing
        }
    }
}
