//! Variables of the core (nginx: ngx_http_core_module), in six files by subject.
//!
//! Found or missing matters: an access log writes a missing value as `-`, an empty one as nothing. Nothing here waits, and
//! nothing allocates but the output as it grows.

mod client;
mod connection;
mod process;
mod response;
mod tls;
mod upstream;

use std::time::Duration;

use tw_http::num;

use crate::http::request::Request;
use crate::vars::{Value, VarDef};

pub use super::random_id::random_id;
pub use client::{basic_user, find_cookie};

/// All variables of the core.
pub static VARIABLES: [&[VarDef]; 6] = [
    client::VARIABLES,
    connection::VARIABLES,
    tls::VARIABLES,
    response::VARIABLES,
    process::VARIABLES,
    upstream::VARIABLES,
];

fn put(out: &mut Vec<u8>, value: &[u8]) -> Value {
    out.extend_from_slice(value);
    Value::Found
}

/// A value that is missing when it is empty.
fn put_some(out: &mut Vec<u8>, value: &[u8]) -> Value {
    if value.is_empty() { Value::Missing } else { put(out, value) }
}

/// A value that may be missing.
fn put_maybe(out: &mut Vec<u8>, value: Option<&[u8]>) -> Value {
    value.map_or(Value::Missing, |value| put(out, value))
}

fn put_number(out: &mut Vec<u8>, number: u64) -> Value {
    num::push_decimal(out, number);
    Value::Found
}

/// A port; 0 is none and written as nothing.
fn put_port(out: &mut Vec<u8>, port: Option<u16>) -> Value {
    match port {
        None | Some(0) => Value::Found,
        Some(port) => put_number(out, port.into()),
    }
}

/// Seconds with milliseconds.
fn put_seconds(out: &mut Vec<u8>, span: Duration) -> Value {
    num::push_decimal(out, span.as_secs());
    put_decimals(out, span.subsec_millis(), 100)
}

/// Decimals of a number; `first` is the weight of the first one.
fn put_decimals(out: &mut Vec<u8>, mut rest: u32, mut first: u32) -> Value {
    out.push(b'.');
    while first > 0 {
        out.push(b'0' + (rest / first) as u8);
        rest %= first;
        first /= 10;
    }
    Value::Found
}

/// All values of the fields whose name is `name`, which is in lower case with underscores for dashes.
fn put_fields<'a>(
    out: &mut Vec<u8>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    name: &[u8],
) -> Value {
    put_joined(out, fields.filter(|(field, _)| is_named(field, name)).map(|(_, value)| value), b", ")
}

/// All values with a separator between them.
fn put_joined<'a>(out: &mut Vec<u8>, mut values: impl Iterator<Item = &'a [u8]>, separator: &[u8]) -> Value {
    let Some(first) = values.next() else { return Value::Missing };
    out.extend_from_slice(first);
    for value in values {
        out.extend_from_slice(separator);
        out.extend_from_slice(value);
    }
    Value::Found
}

/// Returns true if a field has this name as variables write it.
fn is_named(field: &[u8], name: &[u8]) -> bool {
    let folded = |byte: &u8| if *byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    field.len() == name.len() && field.iter().zip(name).all(|(field, name)| folded(field) == *name)
}

#[cfg(test)]
mod tests;
