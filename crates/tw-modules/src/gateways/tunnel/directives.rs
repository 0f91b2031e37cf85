//! Directives as written: those of `tunnel_pass`, and those of `proxy_connect`, some of which are other names of them.

use tw_base::PrefixedName;
use tw_conf::{
    Args, ConfError, Cx, Directive, IF_IN_LOCATION, IneffectiveDirectives, LOCATION, Node, SERVER, Setting,
    record,
};
use tw_connect::bind::read_bind;
use tw_proxy::directives::UpstreamDirectives;
use tw_proxy::settings::{HasUpstream, RawUpstream};
use tw_request::retry_conditions::{RetryOn, RetryWords};

use super::open::requested;
use super::proxy_connect::{AllowedPorts, RawProxyConnect};
use crate::gateways::cgi::address::RawPassAddress;
use crate::gateways::cgi::params;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    pub(super) settings: RawUpstream,
    pub(super) pass: Setting<RawPassAddress>,
    pub(super) connect: RawProxyConnect,
    without_effect: IneffectiveDirectives,
}

impl HasUpstream for Raw {
    fn upstream(&mut self) -> &mut RawUpstream {
        &mut self.settings
    }
}

/// Records of `tunnel_pass`.
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

/// Records of `proxy_connect`.
const PROXY_CONNECT: &[Directive<Raw>] = &[
    record::new("proxy_connect", "", SERVER, Args::NONE)
        .since("Tailwater 0.2")
        .doc("Answers the CONNECT requests of the server with tunnels; they enter no location.")
        .set(|raw, node, _| raw.connect.is_on.set_once(node, ())),
    record::new("proxy_connect_allow", "all | port | port-port …", SERVER, Args::at_least(1))
        .default("443 563")
        .since("Tailwater 0.2")
        .doc("Ports that clients may connect to; a request for another one is answered with 403.")
        .set(|raw, node, _| raw.connect.allow.set_with(node, AllowedPorts::read)),
    record::time("proxy_connect_connect_timeout", SERVER)
        .default("60s")
        .since("Tailwater 0.2")
        .doc("Another name of tunnel_connect_timeout.")
        .set(|raw, node, _| raw.settings.timeouts.connect.set_msec(node)),
    record::time("proxy_connect_data_timeout", SERVER)
        .default("60s")
        .since("Tailwater 0.2")
        .doc("Time in which nothing passes through the tunnel, or the server takes nothing; the tunnel ends then.")
        .set(set_data_timeout),
    record::time("proxy_connect_read_timeout", SERVER)
        .default("60s")
        .since("Tailwater 0.2")
        .doc("The old name of proxy_connect_data_timeout.")
        .set(set_data_timeout),
    record::time("proxy_connect_send_timeout", SERVER)
        .default("60s")
        .since("Tailwater 0.2")
        .doc("Accepted and without effect.")
        .set(|raw, node, _| {
            node.msec()?;
            raw.connect.without_effect.set_once(node)
        }),
    record::new("proxy_connect_address", "address | off", SERVER, Args::exact(1))
        .default("off")
        .since("Tailwater 0.2")
        .doc("Destination of tunnels in place of the host of the request; without a port, the port of the request. May hold variables.")
        .set(|raw, node, _| raw.connect.address.set_with(node, |node| Ok(node.arg(0)?.clone()))),
    record::new("proxy_connect_bind", "address [transparent] | off", SERVER, Args::range(1, 2))
        .since("Tailwater 0.2")
        .doc("Another name of tunnel_bind.")
        .set(|raw, node, _| {
            let bind = read_bind(node)?;
            raw.settings.connection.bind.set_once(node, bind)
        }),
    record::new("proxy_connect_response", "text", SERVER, Args::exact(1))
        .since("Tailwater 0.2")
        .doc("Head of the response that opens a tunnel: a status line with 200, fields, which may hold variables, and an empty line.")
        .set(|raw, node, _| raw.connect.response.set_with(node, |node| Ok(node.arg(0)?.clone()))),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Raw>]] = &[Raw::CONNECTION, Raw::SOCKET_SIZES];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Raw::PREFIX, SHARED);

/// All lists.
const LISTS: &[&[Directive<Raw>]] = &[OWN, PROXY_CONNECT, &record::with_names(SHARED, &NAMES)];

/// Records of the directives.
pub(super) const DIRECTIVES: &[Directive<Raw>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);

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

fn set_data_timeout(raw: &mut Raw, node: &Node, _: &mut Cx<'_>) -> Result<(), ConfError> {
    raw.settings.timeouts.read.set_msec(node)?;
    raw.settings.timeouts.send.set_msec(node)
}
