//! Variables of `mail`; nginx has none. Those of other protocols, too, are in `tw-core` (connection, time, process) and `tw-accept` (TLS).
//! Nothing here waits.

use tw_core::vars::write::{put, put_number, put_seconds, put_some};
use tw_core::vars::{SessionVariables, VarDef};
use tw_tls_settings::TlsVariables;

use crate::session::MailSession;

/// All variables of the core.
pub static VARIABLES: [&[VarDef<MailSession>]; 3] =
    [SessionVariables::<MailSession>::ALL, TlsVariables::<MailSession>::ALL, OWN];

const OWN: &[VarDef<MailSession>] = &[
    VarDef::one("server_name", |s, out| put(out, &s.server().settings.name), "Name of the server."),
    VarDef::one(
        "protocol",
        |s, out| put(out, s.server().protocol.name().as_bytes()),
        "Protocol of the server: `imap`, `pop3` or `smtp`.",
    ),
    VarDef::one(
        "mail_user",
        |s, out| put_some(out, &s.user),
        "Name of the user, as the client or the auth server has sent it last.",
    ),
    VarDef::one(
        "mail_auth_method",
        |s, out| put_some(out, s.method.map_or(&b""[..], |method| method.name().as_bytes())),
        "Method of the last login, as the auth server gets it.",
    ),
    VarDef::one(
        "mail_login_attempts",
        |s, out| put_number(out, s.attempts.into()),
        "Logins that the auth server was asked about.",
    ),
    VarDef::one(
        "mail_client_host",
        |s, out| put_some(out, &s.host),
        "Name of the client's host, for SMTP with `resolver`.",
    ),
    VarDef::one(
        "status",
        |s, out| put(out, format!("{:03}", s.status.code()).as_bytes()),
        "End of the session: 200 after a login, 400 without one, 401 refused, 403 denied or limited, 500 if this server failed, 502 if the auth server or the mail server did.",
    ),
    VarDef::one(
        "session_time",
        |s, out| put_seconds(out, tw_rt::clock::now().saturating_duration_since(s.client.accepted)),
        "Duration of the session in seconds with milliseconds.",
    ),
    VarDef::one("bytes_received", |s, out| put_number(out, s.received), "Bytes received from the client."),
    VarDef::one("bytes_sent", |s, out| put_number(out, s.sent), "Bytes sent to the client."),
    VarDef::one(
        "upstream_addr",
        |s, out| put_some(out, s.upstream.as_bytes()),
        "Address of the mail server.",
    ),
];
