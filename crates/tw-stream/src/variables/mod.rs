//! Variables of the core (nginx: ngx_stream_core_module, ngx_stream_upstream_module). Those that other protocols have, too, are in
//! `tw-core` (connection, time, process), `tw-tls-settings` (TLS) and `tw-connect` (upstream servers).
//!
//! Found or missing matters: an access log writes a missing value as `-`, an empty one as nothing. Nothing here waits.

mod session;
mod upstream;

use tw_connect::UpstreamVariables;
use tw_core::vars::{SessionVariables, VarDef};
use tw_tls_settings::TlsVariables;

use crate::session::StreamSession;

/// All variables of the core.
pub static VARIABLES: [&[VarDef<StreamSession>]; 5] = [
    SessionVariables::<StreamSession>::ALL,
    session::VARIABLES,
    TlsVariables::<StreamSession>::ALL,
    UpstreamVariables::<StreamSession>::ALL,
    upstream::VARIABLES,
];
