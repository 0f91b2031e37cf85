//! Variables of the core (nginx: ngx_http_core_module), in six files by subject. Those that other protocols have, too, are in
//! `tw-core` (connection, time, process), `tw-tls-settings` (TLS) and `tw-connect` (upstream servers).
//!
//! Found or missing matters: an access log writes a missing value as `-`, an empty one as nothing. Nothing here waits, and
//! nothing allocates but the output as it grows.

mod client;
mod connection;
mod process;
mod response;
mod tls;
mod upstream;

use tw_connect::UpstreamVariables;
use tw_core::vars::SessionVariables;
use tw_core::vars::write::{put, put_decimals, put_maybe, put_number, put_port, put_seconds, put_some};
use tw_tls_settings::TlsVariables;

use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

pub use super::random_id::random_id;
pub use client::basic_user;
pub use tw_request::cookie::find_cookie;

/// All variables of the core.
pub static VARIABLES: [&[VarDef]; 9] = [
    SessionVariables::<Request>::ALL,
    client::VARIABLES,
    connection::VARIABLES,
    TlsVariables::<Request>::ALL,
    tls::VARIABLES,
    response::VARIABLES,
    process::VARIABLES,
    UpstreamVariables::<Request>::ALL,
    upstream::VARIABLES,
];

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
