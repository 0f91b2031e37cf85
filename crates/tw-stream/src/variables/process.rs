//! Time, this process and this host.

use tw_core::NGINX_VERSION;
use tw_core::vars::write::{put, put_decimals, put_number};
use tw_core::vars::{Value, VarDef};
use tw_log::time;
use tw_rt::clock;

use crate::session::StreamSession;

pub(super) static VARIABLES: &[VarDef<StreamSession>] = &[
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
    VarDef::one("pid", |_, out| put_number(out, std::process::id().into()), "Number of the worker process."),
    VarDef::one(
        "worker",
        |s, out| put_number(out, s.client.home.index as u64),
        "Number of the loop that serves the session, from 0.",
    ),
    VarDef::one("hostname", |s, out| put(out, &s.client.generation.hostname), "Name of this host."),
    VarDef::one(
        "nginx_version",
        |_, out| put(out, NGINX_VERSION.as_bytes()),
        "Version of nginx whose configuration is understood.",
    ),
];

fn msec(_: &StreamSession, out: &mut Vec<u8>) -> Value {
    let now = clock::unix();
    put_number(out, now.secs.unsigned_abs());
    put_decimals(out, now.msec.into(), 100)
}
