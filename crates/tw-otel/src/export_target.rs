//! Destination of spans: `otel_exporter`, and the description of this server (`otel_service_name`, `otel_resource_attr`).

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use tw_conf::{ConfError, Node, Setting, Word};
use tw_connect::upstream_block;
use tw_connect::upstream_tls::TlsProtocol;
use tw_module_support::block::refuse_block;
use tw_module_support::verified_tls::VerifiedTls;
use tw_proxy::own_request::{OwnProtocol, OwnRequest, OwnServer};
use tw_request::protocol::Resolve;

use super::otlp::{Signal, Transport};
use super::protobuf::Message;
use super::spans::push_attribute;

/// nginx's defaults.
const INTERVAL: Duration = Duration::from_secs(5);
const BATCH_SIZE: usize = 512;
const BATCH_COUNT: usize = 4;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Time for which a collector may do nothing during an export.
    ///
    /// Time of each wait of an export: for a connection, for room to send, for the response.
    const WAIT_TIME_MAX: Duration = Duration::from_secs(10), time, "the attempt has failed";
    /// Time of one attempt to export on a connection.
    const EXPORT_TIME_MAX: Duration = Duration::from_secs(30), time, "the attempt has failed";
}

/// Bytes of the head of a response, and of its body.
const RESPONSE_HEAD_MAX: usize = 8 << 10;
const RESPONSE_BODY_MAX: usize = 64 << 10;

/// `otel_exporter` as written.
pub(super) struct RawExporter {
    node: Node,
    endpoint: Setting<Word>,
    trusted_certificate: Setting<Word>,
    fields: Vec<(Word, Word)>,
    interval: Setting<Duration>,
    batch_size: Setting<usize>,
    batch_count: Setting<usize>,
}

/// Destination of spans.
pub(super) struct ExportTarget {
    /// Endpoint as written.
    pub(super) endpoint: Box<str>,
    pub(super) transport: Transport,
    pub(super) server: OwnServer,
    /// Request line and fields, except the length of the body: of traces, and of metrics.
    heads: [Box<str>; 2],
    /// Beginning of `ResourceSpans`: the resource.
    pub(super) resource: Vec<u8>,
    /// Beginning of `ScopeSpans`: the scope.
    pub(super) scope: Vec<u8>,
    pub(super) interval: Duration,
    pub(super) batch_size: usize,
    pub(super) batch_count: usize,
}

/// Parts of an endpoint: `[(http|https)://]host:port[/path]`.
#[derive(Debug, PartialEq, Eq)]
struct Endpoint<'a> {
    is_secured: bool,
    authority: &'a str,
    /// With a path, OTLP over HTTP; without, over gRPC.
    path: Option<&'a str>,
}

impl RawExporter {
    /// Reads the block.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut raw = Self {
            node: node.clone(),
            endpoint: Setting::default(),
            trusted_certificate: Setting::default(),
            fields: Vec::new(),
            interval: Setting::default(),
            batch_size: Setting::default(),
            batch_count: Setting::default(),
        };
        for line in node.children()? {
            refuse_block(line)?;
            let is_field = line.name.is("header");
            if line.args.len() != if is_field { 2 } else { 1 } {
                return Err(line.invalid_count());
            }
            match &*line.name.bytes {
                b"endpoint" => raw.endpoint.set_once(line, line.arg(0)?.clone())?,
                b"trusted_certificate" => raw.trusted_certificate.set_once(line, line.arg(0)?.clone())?,
                b"interval" => raw.interval.set_with(line, Node::msec)?,
                b"batch_size" => raw.batch_size.set_with(line, positive)?,
                b"batch_count" => raw.batch_count.set_with(line, positive)?,
                b"header" => raw.fields.push(field(line)?),
                _ => {
                    return Err(
                        line.fail(format!("unknown directive \"{}\" in \"otel_exporter\"", line.name))
                    );
                }
            }
        }
        Ok(raw)
    }

    /// The destination of spans of a service with this name and these attributes.
    pub(super) fn resolve(
        self,
        service: &[u8],
        attributes: &[(Word, Word)],
        cx: &mut Resolve<'_>,
    ) -> Result<ExportTarget, ConfError> {
        let Self { node, endpoint, trusted_certificate, fields, interval, batch_size, batch_count } = self;
        let word = endpoint.take().ok_or_else(|| node.fail("\"otel_exporter\" requires \"endpoint\""))?;
        let text = word.lossy();
        let endpoint = Endpoint::parse(&text);
        let usual = if endpoint.is_secured { 443 } else { 80 };
        let group = upstream_block::alone(endpoint.authority, Some(usual), || false)
            .map_err(|error| node.fail(format!("{error} in \"endpoint {word}\"")).at(word.span))?;
        let (transport, protocol) = match endpoint.path {
            Some(_) => (Transport::Http, OwnProtocol::Http1),
            None => (Transport::Grpc, OwnProtocol::Http2),
        };
        let secured = if endpoint.is_secured {
            let inside = if protocol == OwnProtocol::Http2 { TlsProtocol::Http2 } else { TlsProtocol::Any };
            let verified = VerifiedTls { trusted: trusted_certificate.take(), crl: None, inside };
            let tls = verified.resolve(&node, "otel_exporter", "otel_exporter_", cx)?;
            tls.for_server(endpoint.authority.as_bytes())
        } else {
            None
        };
        let mut resource = Vec::new();
        let mut scope = Vec::new();
        Message(&mut resource).message(1, |m| {
            push_attribute(m, 1, b"service.name", |m| m.string(1, service));
            for (name, value) in attributes.iter().filter(|(name, _)| *name.bytes != *b"service.name") {
                push_attribute(m, 1, &name.bytes, |m| m.string(1, &value.bytes));
            }
        });
        Message(&mut scope).message(1, |m| {
            m.string(1, b"tailwater");
            m.string(2, env!("CARGO_PKG_VERSION").as_bytes());
        });
        Ok(ExportTarget {
            heads: [Signal::Traces, Signal::Metrics].map(|signal| head(&endpoint, signal, &fields)),
            endpoint: (&*text).into(),
            transport,
            server: OwnServer { group, secured, protocol, head_max: RESPONSE_HEAD_MAX },
            resource,
            scope,
            interval: interval.or(None, INTERVAL),
            batch_size: batch_size.or(None, BATCH_SIZE),
            batch_count: batch_count.or(None, BATCH_COUNT),
        })
    }
}

impl ExportTarget {
    /// The request that carries `body`.
    pub(super) fn request(&self, signal: Signal, body: Bytes) -> OwnRequest {
        let head = format!("{}Content-Length: {}\r\n\r\n", self.heads[signal as usize], body.len());
        let timeout = WAIT_TIME_MAX;
        let total = EXPORT_TIME_MAX;
        OwnRequest { head: head.into(), body, timeout, total, size_max: RESPONSE_BODY_MAX }
    }
}

#[cfg(test)]
impl ExportTarget {
    /// A destination that is never asked.
    pub(super) fn for_tests(batch_size: usize, batch_count: usize) -> Self {
        let group = upstream_block::alone("127.0.0.1:1", None, || false).expect("an address");
        Self {
            endpoint: "".into(),
            transport: Transport::Grpc,
            server: OwnServer {
                group,
                secured: None,
                protocol: OwnProtocol::Http2,
                head_max: RESPONSE_HEAD_MAX,
            },
            heads: Default::default(),
            resource: Vec::new(),
            scope: Vec::new(),
            interval: INTERVAL,
            batch_size,
            batch_count,
        }
    }
}

impl<'a> Endpoint<'a> {
    fn parse(text: &'a str) -> Self {
        let (is_secured, rest) = match (strip_scheme(text, "https://"), strip_scheme(text, "http://")) {
            (Some(rest), _) => (true, rest),
            (None, rest) => (false, rest.unwrap_or(text)),
        };
        // A Unix socket has slashes in its address.
        let slash = if rest.starts_with("unix:") { None } else { rest.find('/') };
        let (authority, path) = rest.split_at(slash.unwrap_or(rest.len()));
        Self { is_secured, authority, path: Some(path).filter(|path| path.len() > 1) }
    }
}

fn strip_scheme<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let (begin, rest) = text.split_at_checked(scheme.len())?;
    begin.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Request line and fields.
fn head(endpoint: &Endpoint<'_>, signal: Signal, fields: &[(Word, Word)]) -> Box<str> {
    let host = if endpoint.authority.starts_with("unix:") { "localhost" } else { endpoint.authority };
    let (path, kind) = match endpoint.path {
        Some(path) => (signal.http_path(path), "application/x-protobuf"),
        None => (signal.grpc_path().to_owned(), "application/grpc"),
    };
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nUser-Agent: tailwater/{}\r\n",
        env!("CARGO_PKG_VERSION")
    );
    if endpoint.path.is_none() {
        head += "TE: trailers\r\n";
    }
    for (name, value) in fields {
        // Writing to a string does not fail.
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.into()
}

fn positive(line: &Node) -> Result<usize, ConfError> {
    let number = usize::try_from(line.number()?).ok().filter(|number| *number > 0);
    number.ok_or_else(|| line.invalid_value(&line.args[0]))
}

/// Reads `header`: a name, and a value that fits in one line.
fn field(line: &Node) -> Result<(Word, Word), ConfError> {
    let [name, value] = line.words()?;
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if name.bytes.is_empty() || !name.bytes.iter().all(is_char) {
        return Err(line.fail(format!("invalid header name \"{name}\"")).at(name.span));
    }
    if !value.bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(line.fail(format!("invalid header value \"{value}\"")).at(value.span));
    }
    Ok((name.clone(), value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_transport_and_address() {
        for (text, is_secured, authority, path) in [
            ("localhost:4317", false, "localhost:4317", None),
            ("http://localhost:4317", false, "localhost:4317", None),
            ("http://localhost:4317/", false, "localhost:4317", None),
            ("HTTPS://a:4317", true, "a:4317", None),
            ("http://a:4318/v1/traces", false, "a:4318", Some("/v1/traces")),
            ("https://[::1]:4318/v1/traces?a=b", true, "[::1]:4318", Some("/v1/traces?a=b")),
            ("unix:/run/otel.sock", false, "unix:/run/otel.sock", None),
            ("", false, "", None),
        ] {
            assert_eq!(Endpoint::parse(text), Endpoint { is_secured, authority, path }, "{text}");
        }
    }
}
