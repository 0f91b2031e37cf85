//! `proxy_connect`: tunnels for the CONNECT requests of a server, whatever its locations are
//! (ngx_http_proxy_connect_module). Its timeouts and `proxy_connect_bind` are settings of `tunnel_pass` under other names.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use tw_conf::{ConfError, IneffectiveDirectives, Node, Setting, Word};
use tw_connect::upstream_block;
use tw_log::{Level, Text};
use tw_proxy::UpstreamSettings;
use tw_request::plan::{Handler, Outcome, Step, UPSTREAM};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

use super::open::{SCHEMES, open, requested, warn_unrestricted};
use super::response::ConnectResponse;
use super::variables::TimeoutOverrides;
use crate::gateways::cgi::address::{AddressDestination, PassAddress};

/// Ports that tunnels may lead to by default: HTTPS, and news over TLS.
const DEFAULT_PORTS: [u16; 2] = [443, 563];

/// Settings as written.
#[derive(Default)]
pub(super) struct RawProxyConnect {
    pub(super) is_on: Setting<()>,
    pub(super) allow: Setting<AllowedPorts>,
    pub(super) address: Setting<Word>,
    pub(super) response: Setting<Word>,
    pub(super) without_effect: IneffectiveDirectives,
}

/// Tunnels of one server.
pub(super) struct ProxyConnect {
    settings: UpstreamSettings,
    allow: AllowedPorts,
    address: ConnectAddress,
    response: Option<ConnectResponse>,
}

/// Ports that tunnels may lead to.
pub(super) struct AllowedPorts(Box<[RangeInclusive<u16>]>);

/// Destination of tunnels.
enum ConnectAddress {
    /// Host and port of the request.
    Requested(PassAddress),
    /// Always this address; its port is that of the request if it has none.
    Fixed(Box<[u8]>),
    /// Address that depends on the request. If it is empty or `off`, the tunnel leads to the host of the request.
    Variable(Template, PassAddress),
}

impl RawProxyConnect {
    /// Resolves the directives of a server whose tunnels have these settings; `None` without `proxy_connect`.
    pub(super) fn resolve(
        self,
        settings: &UpstreamSettings,
        cx: &mut Resolve<'_>,
    ) -> Result<Option<ProxyConnect>, ConfError> {
        let response = self.response.take().map(|word| ConnectResponse::parse(&word, cx)).transpose()?;
        let Some(span) = self.is_on.span() else { return Ok(None) };
        cx.block.opens_tunnels = true;
        let address = match self.address.take().filter(|word| !is_off(&word.bytes)) {
            Some(word) if !word.bytes.contains(&b'$') => {
                address_of(&word.bytes, DEFAULT_PORTS[0], || false)
                    .map_err(|error| ConfError::new(error).at(word.span))?;
                ConnectAddress::Fixed(word.bytes)
            }
            word => {
                warn_unrestricted("proxy_connect", span, settings, cx);
                let by_request = requested(span).resolve(SCHEMES, cx)?;
                match word {
                    Some(word) => ConnectAddress::Variable(cx.template(&word)?, by_request),
                    None => ConnectAddress::Requested(by_request),
                }
            }
        };
        let allow = self.allow.take().unwrap_or_default();
        Ok(Some(ProxyConnect { settings: settings.clone(), allow, address, response }))
    }
}

impl Handler for ProxyConnect {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let port = r.head.host_port().unwrap_or_default();
        if !self.allow.has(port) {
            r.log(Level::Error, format_args!("access to port {port} forbidden by \"proxy_connect_allow\""));
            return Step::status(403);
        }
        Step::Wait(Box::pin(self.pass(r)))
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        let to = self.address.destination(r);
        to.map(|to| (UPSTREAM, Text(&to.host).to_string())).into_iter().collect()
    }
}

impl ProxyConnect {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let to = match self.address.destination(r) {
            Ok(to) => to,
            Err(message) => {
                r.log(Level::Error, format_args!("{message}"));
                return Outcome::Status(500);
            }
        };
        let own = TimeoutOverrides::apply(r, &self.settings);
        let outcome = open(r, own.as_deref().unwrap_or(&self.settings), to).await;
        if let (Outcome::Respond(_), Some(response)) = (&outcome, &self.response) {
            response.apply(r);
        }
        outcome
    }
}

impl ConnectAddress {
    /// Destination of `r`. The error is for the log.
    fn destination(&self, r: &Request) -> Result<AddressDestination<'_>, String> {
        let port = r.head.host_port().unwrap_or_default();
        match self {
            Self::Requested(requested) => requested.of(r, SCHEMES),
            Self::Fixed(address) => address_of(address, port, || false),
            Self::Variable(template, requested) => match template.value(r) {
                address if is_off(&address) => requested.of(r, SCHEMES),
                address => address_of(&address, port, || template.is_given(r, 0)),
            },
        }
    }
}

/// The server at `address`, at `port` if it names none. `is_given` is that of [`upstream_block::alone`]. The error is for the log.
fn address_of(
    address: &[u8],
    port: u16,
    is_given: impl FnOnce() -> bool,
) -> Result<AddressDestination<'static>, String> {
    let text = String::from_utf8_lossy(address);
    let group = upstream_block::alone(&text, Some(port), is_given)
        .map_err(|error| format!("{error} in \"proxy_connect_address\" \"{text}\""))?;
    Ok(AddressDestination { scheme: &SCHEMES[0], host: Cow::Owned(address.to_vec()), group })
}

/// Returns `true` for an address that stands for the host of the request.
fn is_off(address: &[u8]) -> bool {
    address.is_empty() || address == b"off"
}

impl Default for AllowedPorts {
    fn default() -> Self {
        Self(DEFAULT_PORTS.map(|port| port..=port).into())
    }
}

impl AllowedPorts {
    /// Reads `proxy_connect_allow`.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let ports = node.args.iter().map(|word| read_ports(word).ok_or_else(|| node.invalid_value(word)));
        Ok(Self(ports.collect::<Result<_, _>>()?))
    }

    fn has(&self, port: u16) -> bool {
        self.0.iter().any(|ports| ports.contains(&port))
    }
}

/// Reads `all`, a port, or the first and the last of several.
fn read_ports(word: &Word) -> Option<RangeInclusive<u16>> {
    if word.is("all") {
        return Some(0..=u16::MAX);
    }
    let text = std::str::from_utf8(&word.bytes).ok()?;
    let port = |text: &str| text.parse::<u16>().ok().filter(|&port| port > 0 && !text.starts_with('+'));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first = port(first)?;
    let last = port(last)?;
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use tw_conf::Span;

    use super::*;

    #[test]
    fn ports_are_single_or_ranges() {
        for (text, expected) in [
            ("all", Some(0..=65535)),
            ("443", Some(443..=443)),
            ("1000-2000", Some(1000..=2000)),
            ("2000-1000", None),
            ("0", None),
            ("+1", None),
            ("65536", None),
            ("1-", None),
            ("-1", None),
            ("1-2-3", None),
            ("https", None),
        ] {
            let word = Word { bytes: text.as_bytes().into(), span: Span::default(), quoted: false };
            assert_eq!(read_ports(&word), expected, "{text}");
        }
    }
}
