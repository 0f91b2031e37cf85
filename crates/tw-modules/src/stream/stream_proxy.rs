//! `proxy_pass` of `stream`: passes sessions to upstream servers (nginx: ngx_stream_proxy_module). Content phase. The engine is
//! [`tw_stream::proxy`].

use std::sync::Arc;

use tw_base::PrefixedName;
use tw_conf::{Args, ConfError, Contexts, Directive, Node, STREAM, STREAM_SERVER, Setting, Word, record};
use tw_connect::bind::read_bind;
use tw_connect::tls_directives::UpstreamTlsDirectives;
use tw_connect::upstream_tls::RawUpstreamTls;
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_stream::health::CheckTarget;
use tw_stream::plan::{ContentHandler, LocalFuture, Plan};
use tw_stream::proxy::settings::ProxyProtocol;
use tw_stream::proxy::{self, PassTarget, ProxySettings, RawProxy};
use tw_stream::server::ServerSettings;
use tw_stream::session::{SessionStatus, StreamSession};
use tw_stream::{Passing, Stream};

const ALL: u32 = STREAM | STREAM_SERVER;

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    pass: Setting<Word>,
    proxy: RawProxy,
}

/// Settings of a server.
pub(crate) struct StreamProxy {
    /// `proxy_pass`; not inherited.
    target: Option<PassTarget>,
    settings: Arc<ProxySettings>,
}

impl Settings<Stream> for StreamProxy {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let target = raw.pass.take().map(|word| PassTarget::resolve(&word, cx)).transpose()?;
        let mut settings = ProxySettings::resolve(raw.proxy, outer.map(|o| &*o.settings), cx)?;
        if target.is_some() {
            settings.enable_tls(cx)?;
        }
        let settings = Arc::new(settings);
        cx.block.passing = match &target {
            None => Passing::Nowhere,
            Some(PassTarget::Variable { .. }) => Passing::Anywhere,
            Some(PassTarget::Fixed(group)) => {
                Passing::To(CheckTarget { group: group.clone(), proxy: settings.clone() })
            }
        };
        Ok(Self { target, settings })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.target.is_some() {
            plan.set_content(self.clone());
        }
    }

    fn reach(&self, _: &ServerSettings, reach: &mut Reach) {
        if let Some(target) = &self.target {
            self.settings.reach(reach);
            if target.has_names() {
                tw_connect::resolving::reach(reach);
            }
        }
    }
}

static TLS_NAMES: [PrefixedName; Raw::TLS.len()] = record::names("proxy_", &[Raw::TLS]);

/// All lists.
const LISTS: &[&[Directive<Raw>]] = &[PROXY, &record::with_names(&[Raw::TLS], &TLS_NAMES), STREAM_TLS];

impl UpstreamTlsDirectives for Raw {
    const MODULE: &'static str = "ngx_stream_proxy_module";
    const TLS_NAME: &'static str = "host from proxy_pass";
    const TLS_CONTEXTS: Contexts = STREAM | STREAM_SERVER;

    fn upstream_tls(&mut self) -> &mut RawUpstreamTls {
        &mut self.proxy.tls
    }
}

/// Directives but those of TLS.
const PROXY: &[Directive<Raw>] = &[
        record::new("proxy_pass", "address", STREAM_SERVER, Args::exact(1))
            .doc("Passes sessions to this address and port, name and port, or upstream; variables are allowed.")
            .set(|raw, node, _| raw.pass.set_once(node, node.arg(0)?.clone())),
        record::time("proxy_connect_timeout", ALL)
            .default("60s")
            .doc("Time until a connection to an upstream server is there.")
            .set(|raw, node, _| raw.proxy.connect_timeout.set_msec(node)),
        record::time("proxy_timeout", ALL)
            .default("10m")
            .doc("Time between two reads or writes of a session, in either direction.")
            .set(|raw, node, _| raw.proxy.timeout.set_msec(node)),
        record::size("proxy_buffer_size", ALL)
            .default("16k")
            .since("1.9.4")
            .doc("Bytes that are read at once, and kept for a side that does not take them.")
            .set(|raw, node, _| raw.proxy.buffer_size.set_size(node)),
        record::new("proxy_bind", "address [transparent] | off", ALL, Args::range(1, 2))
            .since("1.9.2")
            .doc("Local address of connections to upstream servers.")
            .set(|raw, node, _| {
                let bind = read_bind(node)?;
                raw.proxy.connection.bind.set_once(node, bind)
            }),
        record::flag("proxy_bind_dynamic", ALL)
            .default("off")
            .since("1.29.3")
            .doc("Computes the address of proxy_bind for each attempt instead of once for a session.")
            .set(|raw, node, _| raw.proxy.connection.bind_dynamic.set_flag(node)),
        record::flag("proxy_socket_keepalive", ALL)
            .default("off")
            .since("1.15.6")
            .doc("TCP keepalive on connections to upstream servers.")
            .set(|raw, node, _| raw.proxy.connection.socket_keepalive.set_flag(node)),
        record::size("proxy_socket_rcvbuf", ALL)
            .since("1.31.3")
            .doc("Receive buffer of connections to upstream servers.")
            .set(|raw, node, _| raw.proxy.connection.socket_rcvbuf.set_size(node)),
        record::size("proxy_socket_sndbuf", ALL)
            .since("1.31.3")
            .doc("Send buffer of connections to upstream servers.")
            .set(|raw, node, _| raw.proxy.connection.socket_sndbuf.set_size(node)),
        record::flag("proxy_next_upstream", ALL)
            .default("on")
            .doc("Passes a session to the next server if one cannot be connected to.")
            .set(|raw, node, _| raw.proxy.next_upstream.set_flag(node)),
        record::number("proxy_next_upstream_tries", ALL)
            .default("0")
            .doc("Servers that a session is passed to at most; 0 means all.")
            .set(|raw, node, _| raw.proxy.next_upstream_tries.set_number(node)),
        record::time("proxy_next_upstream_timeout", ALL)
            .default("0")
            .doc("Time in which a session may be passed to a next server; 0 means no limit.")
            .set(|raw, node, _| raw.proxy.next_upstream_timeout.set_msec(node)),
        record::new("proxy_protocol", "on | off | v2", ALL, Args::exact(1))
            .default("off")
            .since("1.9.2")
            .doc("Sends a PROXY protocol header to upstream servers: version 1, or version 2 with the facts of a TLS handshake.")
            .set(|raw, node, _| raw.proxy.proxy_protocol.set_with(node, read_protocol)),
        record::new("proxy_protocol_version", "1 | 2", ALL, Args::exact(1))
            .default("1")
            .doc("Version of the header that \"proxy_protocol on\" sends, as in Angie. \"proxy_protocol v2\" sends version 2 in any case.")
            .set(|raw, node, _| raw.proxy.proxy_protocol_v2.set_one_of(node, &[("1", false), ("2", true)])),
        record::flag("proxy_half_close", ALL)
            .default("off")
            .since("1.21.4")
            .doc("Lets one side close its direction while the other one still sends.")
            .set(|raw, node, _| raw.proxy.half_close.set_flag(node)),
        record::flag("proxy_session_drop", ALL)
            .default("off")
            .since("1.15.8")
            .doc("Ends sessions whose server was removed from its group, marked as down, or found unhealthy.")
            .set(|raw, node, _| raw.proxy.session_drop.set_flag(node)),
        record::number("proxy_requests", ALL)
            .default("0")
            .since("1.15.7")
            .doc("Datagrams of a client that belong to one session; the next one begins another. 0 means no limit.")
            .set(|raw, node, _| raw.proxy.requests.set_number(node)),
        record::number("proxy_responses", ALL)
            .since("1.9.13")
            .doc("Datagrams that an upstream server sends for each of a client; a session over UDP is over when all are there. \
                  Without it, a session lasts until proxy_timeout.")
            .set(|raw, node, _| raw.proxy.responses.set_number(node)),
        record::new("proxy_upload_rate", "rate", ALL, Args::exact(1))
            .default("0")
            .since("1.9.3")
            .doc("Bytes per second that are read from the client; 0 means no limit.")
            .set(|raw, node, _| raw.proxy.upload_rate.set_once(node, node.arg(0)?.clone())),
        record::new("proxy_download_rate", "rate", ALL, Args::exact(1))
            .default("0")
            .since("1.9.3")
            .doc("Bytes per second that are read from the upstream server; 0 means no limit.")
            .set(|raw, node, _| raw.proxy.download_rate.set_once(node, node.arg(0)?.clone())),
];

/// Directives of TLS that `stream` has alone.
const STREAM_TLS: &[Directive<Raw>] = &[
    record::flag("proxy_ssl", ALL)
        .default("off")
        .doc("Connects to upstream servers over TLS.")
        .set(|raw, node, _| raw.proxy.ssl.set_flag(node)),
    record::new("proxy_ssl_alpn", "protocol …", ALL, Args::at_least(1))
        .since("1.31.0")
        .doc("Protocols that are offered to upstream servers (ALPN); may hold variables.")
        .set(|raw, node, _| {
            if node.args.iter().any(|word| word.bytes.len() > 255) {
                return Err(node.error("protocol too long"));
            }
            raw.proxy.tls.alpn.set_once(node, node.args.clone())
        }),
];

/// Reads the version of the PROXY protocol.
fn read_protocol(node: &Node) -> Result<ProxyProtocol, ConfError> {
    let word = node.arg(0)?;
    match word.as_str() {
        Some("off") => Ok(ProxyProtocol::Off),
        Some("on") => Ok(ProxyProtocol::V1),
        Some("v2") => Ok(ProxyProtocol::V2),
        _ => Err(node.invalid_value(word)),
    }
}

impl ContentHandler for StreamProxy {
    fn takes_over(&self) -> bool {
        self.target.is_some()
    }

    fn explain(&self) -> Vec<(&'static str, String)> {
        self.target.as_ref().map_or_else(Vec::new, PassTarget::explain)
    }

    fn explain_session(&self, s: &StreamSession) -> Vec<(&'static str, String)> {
        self.target.as_ref().map_or_else(Vec::new, |target| target.explain_session(s))
    }

    fn serve<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, SessionStatus> {
        Box::pin(async move {
            match &self.target {
                Some(target) => proxy::serve(s, target, &self.settings).await,
                None => SessionStatus::INTERNAL_SERVER_ERROR,
            }
        })
    }
}
