//! Variables of the connection that only HTTP has.

use tw_core::vars::write::{put, put_number, put_seconds};
use tw_http::Version;
use tw_net::TcpInfo;
use tw_request::request::Request;

use tw_request::request::RequestArrival;
use tw_request::vars::{Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[
    VarDef::one("scheme", |r, out| put(out, r.client().scheme().as_str().as_bytes()), "`http` or `https`."),
    VarDef::one(
        "https",
        |r, out| put(out, if r.client().scheme().is_secure() { b"on" } else { b"" }),
        "`on` on a TLS connection, else empty.",
    ),
    VarDef::one(
        "connection_requests",
        |r, out| put_number(out, r.client().requests.get()),
        "Requests so far on the connection.",
    ),
    VarDef::one("connection_time", connection_time, "Age of the connection in seconds with milliseconds."),
    VarDef::one("pipe", pipe, "`p` if the request was there before the last one was answered, else `.`."),
    VarDef::one(
        "tcpinfo_rtt",
        |r, out| put_tcp(out, tcp_info(r).map(|tcp| tcp.rtt_us)),
        "Round-trip time in microseconds.",
    ),
    VarDef::one(
        "tcpinfo_rttvar",
        |r, out| put_tcp(out, tcp_info(r).map(|tcp| tcp.rttvar_us)),
        "Deviation of the round-trip time in microseconds.",
    ),
    VarDef::one(
        "tcpinfo_snd_cwnd",
        |r, out| put_tcp(out, tcp_info(r).map(|tcp| tcp.snd_cwnd)),
        "Congestion window in segments.",
    ),
    VarDef::one(
        "tcpinfo_rcv_space",
        |r, out| put_tcp(out, tcp_info(r).map(|tcp| tcp.rcv_space)),
        "Receive window in bytes.",
    ),
    VarDef::one("http2", http2, "`h2` or `h2c` for a request of HTTP/2, else empty."),
    VarDef::one(
        "http3",
        http3,
        "`h3` for a request of HTTP/3, `hq` for one of HTTP/0.9 over QUIC, else empty.",
    ),
];

fn http2(r: &Request, out: &mut Vec<u8>) -> Value {
    let scheme = r.client().scheme();
    match r.head.version() {
        Version::HTTP_2 if scheme.is_secure() => put(out, b"h2"),
        Version::HTTP_2 => put(out, b"h2c"),
        _ => Value::Found,
    }
}

fn http3(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.head.version() {
        Version::HTTP_3 => put(out, b"h3"),
        _ if r.client().speaks_hq() => put(out, b"hq"),
        _ => Value::Found,
    }
}

fn connection_time(r: &Request, out: &mut Vec<u8>) -> Value {
    put_seconds(out, tw_rt::clock::now().saturating_duration_since(r.client().accepted))
}

fn pipe(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.context.started.arrival {
        RequestArrival::Pipelined => put(out, b"p"),
        RequestArrival::Awaited => put(out, b"."),
    }
}

/// Kernel data about the TCP connection of the client, by one system call that does not wait.
fn tcp_info(r: &Request) -> Option<TcpInfo> {
    r.wire().get()?.tcp_info()
}

fn put_tcp(out: &mut Vec<u8>, number: Option<u32>) -> Value {
    number.map_or(Value::Missing, |number| put_number(out, number.into()))
}
