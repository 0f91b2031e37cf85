//! `listen`: an address and what its socket is to be.

use std::time::Duration;

use tw_base::Limit;
use tw_conf::{ConfError, Cx, MissingFeature, Node, Span, Word, units};
use tw_net::{Addr, Keepalive, ListenOptions, parse_listen};

pub(crate) const LIMITS: &[Limit] = &[Limit::parameter(
    "listen",
    "backlog=",
    "511",
    "Connections of one address that wait to be accepted",
    "the kernel makes the client try again",
)];

/// One `listen` directive.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The addresses it means: several for a range of ports or a host name.
    pub addresses: Vec<Addr>,
    /// Socket options.
    pub options: ListenOptions,
    /// `default_server`
    pub default_server: bool,
    /// `ssl`
    pub ssl: bool,
    /// `http2`
    pub http2: bool,
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// True if socket options are given; they may stand once per address.
    pub sets_options: bool,
    /// Position in the configuration; `None` for the implied `listen`.
    pub span: Option<Span>,
}

/// Port of an address without one.
const DEFAULT_PORT: u16 = 80;
/// Port of a server without `listen`, when we may not use [`DEFAULT_PORT`].
const UNPRIVILEGED_PORT: u16 = 8000;

impl Listen {
    /// Returns the `listen` of a server that has none.
    pub fn implied() -> Self {
        let root = rustix::process::geteuid().is_root();
        let port = if root { DEFAULT_PORT } else { UNPRIVILEGED_PORT };
        let any = std::net::SocketAddr::from(([0, 0, 0, 0], port));
        Self {
            addresses: vec![Addr::Inet(any)],
            options: ListenOptions::default(),
            default_server: false,
            ssl: false,
            http2: false,
            proxy_protocol: false,
            sets_options: false,
            span: None,
        }
    }

    /// Reads the arguments of `listen`.
    pub fn parse(node: &Node, cx: &mut Cx<'_>) -> Result<Self, ConfError> {
        let address = node.arg(0)?;
        let text = address.lossy();
        let addresses = parse_listen(&text, DEFAULT_PORT)
            .map_err(|e| node.fail(format!("{e} in \"{text}\" of the \"listen\" directive")))?;
        let mut listen = Self { addresses, span: Some(node.span), ..Self::implied() };
        for word in node.args.iter().skip(1) {
            listen.parameter(node, word, cx)?;
        }
        Ok(listen)
    }

    fn parameter(&mut self, node: &Node, word: &Word, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        match word.as_str() {
            Some("default_server" | "default") => {
                self.default_server = true;
                return Ok(());
            }
            Some("proxy_protocol") => {
                self.proxy_protocol = true;
                return Ok(());
            }
            Some("ssl") => {
                self.ssl = true;
                return Ok(());
            }
            Some("http2") => {
                self.http2 = true;
                let message =
                    "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
                cx.warn(node.span, message);
                return Ok(());
            }
            Some("quic" | "spdy") => {
                let message = format!(
                    "the \"{word}\" parameter of \"listen\" is not supported by this version of Tailwater"
                );
                let module = match word.as_str() {
                    Some("quic") => "ngx_http_v3_module",
                    _ => "ngx_http_v2_module",
                };
                let missing = MissingFeature::new(format!("listen … {word}"), module);
                return Err(node.fail(message).at(word.span).missing(missing));
            }
            _ => self.sets_options = true,
        }
        let tcp = self.addresses.iter().all(|a| a.inet().is_some());
        let options = &mut self.options;
        match word.as_str() {
            Some("bind") => {}
            Some("deferred") => options.deferred = true,
            Some("reuseport") if tcp => options.reuseport = true,
            Some("reuseport") => return Err(node.fail("reuseport is not supported for unix domain sockets")),
            Some("multipath") => options.multipath = true,
            _ if word.param("accept_filter").is_some() => {
                let message =
                    format!("accept filters \"{word}\" are not supported on this platform, ignored");
                cx.warn(word.span, message);
            }
            _ => return self.valued_parameter(node, word),
        }
        Ok(())
    }

    fn valued_parameter(&mut self, node: &Node, word: &Word) -> Result<(), ConfError> {
        let options = &mut self.options;
        let invalid = |name: &str| node.fail(format!("invalid {name} \"{word}\""));
        let size = |value| units::size(value).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let count = |value| units::number(value).and_then(|n| u32::try_from(n).ok());
        if let Some(value) = word.param("backlog") {
            options.backlog = count(value).filter(|n| *n > 0).ok_or_else(|| invalid("backlog"))?;
        } else if let Some(value) = word.param("rcvbuf") {
            options.rcvbuf = Some(size(value).ok_or_else(|| invalid("rcvbuf"))?);
        } else if let Some(value) = word.param("sndbuf") {
            options.sndbuf = Some(size(value).ok_or_else(|| invalid("sndbuf"))?);
        } else if let Some(value) = word.param("fastopen") {
            options.fastopen = Some(count(value).ok_or_else(|| invalid("fastopen"))?);
        } else if let Some(value) = word.param("so_keepalive") {
            options.keepalive = keepalive(value).ok_or_else(|| {
                node.fail(format!("invalid so_keepalive value: \"{}\"", String::from_utf8_lossy(value)))
            })?;
        } else if let Some(value) = word.param("ipv6only") {
            let ipv6 = self.addresses.iter().all(|a| a.inet().is_some_and(|a| a.is_ipv6()));
            if !ipv6 {
                return Err(node.fail(format!("ipv6only is not supported on addr \"{}\"", node.arg(0)?)));
            }
            options.ipv6only = match value {
                b"on" => true,
                b"off" => false,
                _ => return Err(node.invalid_parameter(word)),
            };
        } else {
            return Err(node.invalid_parameter(word));
        }
        Ok(())
    }
}

/// `on`, `off` or `[idle]:[interval]:[count]`, of which at least one must be given.
fn keepalive(value: &[u8]) -> Option<Keepalive> {
    match value {
        b"on" => return Some(Keepalive::On { idle: None, interval: None, count: None }),
        b"off" => return Some(Keepalive::Off),
        _ => {}
    }
    let mut parts = value.split(|b| *b == b':');
    let (idle, interval, count) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || value.len() == 2 {
        return None;
    }
    let span = |text: &[u8]| -> Option<Option<Duration>> {
        if text.is_empty() { Some(None) } else { units::sec(text).map(Some) }
    };
    let count = match count {
        b"" => None,
        text => Some(units::number(text).and_then(|n| u32::try_from(n).ok())?),
    };
    Some(Keepalive::On { idle: span(idle)?, interval: span(interval)?, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_keepalive_values() {
        let on = |idle: Option<u64>, interval: Option<u64>, count| {
            Some(Keepalive::On {
                idle: idle.map(Duration::from_secs),
                interval: interval.map(Duration::from_secs),
                count,
            })
        };
        for (text, expected) in [
            ("on", on(None, None, None)),
            ("off", Some(Keepalive::Off)),
            ("30m::10", on(Some(1800), None, Some(10))),
            (":5:", on(None, Some(5), None)),
            ("::", None),
            ("1:2", None),
            ("1:2:3:4", None),
            ("x:2:3", None),
        ] {
            assert_eq!(keepalive(text.as_bytes()), expected, "{text}");
        }
    }
}
