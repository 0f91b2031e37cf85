//! Variables that sessions of every protocol have: the connection of the client, time, this process and this host (nginx:
//! ngx_http_core_module, ngx_stream_core_module, ngx_stream_proxy_protocol_vendor_module).

use std::io::Write as _;
use std::marker::PhantomData;
use std::net::IpAddr;

use tw_log::{Level, time};
use tw_net::Addr;
use tw_net::proxy_protocol::{Addrs, Header, Tlv};
use tw_rt::clock;

use super::write::{put, put_decimals, put_ip, put_number, put_port};
use super::{LOCAL_ADDR, Value, VarDef};
use crate::NGINX_VERSION;
use crate::session::Session;

/// A session of a client that is served by a loop.
pub trait ServedSession: Session {
    /// Index of the loop.
    fn loop_index(&self) -> usize;

    /// Name of this host, as the configuration has it.
    fn hostname(&self) -> &[u8];

    /// Number of the client's connection.
    fn connection_id(&self) -> u64;

    /// The client's address as text without port, as trusted proxies tell it.
    fn client_text(&self) -> &str;

    /// Address that the client connected to. May cost one system call. Behind the end of the connection, it is the listening address
    /// unless a variable of the configuration needs it ([`LOCAL_ADDR`]).
    fn local_addr(&self) -> &Addr;

    /// PROXY protocol header of the connection.
    fn proxy_header(&self) -> Option<&Header>;
}

/// A session whose client a trusted proxy may name.
pub trait ProxiedSession: ServedSession {
    /// Address of the connection's other end, whatever a proxy says.
    fn peer(&self) -> &Addr;

    /// Address of the other end as text, without port.
    fn peer_text(&self) -> &str;

    /// Takes `addr`, which a trusted proxy has named, as the address of the client. Only the first one counts.
    fn set_client_addr(&self, addr: Addr);
}

/// Variables of the sessions of one protocol that those of every protocol have.
pub struct SessionVariables<S>(PhantomData<S>);

impl<S: ServedSession> SessionVariables<S> {
    /// The variables.
    pub const ALL: &'static [VarDef<S>] = &[
        VarDef::one("binary_remote_addr", binary_remote_addr, "Address of the client as 4 or 16 bytes."),
        VarDef::one("remote_addr", |s, out| put(out, s.client_text().as_bytes()), "Address of the client."),
        VarDef::one("remote_port", |s, out| put_port(out, port(s.client_addr())), "Port of the client."),
        VarDef::<S>::one("server_addr", server_addr, "Address that took the connection.")
            .prepared(LOCAL_ADDR),
        VarDef::<S>::one(
            "server_port",
            |s, out| put_port(out, port(s.local_addr())),
            "Port that took the connection.",
        )
        .prepared(LOCAL_ADDR),
        VarDef::one("connection", |s, out| put_number(out, s.connection_id()), "Number of the connection."),
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
        VarDef::one(
            "proxy_protocol_tlv_aws_vpce_id",
            |s, out| vendor(s, out, b"0xea", |value, out| Some(put(out, value.strip_prefix(&[1])?))),
            "Id of the VPC endpoint, as the load balancers of AWS tell it.",
        ),
        VarDef::one(
            "proxy_protocol_tlv_azure_pel_id",
            |s, out| {
                let id = |value: &[u8]| Some(u32::from_le_bytes(value.strip_prefix(&[1])?.try_into().ok()?));
                vendor(s, out, b"0xee", |value, out| id(value).map(|id| put_number(out, id.into())))
            },
            "Link id of the private endpoint, as Azure tells it.",
        ),
        VarDef::one(
            "proxy_protocol_tlv_gcp_conn_id",
            |s, out| {
                let id = |value: &[u8]| Some(u64::from_be_bytes(value.try_into().ok()?));
                vendor(s, out, b"0xe0", |value, out| id(value).map(|id| put_number(out, id)))
            },
            "Id of the Private Service Connect, as Google Cloud tells it.",
        ),
        VarDef::one("msec", msec, "Time in seconds with milliseconds."),
        VarDef::one(
            "time_local",
            |_, out| put(out, &time::time_local(clock::unix().secs)),
            "Time as `20/Nov/2026:11:00:00 +0000`.",
        ),
        VarDef::one(
            "time_iso8601",
            |_, out| put(out, &time::time_iso8601(clock::unix().secs)),
            "Time as `2026-11-20T11:00:00+00:00`.",
        ),
        VarDef::one("time_iso8601_ms", time_iso8601_ms, "Time as `2026-11-20T11:00:00.000+00:00`."),
        VarDef::one(
            "pid",
            |_, out| put_number(out, std::process::id().into()),
            "Number of the worker process.",
        ),
        VarDef::one(
            "worker",
            |s, out| put_number(out, s.loop_index() as u64),
            "Number of the loop that serves the client, from 0.",
        ),
        VarDef::one("hostname", |s, out| put(out, s.hostname()), "Name of this host."),
        VarDef::one(
            "nginx_version",
            |_, out| put(out, NGINX_VERSION.as_bytes()),
            "Version of nginx whose configuration is understood.",
        ),
    ];
}

fn port(addr: &Addr) -> Option<u16> {
    addr.inet().map(|addr| addr.port())
}

fn binary_remote_addr<S: ServedSession>(s: &S, out: &mut Vec<u8>) -> Value {
    match s.client_addr().inet().map(|addr| addr.ip()) {
        Some(IpAddr::V4(ip)) => put(out, &ip.octets()),
        Some(IpAddr::V6(ip)) => put(out, &ip.octets()),
        None => put(out, s.client_text().as_bytes()),
    }
}

fn server_addr<S: ServedSession>(s: &S, out: &mut Vec<u8>) -> Value {
    match s.local_addr() {
        Addr::Inet(addr) => put_ip(out, addr.ip()),
        unix @ Addr::Unix(_) => {
            // A Vec takes every write.
            let _ = write!(out, "{unix}");
            Value::Found
        }
    }
}

fn proxied<S: ServedSession>(s: &S, out: &mut Vec<u8>, put: fn(&Addrs, &mut Vec<u8>) -> Value) -> Value {
    match s.proxy_header().and_then(|header| header.addrs.as_ref()) {
        Some(addrs) => put(addrs, out),
        None => Value::Missing,
    }
}

fn proxy_protocol_tlv<S: ServedSession>(s: &S, name: &[u8], out: &mut Vec<u8>) -> Value {
    let Some(header) = s.proxy_header() else { return Value::Missing };
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

/// Value of a cloud's load balancer in the PROXY protocol; missing if it is not in the cloud's form.
fn vendor<S: ServedSession>(
    s: &S,
    out: &mut Vec<u8>,
    name: &[u8],
    read: impl FnOnce(&[u8], &mut Vec<u8>) -> Option<Value>,
) -> Value {
    let mut value = Vec::new();
    match proxy_protocol_tlv(s, name, &mut value) {
        Value::Found => read(&value, out).unwrap_or(Value::Missing),
        Value::Missing => Value::Missing,
    }
}

fn msec<S>(_: &S, out: &mut Vec<u8>) -> Value {
    let now = clock::unix();
    put_number(out, now.secs.unsigned_abs());
    put_decimals(out, now.msec.into(), 100)
}

fn time_iso8601_ms<S>(_: &S, out: &mut Vec<u8>) -> Value {
    let now = clock::unix();
    let text = time::time_iso8601(now.secs);
    let (time, zone) = text.split_at(b"2026-11-20T11:00:00".len());
    out.extend_from_slice(time);
    put_decimals(out, now.msec.into(), 100);
    put(out, zone)
}
