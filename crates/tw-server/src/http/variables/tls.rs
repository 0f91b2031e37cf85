//! Variables of TLS (nginx: ngx_http_ssl_module). Missing on a plain connection.

use tw_accept::TlsInfo;
use tw_accept::ssl::RevocationStatus;
use tw_tls::Verdict;
use tw_tls::certificate::CertificateFields;
use tw_tls::names::{self, AlgorithmName};

use super::{Request, put, put_maybe};
use crate::vars::{Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[
    VarDef::one(
        "ssl_protocol",
        |r, out| of(r, out, |tls, out| put_name(out, tls.version.map(names::protocol))),
        "Version of TLS: `TLSv1.2` or `TLSv1.3`.",
    ),
    VarDef::one(
        "ssl_cipher",
        |r, out| of(r, out, |tls, out| put_name(out, tls.suite.map(names::suite))),
        "Cipher suite of the connection, by OpenSSL's name.",
    ),
    VarDef::one(
        "ssl_curve",
        |r, out| of(r, out, |tls, out| put_name(out, tls.group.map(names::group))),
        "Group of the key exchange, by OpenSSL's name.",
    ),
    VarDef::one(
        "ssl_ciphers",
        |r, out| {
            of(r, out, |tls, out| {
                names::suites(&tls.offered.suites, out);
                Value::Found
            })
        },
        "Cipher suites that the client can do.",
    ),
    VarDef::one(
        "ssl_curves",
        |r, out| {
            of(r, out, |tls, out| {
                names::groups(&tls.offered.groups, out);
                Value::Found
            })
        },
        "Groups that the client can do.",
    ),
    VarDef::one(
        "ssl_sigalgs",
        |r, out| {
            of(r, out, |tls, out| {
                names::schemes(&tls.offered.schemes, out);
                Value::Found
            })
        },
        "Schemes of signatures that the client can do.",
    ),
    VarDef::one(
        "ssl_sigalg",
        |r, out| of(r, out, |tls, out| put_name(out, tls.scheme.map(names::scheme))),
        "Scheme in which the server has signed the handshake.",
    ),
    VarDef::one(
        "ssl_client_sigalg",
        |r, out| {
            let scheme = |tls: &TlsInfo| tls.client.as_ref()?.scheme.map(names::scheme);
            of(r, out, |tls, out| put_name(out, scheme(tls)))
        },
        "Scheme in which the client has signed the handshake.",
    ),
    VarDef::one(
        "ssl_early_data",
        |r, out| of(r, out, |tls, out| put_maybe(out, tls.is_early.get().then_some(b"1"))),
        "`1` as long as the handshake is not over: what the client has sent may be a copy.",
    ),
    VarDef::one(
        "ssl_session_id",
        |r, out| {
            of(r, out, |tls, out| {
                let id = tls.id.as_deref();
                put_maybe(out, id.map(hex).as_deref())
            })
        },
        "Id of the session, in hexadecimal; TLS 1.3 has none but one that the client makes up.",
    ),
    VarDef::one(
        "ssl_server_name",
        |r, out| of(r, out, |tls, out| put_maybe(out, tls.server_name.as_deref().map(str::as_bytes))),
        "Name of the server that the client asked for in its handshake (SNI).",
    ),
    VarDef::one(
        "ssl_alpn_protocol",
        |r, out| of(r, out, |tls, out| put_maybe(out, tls.protocol.as_deref())),
        "Protocol that client and server agreed on in the handshake (ALPN).",
    ),
    VarDef::one(
        "ssl_session_reused",
        |r, out| of(r, out, |tls, out| put(out, if tls.is_resumed { b"r" } else { b"." })),
        "`r` if a session was taken up again, else `.`.",
    ),
    VarDef::one(
        "ssl_client_verify",
        verify,
        "`SUCCESS`, `FAILED:` and why, or `NONE` without a certificate of the client.",
    ),
    VarDef::one(
        "ssl_client_s_dn",
        |r, out| client(r, out, |cert| cert.subject()),
        "Whose the client's certificate is (RFC 2253).",
    ),
    VarDef::one(
        "ssl_client_i_dn",
        |r, out| client(r, out, |cert| cert.issuer()),
        "Who issued the client's certificate (RFC 2253).",
    ),
    VarDef::one(
        "ssl_client_s_dn_legacy",
        |r, out| client(r, out, |cert| cert.subject_legacy()),
        "Whose the client's certificate is, with slashes.",
    ),
    VarDef::one(
        "ssl_client_i_dn_legacy",
        |r, out| client(r, out, |cert| cert.issuer_legacy()),
        "Who issued the client's certificate, with slashes.",
    ),
    VarDef::one(
        "ssl_client_serial",
        |r, out| client(r, out, |cert| cert.serial()),
        "Serial number of the client's certificate.",
    ),
    VarDef::one(
        "ssl_client_fingerprint",
        |r, out| client(r, out, |cert| cert.fingerprint()),
        "SHA-1 fingerprint of the client's certificate.",
    ),
    VarDef::one(
        "ssl_client_v_start",
        |r, out| client(r, out, |cert| cert.not_before()),
        "When the client's certificate begins to be valid.",
    ),
    VarDef::one(
        "ssl_client_v_end",
        |r, out| client(r, out, |cert| cert.not_after()),
        "When the client's certificate ends to be valid.",
    ),
    VarDef::one(
        "ssl_client_v_remain",
        |r, out| client(r, out, |cert| cert.days_left(tw_rt::clock::unix().secs.unsigned_abs()).to_string()),
        "Days until the client's certificate ends to be valid.",
    ),
    // DIFF(nginx): nobody has a key to read them.
    VarDef::one(
        "ssl_ech_status",
        |_, _| Value::Missing,
        "Missing: what clients conceal (ECH) is not read here.",
    ),
    VarDef::one("ssl_ech_outer_server_name", |_, _| Value::Missing, "Missing, as `$ssl_ech_status`."),
    VarDef::one(
        "ssl_client_raw_cert",
        |r, out| client(r, out, |cert| cert.pem()),
        "Certificate of the client, in PEM.",
    ),
    VarDef::one(
        "ssl_client_cert",
        |r, out| client(r, out, |cert| cert.pem_tabbed()),
        "Certificate of the client, in PEM with a tab before each line but the first.",
    ),
    VarDef::one(
        "ssl_client_escaped_cert",
        |r, out| client(r, out, |cert| cert.pem_escaped()),
        "Certificate of the client, in PEM as a part of a URL.",
    ),
];

fn verify(r: &Request, out: &mut Vec<u8>) -> Value {
    of(r, out, |tls, out| match tls.client.as_ref().map(|client| (client.verdict, client.revocation)) {
        None => put(out, b"NONE"),
        Some((Verdict::Good, RevocationStatus::Good)) => put(out, b"SUCCESS"),
        Some((Verdict::Good, revocation)) => put(out, format!("FAILED:{revocation}").as_bytes()),
        Some((verdict, _)) => put(out, format!("FAILED:{verdict}").as_bytes()),
    })
}

/// Facts of the client's certificate.
fn client(r: &Request, out: &mut Vec<u8>, describe: impl FnOnce(&CertificateFields<'_>) -> String) -> Value {
    of(r, out, |tls, out| {
        let facts = tls.client.as_ref().and_then(|client| CertificateFields::of(&client.der));
        facts.map_or(Value::Missing, |facts| put(out, describe(&facts).as_bytes()))
    })
}

fn of(r: &Request, out: &mut Vec<u8>, put: impl FnOnce(&TlsInfo, &mut Vec<u8>) -> Value) -> Value {
    r.client().tls.get().map_or(Value::Missing, |tls| put(tls, out))
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

fn put_name(out: &mut Vec<u8>, name: Option<AlgorithmName>) -> Value {
    name.map_or(Value::Missing, |name| put(out, name.to_string().as_bytes()))
}
