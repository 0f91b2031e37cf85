//! The variables of the request itself (nginx: ngx_http_core_module).

use tw_http::Known;

use super::request::Request;
use crate::vars::{Value, VarDef};

/// All variables of the core.
pub static VARIABLES: &[VarDef] = &[
    VarDef::one("uri", |r, out| put(out, &r.uri.path), "Current path, normalised."),
    VarDef::one("args", |r, out| put_some(out, &r.uri.args), "Arguments of the current URI."),
    VarDef::one("request_uri", |r, out| put(out, r.head.target()), "URI as the client sent it."),
    VarDef::one("host", host, "Host of the request, else the server's name."),
    VarDef::family("http_", http, "Any field of the request; dashes as underscores."),
];

fn put(out: &mut Vec<u8>, value: &[u8]) -> Value {
    out.extend_from_slice(value);
    Value::Found
}

fn put_some(out: &mut Vec<u8>, value: &[u8]) -> Value {
    if value.is_empty() { Value::Missing } else { put(out, value) }
}

fn host(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.host.as_slice() {
        b"" => put(out, &r.generation().server(r.server).settings.name),
        host => put(out, host),
    }
}

fn http(r: &Request, suffix: &[u8], out: &mut Vec<u8>) -> Value {
    let name: Vec<u8> = suffix.iter().map(|b| if *b == b'_' { b'-' } else { *b }).collect();
    let mut found = Value::Missing;
    let separator: &[u8] = if Known::find(&name) == Some(Known::Cookie) { b"; " } else { b", " };
    for value in r.head.field_all(&name) {
        if found == Value::Found {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(value);
        found = Value::Found;
    }
    found
}
