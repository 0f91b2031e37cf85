//! Variables of TLS (nginx: ngx_http_ssl_module, ngx_stream_ssl_module). Missing on a plain connection.

use std::marker::PhantomData;

use tw_core::vars::write::{put, put_maybe};
use tw_core::vars::{CLIENT_HELLO, Value, VarDef};
use tw_tls::certificate::CertificateFields;
use tw_tls::names::{self, AlgorithmName};
use tw_tls::{Fingerprint, Verdict};

use crate::ocsp::client_ocsp::RevocationStatus;
use crate::tls_info::{TlsInfo, TlsSession};

/// Variables of TLS for the sessions of one protocol.
pub struct TlsVariables<S>(PhantomData<S>);

impl<S: TlsSession> TlsVariables<S> {
    /// The variables.
    pub const ALL: &'static [VarDef<S>] = &[
        VarDef::one(
            "ssl_protocol",
            |s, out| of(s, out, |tls, out| put_name(out, tls.version.map(names::protocol))),
            "Version of TLS: `TLSv1.2` or `TLSv1.3`.",
        ),
        VarDef::one(
            "ssl_cipher",
            |s, out| of(s, out, |tls, out| put_name(out, tls.suite.map(names::suite))),
            "Cipher suite of the connection, by OpenSSL's name.",
        ),
        VarDef::one(
            "ssl_curve",
            |s, out| of(s, out, |tls, out| put_name(out, tls.group.map(names::group))),
            "Group of the key exchange, by OpenSSL's name.",
        ),
        VarDef::one(
            "ssl_ciphers",
            |s, out| {
                of(s, out, |tls, out| {
                    names::suites(&tls.offered.suites, out);
                    Value::Found
                })
            },
            "Cipher suites that the client can do.",
        ),
        VarDef::one(
            "ssl_curves",
            |s, out| {
                of(s, out, |tls, out| {
                    names::groups(&tls.offered.groups, out);
                    Value::Found
                })
            },
            "Groups that the client can do.",
        ),
        VarDef::one(
            "ssl_sigalgs",
            |s, out| {
                of(s, out, |tls, out| {
                    names::schemes(&tls.offered.schemes, out);
                    Value::Found
                })
            },
            "Schemes of signatures that the client can do.",
        ),
        VarDef::one(
            "ssl_ja3",
            |s, out| fingerprint(s, out, |fingerprint, out| put(out, fingerprint.ja3.as_bytes())),
            "JA3 of the client hello: version, cipher suites, extensions, groups and formats of points.",
        )
        .prepared(CLIENT_HELLO),
        VarDef::one(
            "ssl_ja3_hash",
            |s, out| fingerprint(s, out, |fingerprint, out| put(out, fingerprint.ja3_hash().as_bytes())),
            "MD5 of `$ssl_ja3`.",
        )
        .prepared(CLIENT_HELLO),
        VarDef::one(
            "ssl_ja4",
            |s, out| fingerprint(s, out, |fingerprint, out| put(out, fingerprint.ja4.as_bytes())),
            "JA4 of the client hello.",
        )
        .prepared(CLIENT_HELLO),
        VarDef::one(
            "ssl_sigalg",
            |s, out| of(s, out, |tls, out| put_name(out, tls.scheme.map(names::scheme))),
            "Scheme in which the server has signed the handshake.",
        ),
        VarDef::one(
            "ssl_client_sigalg",
            |s, out| {
                let scheme = |tls: &TlsInfo| tls.client.as_ref()?.scheme.map(names::scheme);
                of(s, out, |tls, out| put_name(out, scheme(tls)))
            },
            "Scheme in which the client has signed the handshake.",
        ),
        VarDef::one(
            "ssl_session_id",
            |s, out| {
                of(s, out, |tls, out| {
                    let id = tls.id.as_deref();
                    put_maybe(out, id.map(hex).as_deref())
                })
            },
            "Id of the session, in hexadecimal; TLS 1.3 has none but one that the client makes up.",
        ),
        VarDef::one(
            "ssl_server_name",
            |s, out| of(s, out, |tls, out| put_maybe(out, tls.server_name.as_deref().map(str::as_bytes))),
            "Name of the server that the client asked for in its handshake (SNI).",
        ),
        VarDef::one(
            "ssl_alpn_protocol",
            |s, out| of(s, out, |tls, out| put_maybe(out, tls.protocol.as_deref())),
            "Protocol that client and server agreed on in the handshake (ALPN).",
        ),
        VarDef::one(
            "ssl_session_reused",
            |s, out| of(s, out, |tls, out| put(out, if tls.is_resumed { b"r" } else { b"." })),
            "`r` if a session was taken up again, else `.`.",
        ),
        VarDef::one(
            "ssl_client_verify",
            verify,
            "`SUCCESS`, `FAILED:` and why, or `NONE` without a certificate of the client.",
        ),
        VarDef::one(
            "ssl_client_s_dn",
            |s, out| client(s, out, |cert| cert.subject()),
            "Whose the client's certificate is (RFC 2253).",
        ),
        VarDef::one(
            "ssl_client_i_dn",
            |s, out| client(s, out, |cert| cert.issuer()),
            "Who issued the client's certificate (RFC 2253).",
        ),
        VarDef::one(
            "ssl_client_s_dn_legacy",
            |s, out| client(s, out, |cert| cert.subject_legacy()),
            "Whose the client's certificate is, with slashes.",
        ),
        VarDef::one(
            "ssl_client_i_dn_legacy",
            |s, out| client(s, out, |cert| cert.issuer_legacy()),
            "Who issued the client's certificate, with slashes.",
        ),
        VarDef::one(
            "ssl_client_serial",
            |s, out| client(s, out, |cert| cert.serial()),
            "Serial number of the client's certificate.",
        ),
        VarDef::one(
            "ssl_client_fingerprint",
            |s, out| client(s, out, |cert| cert.fingerprint()),
            "SHA-1 fingerprint of the client's certificate.",
        ),
        VarDef::one(
            "ssl_client_v_start",
            |s, out| client(s, out, |cert| cert.not_before()),
            "When the client's certificate begins to be valid.",
        ),
        VarDef::one(
            "ssl_client_v_end",
            |s, out| client(s, out, |cert| cert.not_after()),
            "When the client's certificate ends to be valid.",
        ),
        VarDef::one(
            "ssl_client_v_remain",
            |s, out| {
                client(s, out, |cert| cert.days_left(tw_rt::clock::unix().secs.unsigned_abs()).to_string())
            },
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
            |s, out| client(s, out, |cert| cert.pem()),
            "Certificate of the client, in PEM.",
        ),
        VarDef::one(
            "ssl_client_cert",
            |s, out| client(s, out, |cert| cert.pem_tabbed()),
            "Certificate of the client, in PEM with a tab before each line but the first.",
        ),
        VarDef::one(
            "ssl_client_escaped_cert",
            |s, out| client(s, out, |cert| cert.pem_escaped()),
            "Certificate of the client, in PEM as a part of a URL.",
        ),
    ];
}

fn verify<S: TlsSession>(s: &S, out: &mut Vec<u8>) -> Value {
    of(s, out, |tls, out| match tls.client.as_ref().map(|client| (client.verdict, client.revocation)) {
        None => put(out, b"NONE"),
        Some((Verdict::Good, RevocationStatus::Good)) => put(out, b"SUCCESS"),
        Some((Verdict::Good, revocation)) => put(out, format!("FAILED:{revocation}").as_bytes()),
        Some((verdict, _)) => put(out, format!("FAILED:{verdict}").as_bytes()),
    })
}

/// Facts of the client's certificate.
fn client<S: TlsSession>(
    s: &S,
    out: &mut Vec<u8>,
    describe: impl FnOnce(&CertificateFields<'_>) -> String,
) -> Value {
    of(s, out, |tls, out| {
        let facts = tls.client.as_ref().and_then(|client| CertificateFields::of(&client.der));
        facts.map_or(Value::Missing, |facts| put(out, describe(&facts).as_bytes()))
    })
}

fn fingerprint<S: TlsSession>(
    s: &S,
    out: &mut Vec<u8>,
    put: impl FnOnce(&Fingerprint, &mut Vec<u8>) -> Value,
) -> Value {
    of(s, out, |tls, out| match &tls.offered.fingerprint {
        Some(fingerprint) => put(fingerprint, out),
        None => Value::Missing,
    })
}

fn of<S: TlsSession>(s: &S, out: &mut Vec<u8>, put: impl FnOnce(&TlsInfo, &mut Vec<u8>) -> Value) -> Value {
    s.tls().map_or(Value::Missing, |tls| put(tls, out))
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

fn put_name(out: &mut Vec<u8>, name: Option<AlgorithmName>) -> Value {
    name.map_or(Value::Missing, |name| put(out, name.to_string().as_bytes()))
}
