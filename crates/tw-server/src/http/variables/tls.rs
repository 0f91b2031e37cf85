//! Variables of TLS that only HTTP has (nginx: ngx_http_ssl_module). Those of every protocol are
//! [`TlsVariables`](tw_tls_settings::TlsVariables).

use tw_core::vars::write::put_maybe;
use tw_tls_settings::TlsSession;

use tw_request::vars::{Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[VarDef::one(
    "ssl_early_data",
    |r, out| {
        let is_early = r.tls().is_some_and(|tls| tls.is_early.get());
        if is_early { put_maybe(out, Some(b"1")) } else { Value::Missing }
    },
    "`1` as long as the handshake is not over: what the client has sent may be a copy.",
)];
