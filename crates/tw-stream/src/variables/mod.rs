//! Variables of the core (nginx: ngx_stream_core_module, ngx_stream_upstream_module), in three files by subject; those of TLS are in `tw-accept`.
//!
//! Found or missing matters: an access log writes a missing value as `-`, an empty one as nothing. Nothing here waits.

mod connection;
mod process;
mod upstream;

use tw_accept::ssl::TlsVariables;
use tw_core::vars::VarDef;

use crate::session::StreamSession;

/// All variables of the core.
pub static VARIABLES: [&[VarDef<StreamSession>]; 4] =
    [connection::VARIABLES, TlsVariables::<StreamSession>::ALL, process::VARIABLES, upstream::VARIABLES];
