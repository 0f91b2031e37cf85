//! `$upstream_*`: the servers that a session was passed to. One value for each, commas between.

use std::time::Duration;

use tw_core::vars::write::{put, put_number, put_seconds};
use tw_core::vars::{Value, VarDef};

use crate::proxy::upstream_state::Attempt;
use crate::session::StreamSession;

pub(super) static VARIABLES: &[VarDef<StreamSession>] = &[
    VarDef::one(
        "upstream_addr",
        |s, out| each(s, out, |attempt, out| put(out, attempt.address().as_bytes())),
        "Addresses of the upstream servers that were tried.",
    ),
    VarDef::one(
        "upstream_connect_time",
        |s, out| each(s, out, |attempt, out| put_span(out, attempt.connected)),
        "Seconds until a connection to them was there.",
    ),
    VarDef::one(
        "upstream_first_byte_time",
        |s, out| each(s, out, |attempt, out| put_span(out, attempt.first_byte)),
        "Seconds until their first byte was there.",
    ),
    VarDef::one(
        "upstream_session_time",
        |s, out| each(s, out, |attempt, out| put_span(out, attempt.ended)),
        "Seconds until the sessions with them were over.",
    ),
    VarDef::one(
        "upstream_bytes_received",
        |s, out| each(s, out, |attempt, out| put_number(out, attempt.received)),
        "Bytes that they have sent.",
    ),
    VarDef::one(
        "upstream_bytes_sent",
        |s, out| each(s, out, |attempt, out| put_number(out, attempt.sent)),
        "Bytes that were sent to them.",
    ),
];

fn put_span(out: &mut Vec<u8>, span: Option<Duration>) -> Value {
    span.map_or(Value::Missing, |span| put_seconds(out, span))
}

fn each(s: &StreamSession, out: &mut Vec<u8>, put_one: impl Fn(&Attempt, &mut Vec<u8>) -> Value) -> Value {
    let attempts = s.upstream.as_ref().map_or(&[][..], |upstream| &upstream.attempts);
    for (at, attempt) in attempts.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(b", ");
        }
        if put_one(attempt, out) == Value::Missing {
            out.push(b'-');
        }
    }
    if attempts.is_empty() { Value::Missing } else { Value::Found }
}
