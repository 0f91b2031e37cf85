//! `ssl_preread`: server name, protocols and version of the client hello of a session whose TLS is passed on (nginx:
//! ngx_stream_ssl_preread_module). Preread phase. The server name selects the virtual server, too.

use std::rc::Rc;
use std::sync::Arc;

use tw_conf::{ConfError, Directive, STREAM, STREAM_SERVER, Setting, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::write::put;
use tw_core::vars::{CLIENT_HELLO, Value, VarDef};
use tw_stream::Stream;
use tw_stream::plan::Plan;
use tw_stream::preread::{PrereadHandler, PrereadStep};
use tw_stream::server_choice::choose_server;
use tw_stream::session::StreamSession;
use tw_tls::Fingerprint;
use tw_tls::client_hello::{FirstBytes, PeekedHello, peek};

/// `ssl_preread` as written.
#[derive(Default)]
pub(crate) struct Raw {
    is_on: Setting<bool>,
}

/// `ssl_preread`
pub(crate) struct StreamSslPreread {
    is_on: bool,
}

impl Settings<Stream> for StreamSslPreread {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::flag("ssl_preread", STREAM | STREAM_SERVER)
        .default("off")
        .since("1.11.5")
        .doc("Reads the TLS client hello of a session before it goes on, without taking part in the handshake.")
        .set(|raw, node, _| raw.is_on.set_flag(node))];

    const VARIABLES: &'static [VarDef<StreamSession>] = &[
        VarDef::one(
            "ssl_preread_protocol",
            |s, out| of(s, out, |hello, out| put(out, hello.version_name().unwrap_or_default().as_bytes())),
            "Highest TLS version that the client can do.",
        ),
        VarDef::one(
            "ssl_preread_server_name",
            |s, out| of(s, out, |hello, out| put(out, hello.host_name())),
            "Server name of the client hello (SNI); empty if it is no name of a host.",
        ),
        VarDef::one(
            "ssl_preread_alpn_protocols",
            |s, out| of(s, out, |hello, out| put(out, &hello.alpn.join(&b','))),
            "Protocols of the client hello (ALPN), separated by commas.",
        ),
        VarDef::one(
            "ssl_preread_ja3",
            |s, out| fingerprint(s, out, |fingerprint, out| put(out, fingerprint.ja3.as_bytes())),
            "JA3 of the client hello, as `$ssl_ja3`.",
        )
        .prepared(CLIENT_HELLO),
        VarDef::one(
            "ssl_preread_ja3_hash",
            |s, out| fingerprint(s, out, |fingerprint, out| put(out, fingerprint.ja3_hash().as_bytes())),
            "MD5 of `$ssl_preread_ja3`.",
        )
        .prepared(CLIENT_HELLO),
        VarDef::one(
            "ssl_preread_ja4",
            |s, out| fingerprint(s, out, |fingerprint, out| put(out, fingerprint.ja4.as_bytes())),
            "JA4 of the client hello, as `$ssl_ja4`.",
        )
        .prepared(CLIENT_HELLO),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        Ok(Self { is_on: raw.is_on.or(outer.map(|outer| outer.is_on), false) })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.is_on {
            plan.add_preread(self.clone());
        }
    }
}

fn of(s: &StreamSession, out: &mut Vec<u8>, put: impl FnOnce(&PeekedHello, &mut Vec<u8>) -> Value) -> Value {
    s.held::<PeekedHello>().map_or(Value::Missing, |hello| put(hello, out))
}

fn fingerprint(
    s: &StreamSession,
    out: &mut Vec<u8>,
    put: impl FnOnce(&Fingerprint, &mut Vec<u8>) -> Value,
) -> Value {
    s.held::<Fingerprint>().map_or(Value::Missing, |fingerprint| put(fingerprint, out))
}

impl PrereadHandler for StreamSslPreread {
    fn preread(&self, s: &mut StreamSession) -> PrereadStep {
        if s.transport.datagrams().is_some() {
            return PrereadStep::Pass;
        }
        match peek(&s.preread) {
            FirstBytes::Incomplete => PrereadStep::More,
            FirstBytes::Other => PrereadStep::Pass,
            FirstBytes::ClientHello(hello) => {
                let hello = Rc::new(hello);
                s.hold(hello.clone());
                if s.slots().prepared.has(CLIENT_HELLO)
                    && let Some(fingerprint) = Fingerprint::of_records(&s.preread)
                {
                    s.hold(Rc::new(fingerprint));
                }
                choose_server(s, hello.host_name());
                PrereadStep::Done
            }
        }
    }
}
