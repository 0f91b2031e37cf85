//! The request and its server, where files are, and what the disk cost.

use std::time::Duration;
use tw_core::vars::write::{put, put_decimals, put_maybe, put_seconds};
use tw_request::request::Request;

use tw_http::num;

use super::client::current_path;
use tw_request::vars::{self, Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[
    VarDef::one(
        "request_time",
        |r, out| put_seconds(out, r.elapsed()),
        "Seconds since the request's first byte, with milliseconds.",
    ),
    VarDef::one("request_id", request_id, "16 random bytes of this request, in hexadecimal."),
    VarDef::one(
        "server_name",
        |r, out| put(out, &r.generation().server(r.route.server).settings.name),
        "First name of the server.",
    ),
    VarDef::one("document_root", document_root, "`root` or `alias` of the location."),
    VarDef::one(
        "realpath_root",
        |r, out| put_maybe(out, r.route.realpath_root.as_deref()),
        "The same without symbolic links.",
    )
    .prepared(vars::REALPATH_ROOT),
    VarDef::one("request_filename", request_filename, "File that the current URI names."),
    VarDef::one(
        "disk_wait_time",
        |r, out| put_micros(out, r.costs.account.wait()),
        "Seconds the request waited for the disk, with microseconds.",
    ),
    VarDef::one(
        "disk_queue_time",
        |r, out| put_micros(out, r.costs.account.queue()),
        "The part of $disk_wait_time before a thread was free.",
    ),
    VarDef::one("disk_inline", disk_inline, "`1` if the request never waited for the disk, else `0`."),
];

fn request_id(r: &Request, out: &mut Vec<u8>) -> Value {
    num::push_hex(&r.id(), out);
    Value::Found
}

fn document_root(r: &Request, out: &mut Vec<u8>) -> Value {
    r.plan().core.root.path.eval(r, out);
    Value::Found
}

fn request_filename(r: &Request, out: &mut Vec<u8>) -> Value {
    r.append_filename(current_path(r), out);
    Value::Found
}

fn disk_inline(r: &Request, out: &mut Vec<u8>) -> Value {
    put(out, if r.costs.account.is_inline() { b"1" } else { b"0" })
}

/// Seconds with microseconds.
fn put_micros(out: &mut Vec<u8>, span: Duration) -> Value {
    num::push_decimal(out, span.as_secs());
    put_decimals(out, span.subsec_micros(), 100_000)
}
