//! Variables of a session of `stream`.

use tw_core::vars::write::{put, put_number, put_seconds};
use tw_core::vars::{Value, VarDef};
use tw_net::listen::SocketKind;

use crate::session::StreamSession;

pub(super) static VARIABLES: &[VarDef<StreamSession>] = &[
    VarDef::one(
        "server_name",
        |s, out| put(out, &s.server().settings.name),
        "First name of the server of the session.",
    ),
    VarDef::one("protocol", protocol, "Protocol of the client: `TCP` or `UDP`."),
    VarDef::one("status", status, "End of the session: 200, 400, 403, 500, 502 or 503."),
    VarDef::one("session_time", session_time, "Duration of the session in seconds with milliseconds."),
    VarDef::one("bytes_received", |s, out| put_number(out, s.received), "Bytes received from the client."),
    VarDef::one("bytes_sent", |s, out| put_number(out, s.sent), "Bytes sent to the client."),
];

fn protocol(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    match s.client.kind {
        SocketKind::Stream => put(out, b"TCP"),
        SocketKind::Datagram => put(out, b"UDP"),
    }
}

/// Three digits; `000` as long as the session goes on.
fn status(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    put(out, format!("{:03}", s.status.0).as_bytes())
}

fn session_time(s: &StreamSession, out: &mut Vec<u8>) -> Value {
    put_seconds(out, tw_rt::clock::now().saturating_duration_since(s.client.accepted))
}
