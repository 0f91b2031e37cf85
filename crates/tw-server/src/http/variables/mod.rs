//! Variables of the core (nginx: ngx_http_core_module), in six files by subject. Those that other protocols have, too, are in
//! `tw-core` (connection, time, process), `tw-tls-settings` (TLS) and `tw-connect` (upstream servers).
//!
//! Found or missing matters: an access log writes a missing value as `-`, an empty one as nothing. Nothing here waits, and
//! nothing allocates but the output as it grows.

mod client;
mod connection;
mod fields;
mod process;
mod response;
mod tls;
mod upstream;

use tw_connect::UpstreamVariables;
use tw_core::vars::SessionVariables;
use tw_tls_settings::TlsVariables;

use tw_request::request::Request;
use tw_request::vars::VarDef;

pub use client::basic_user;

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

#[cfg(test)]
mod tests;
