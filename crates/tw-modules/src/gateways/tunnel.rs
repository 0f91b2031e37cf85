//! `tunnel_pass`: a tunnel for CONNECT to the server that the client names (nginx: ngx_http_tunnel_module). Content
//! phase.
//!
//! `tunnel_allow_upstream` restricts the destinations: by the name that the client sent (`$host`, `$request_port`), and
//! by the address connected to (`$upstream_last_addr`). The address checked is the one connected to: the name is not
//! resolved again in between.
//!
//! `proxy_connect` answers the CONNECT requests of a server whatever its locations are, and builds on this one.

mod proxy_connect;
mod response;
mod variables;

use std::sync::Arc;

use tw_base::{Limit, PrefixedName};
use tw_conf::{
    Args, ConfError, Directive, IF_IN_LOCATION, IneffectiveDirectives, LOCATION, Node, SERVER, Setting, Span,
    Word, record,
};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::Method;
use tw_log::Level;
use tw_server::config::location::Location;
use tw_server::http::Http;
use tw_server::http::plan::{Handler, Outcome, Plan, Step};
use tw_server::http::proxy::codec::{BodyFraming, connect_tunnel::ConnectTunnel};
use tw_server::http::proxy::directives::UpstreamDirectives;
use tw_server::http::proxy::settings::{HasUpstream, RawUpstream};
use tw_server::http::proxy::{self, UpstreamRequest, UpstreamRequestBody, UpstreamSettings};
use tw_server::http::request::Request;
use tw_server::http::retry_conditions::{RetryOn, RetryWords};
use tw_server::load::Resolve;
use tw_server::vars::VarDef;

use crate::gateways::cgi::address::{AddressDestination, AddressScheme, PassAddress, RawPassAddress};
use crate::gateways::cgi::params;

use self::proxy_connect::{ProxyConnect, RawProxyConnect};

const SCHEMES: &[AddressScheme] = &[AddressScheme::unwritten("")];

/// Default destination of a tunnel: host and port of the request target.
const WHERE_CLIENTS_WANT: &[u8] = b"$host:$request_port";

/// `tunnel_buffer_size` by default.
const BUFFER_SIZE: usize = 16 << 10;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    settings: RawUpstream,
    pass: Setting<RawPassAddress>,
    connect: RawProxyConnect,
    without_effect: IneffectiveDirectives,
}

impl HasUpstream for Raw {
    fn upstream(&mut self) -> &mut RawUpstream {
        &mut self.settings
    }
}

/// Settings of one location.
pub(crate) struct TunnelPass {
    settings: UpstreamSettings,
    target: Option<PassAddress>,
    connect: Option<Arc<ProxyConnect>>,
}

const OWN: &[Directive<Raw>] = &[
    record::new("tunnel_pass", "[address]", SERVER | LOCATION | IF_IN_LOCATION, Args::range(0, 1))
        .since("1.31.0")
        .doc("Target of the tunnel that a client opens with CONNECT: host:port, or a group; may contain variables. The default is $host:$request_port.")
        .set(|raw, node, _| {
            let target = read(node);
            raw.pass.set_once(node, target)
        }),
    // DIFF(nginx): what a socket must take before it is written to is its own business.
    record::size("tunnel_send_lowat", params::ALL)
        .default("0")
        .doc("Accepted and without effect.")
        .set(|raw, node, _| {
            node.size()?;
            raw.without_effect.set_once(node)
        }),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Raw>]] = &[Raw::CONNECTION, Raw::SOCKET_SIZES];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Raw::PREFIX, SHARED);

/// All lists.
const LISTS: &[&[Directive<Raw>]] = &[OWN, proxy_connect::DIRECTIVES, &record::with_names(SHARED, &NAMES)];

impl UpstreamDirectives for Raw {
    const PREFIX: &'static str = "tunnel_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS_OF_TUNNELS;
    const BUFFER_SIZE: &'static str = "16k";
    const BUFFER_DOC: &'static str = "Bytes that are read of one side at once, 16k at most, and kept while the other side does not take them.";
}

/// Reads where tunnels lead.
fn read(node: &Node) -> RawPassAddress {
    node.args.first().map_or_else(|| requested(node.span), |word| RawPassAddress::of(word.clone()))
}

/// Destination that clients request.
fn requested(span: Span) -> RawPassAddress {
    RawPassAddress::of(Word { bytes: WHERE_CLIENTS_WANT.into(), span, quoted: false })
}

/// Warns of tunnels that `name` opens, if a client chooses the destination and nothing restricts it.
fn warn_unrestricted(name: &str, span: Span, settings: &UpstreamSettings, cx: &mut Resolve<'_>) {
    if settings.connection.allow.is_empty() {
        cx.warn(
            span,
            format!("\"{name}\" without \"tunnel_allow_upstream\" opens tunnels to whatever this machine can reach, and to itself"),
        );
    }
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes in memory for each side of a tunnel.
    directive "tunnel_buffer_size", "the other side waits";
    /// Time until a connection is there.
    directive "tunnel_connect_timeout", "the next server, or 504";
    /// Time for which a server takes nothing.
    directive "tunnel_send_timeout", "the tunnel ends";
    /// Time in which nothing happens.
    directive "tunnel_read_timeout", "the tunnel ends";
    /// Time until a connection of a tunnel of `proxy_connect` is there.
    directive "proxy_connect_connect_timeout", "504";
    /// Time in which nothing happens in a tunnel of `proxy_connect`.
    directive "proxy_connect_data_timeout", "the tunnel ends";
    /// Servers that are tried for one tunnel.
    directive "tunnel_next_upstream_tries", "the last one's failure";
}

impl Settings<Http> for TunnelPass {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);
    const VARIABLES: &'static [VarDef] = variables::ALL;
    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let span = raw.pass.span();
        let target = match raw.pass.take() {
            Some(target) => Some(target.resolve(SCHEMES, cx)?),
            // A part of a location has the target of the whole.
            None if cx.block.is_nameless() => outer.and_then(|o| o.target.clone()),
            None => None,
        };
        let outer_settings = outer.map(|o| &o.settings);
        let settings = UpstreamSettings::resolve(raw.settings, outer_settings, BUFFER_SIZE, cx)?;
        if let (Some(span), Some(target)) = (span, &target) {
            cx.block.opens_tunnels = true;
            if target.fixed().is_none() {
                warn_unrestricted("tunnel_pass", span, &settings, cx);
            }
        }
        let connect = raw.connect.resolve(&settings, cx)?.map(Arc::new);
        Ok(Self { settings, target, connect })
    }

    fn are_shared(&self) -> bool {
        self.target.is_none() && self.connect.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.target.is_some() {
            plan.set_content(self.clone());
        }
        if let Some(connect) = &self.connect {
            plan.set_connect(connect.clone());
        }
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        if self.target.is_some() || self.connect.is_some() {
            self.settings.reach(reach);
        }
        if self.connect.is_some() || self.target.as_ref().is_some_and(PassAddress::has_names) {
            tw_connect::resolving::reach(reach);
        }
    }
}

impl Handler for TunnelPass {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        match r.method() {
            // A part of a response has no connection that could become a tunnel.
            Method::Connect if !r.is_subrequest() => Step::Wait(Box::pin(self.pass(r))),
            _ => Step::status(405),
        }
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        self.target.as_ref().and_then(|target| target.explain(r, SCHEMES)).into_iter().collect()
    }
}

impl TunnelPass {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let Some(target) = &self.target else { return Outcome::Pass };
        match target.destination(r, SCHEMES) {
            Ok(to) => open(r, &self.settings, to).await,
            Err(status) => Outcome::Status(status),
        }
    }
}

/// Answers CONNECT with a tunnel to a server of `to`.
async fn open(r: &mut Request, settings: &UpstreamSettings, to: AddressDestination<'_>) -> Outcome {
    // DIFF(nginx): `CONNECT unix:80` asks for a host called unix, and for no socket in the working directory.
    if to.host.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case(b"unix:"))
        && to.host.get(5) != Some(&b'/')
    {
        r.log(Level::Error, format_args!("invalid host in upstream \"{}\"", tw_log::Text(&to.host)));
        return Outcome::Status(500);
    }
    r.set_upstream_url(to.scheme.text, |_, _| {});
    let request = UpstreamRequest {
        settings,
        response: None,
        group: &to.group,
        secured: None,
        head: Vec::new(),
        body: UpstreamRequestBody::Nothing,
        framing: BodyFraming::Plain,
        rebuild: None,
        codec: ConnectTunnel,
    };
    proxy::open_tunnel(r, request).await
}
