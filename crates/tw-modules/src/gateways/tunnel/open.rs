//! Destination of a tunnel, and its opening.

use tw_conf::{Span, Word};
use tw_log::Level;
use tw_proxy::codec::BodyFraming;
use tw_proxy::codec::connect_tunnel::ConnectTunnel;
use tw_proxy::{self as proxy, UpstreamRequest, UpstreamRequestBody, UpstreamSettings};
use tw_request::plan::Outcome;
use tw_request::protocol::Resolve;
use tw_request::request::Request;

use crate::gateways::cgi::address::{AddressDestination, AddressScheme, RawPassAddress};

/// Schemes of an address, which has none.
pub(super) const SCHEMES: &[AddressScheme] = &[AddressScheme::unwritten("")];

/// Default destination of a tunnel: host and port of the request target.
const WHERE_CLIENTS_WANT: &[u8] = b"$host:$request_port";

/// Destination that clients request.
pub(super) fn requested(span: Span) -> RawPassAddress {
    RawPassAddress::of(Word { bytes: WHERE_CLIENTS_WANT.into(), span, quoted: false })
}

/// Warns of tunnels that `name` opens, if a client chooses the destination and nothing restricts it.
pub(super) fn warn_unrestricted(name: &str, span: Span, settings: &UpstreamSettings, cx: &mut Resolve<'_>) {
    if settings.connection.allow.is_empty() {
        cx.warn(
            span,
            format!("\"{name}\" without \"tunnel_allow_upstream\" opens tunnels to whatever this machine can reach, and to itself"),
        );
    }
}

/// Answers CONNECT with a tunnel to a server of `to`.
pub(super) async fn open(
    r: &mut Request,
    settings: &UpstreamSettings,
    to: AddressDestination<'_>,
) -> Outcome {
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
