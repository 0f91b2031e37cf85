//! Variables of the connection.

use std::io::Write as _;
use std::net::IpAddr;

use tw_http::Version;
use tw_log::Level;
use tw_net::Addr;
use tw_net::proxy_protocol::{Addrs, Tlv};

use super::{Request, put, put_ip, put_number, put_port, put_seconds};
use crate::http::request::RequestArrival;
use crate::vars::{Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[
    VarDef::one("binary_remote_addr", binary_remote_addr, "Address of the client as 4 or 16 bytes."),
    VarDef::one("remote_addr", |r, out| put(out, r.client_text().as_bytes()), "Address of the client."),
    VarDef::one("remote_port", |r, out| put_port(out, port(r.client_addr())), "Port of the client."),
    VarDef::one("server_addr", server_addr, "Address that took the connection."),
    VarDef::one(
        "server_port",
        |r, out| put_port(out, port(r.local_addr())),
        "Port that took the connection.",
    ),
    VarDef::one("scheme", |r, out| put(out, r.client().scheme().as_str().as_bytes()), "`http` or `https`."),
    VarDef::one(
        "https",
        |r, out| put(out, if r.client().scheme().is_secure() { b"on" } else { b"" }),
        "`on` on a TLS connection, else empty.",
    ),
    VarDef::one("connection", |r, out| put_number(out, r.client().id), "Number of the connection."),
    VarDef::one(
        "connection_requests",
        |r, out| put_number(out, r.client().requests.get()),
        "Requests so far on the connection.",
    ),
    VarDef::one("connection_time", connection_time, "Age of the connection in seconds with milliseconds."),
    VarDef::one("pipe", pipe, "`p` if the request was there before the last one was answered, else `.`."),
    VarDef::one(
        "tcpinfo_rtt",
        |r, out| put_tcp(out, r.wire().tcp_info().map(|tcp| tcp.rtt_us)),
        "Round-trip time in microseconds.",
    ),
    VarDef::one(
        "tcpinfo_rttvar",
        |r, out| put_tcp(out, r.wire().tcp_info().map(|tcp| tcp.rttvar_us)),
        "Deviation of the round-trip time in microseconds.",
    ),
    VarDef::one(
        "tcpinfo_snd_cwnd",
        |r, out| put_tcp(out, r.wire().tcp_info().map(|tcp| tcp.snd_cwnd)),
        "Congestion window in segments.",
    ),
    VarDef::one(
        "tcpinfo_rcv_space",
        |r, out| put_tcp(out, r.wire().tcp_info().map(|tcp| tcp.rcv_space)),
        "Receive window in bytes.",
    ),
    VarDef::one(
        "proxy_protocol_addr",
        |r, out| proxied(r, out, |a, out| put_ip(out, a.src.ip())),
        "Address of the client as the PROXY protocol told.",
    ),
    VarDef::one(
        "proxy_protocol_port",
        |r, out| proxied(r, out, |a, out| put_port(out, Some(a.src.port()))),
        "Port of the client as the PROXY protocol told.",
    ),
    VarDef::one(
        "proxy_protocol_server_addr",
        |r, out| proxied(r, out, |a, out| put_ip(out, a.dst.ip())),
        "Address the client connected to as the PROXY protocol told.",
    ),
    VarDef::one(
        "proxy_protocol_server_port",
        |r, out| proxied(r, out, |a, out| put_port(out, Some(a.dst.port()))),
        "Port the client connected to as the PROXY protocol told.",
    ),
    VarDef::family(
        "proxy_protocol_tlv_",
        proxy_protocol_tlv,
        "Value of the PROXY protocol by its name or number.",
    ),
    VarDef::one(
        "proxy_protocol_tlv_aws_vpce_id",
        |r, out| vendor(r, out, b"0xea", |value, out| Some(put(out, value.strip_prefix(&[1])?))),
        "Id of the VPC endpoint, as the load balancers of AWS tell it.",
    ),
    VarDef::one(
        "proxy_protocol_tlv_azure_pel_id",
        |r, out| {
            let id = |value: &[u8]| Some(u32::from_le_bytes(value.strip_prefix(&[1])?.try_into().ok()?));
            vendor(r, out, b"0xee", |value, out| id(value).map(|id| put_number(out, id.into())))
        },
        "Link id of the private endpoint, as Azure tells it.",
    ),
    VarDef::one(
        "proxy_protocol_tlv_gcp_conn_id",
        |r, out| {
            let id = |value: &[u8]| Some(u64::from_be_bytes(value.try_into().ok()?));
            vendor(r, out, b"0xe0", |value, out| id(value).map(|id| put_number(out, id)))
        },
        "Id of the Private Service Connect, as Google Cloud tells it.",
    ),
    VarDef::one("http2", http2, "`h2` or `h2c` for a request of HTTP/2, else empty."),
    VarDef::one("http3", not_spoken, "`h3` for a request of HTTP/3, else empty."),
];

fn http2(r: &Request, out: &mut Vec<u8>) -> Value {
    let scheme = r.client().scheme();
    match r.head.version() {
        Version::HTTP_2 if scheme.is_secure() => put(out, b"h2"),
        Version::HTTP_2 => put(out, b"h2c"),
        _ => Value::Found,
    }
}

/// No request is one of it.
fn not_spoken(_: &Request, _: &mut Vec<u8>) -> Value {
    Value::Found
}

/// Value of a cloud's load balancer in the PROXY protocol; missing if it is not in the cloud's form.
fn vendor(
    r: &Request,
    out: &mut Vec<u8>,
    name: &[u8],
    read: impl FnOnce(&[u8], &mut Vec<u8>) -> Option<Value>,
) -> Value {
    let mut value = Vec::new();
    match proxy_protocol_tlv(r, name, &mut value) {
        Value::Found => read(&value, out).unwrap_or(Value::Missing),
        Value::Missing => Value::Missing,
    }
}

fn port(addr: &Addr) -> Option<u16> {
    addr.inet().map(|addr| addr.port())
}

fn binary_remote_addr(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.client_addr().inet().map(|addr| addr.ip()) {
        Some(IpAddr::V4(ip)) => put(out, &ip.octets()),
        Some(IpAddr::V6(ip)) => put(out, &ip.octets()),
        None => put(out, r.client_text().as_bytes()),
    }
}

fn server_addr(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.local_addr() {
        Addr::Inet(addr) => put_ip(out, addr.ip()),
        unix @ Addr::Unix(_) => {
            // A Vec takes every write.
            let _ = write!(out, "{unix}");
            Value::Found
        }
    }
}

fn connection_time(r: &Request, out: &mut Vec<u8>) -> Value {
    put_seconds(out, tw_rt::clock::now().saturating_duration_since(r.client().accepted))
}

fn pipe(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.facts.started.arrival {
        RequestArrival::Pipelined => put(out, b"p"),
        RequestArrival::Awaited => put(out, b"."),
    }
}

/// Kernel data about a TCP connection, by one system call that does not wait.
fn put_tcp(out: &mut Vec<u8>, number: Option<u32>) -> Value {
    number.map_or(Value::Missing, |number| put_number(out, number.into()))
}

fn proxied(r: &Request, out: &mut Vec<u8>, put: fn(&Addrs, &mut Vec<u8>) -> Value) -> Value {
    match r.client().proxy.get().and_then(|header| header.addrs.as_ref()) {
        Some(addrs) => put(addrs, out),
        None => Value::Missing,
    }
}

fn proxy_protocol_tlv(r: &Request, name: &[u8], out: &mut Vec<u8>) -> Value {
    let Some(header) = r.client().proxy.get() else { return Value::Missing };
    let Some(tlv) = std::str::from_utf8(name).ok().and_then(Tlv::from_name) else { return Value::Missing };
    match header.tlv(tlv) {
        Ok(Some(value)) => put(out, &value),
        Ok(None) => Value::Missing,
        Err(error) => {
            r.log(Level::Error, format_args!("{error}"));
            Value::Missing
        }
    }
}
