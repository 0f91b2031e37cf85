//! Settings of HTTP/2 (nginx: ngx_http_v2_module): who speaks it, and within which limits.

use std::sync::Arc;

use tw_conf::{
    Args, ConfError, Contexts, Cx, Directive, HTTP, IneffectiveDirectives, LOCATION, Node, SERVER, Setting,
    record,
};
use tw_core::module::Settings;

use tw_request::generation::Server;
use tw_request::plan::Plan;
use tw_request::protocol::{Http, Resolve};

/// Largest window (RFC 9113 section 6.9.1).
const WINDOW_MAX: usize = (1 << 31) - 1;
// DIFF(nginx): 8 KiB there.
/// `http2_chunk_size` by default: what every client takes in one frame (RFC 9113 section 4.2). Half of the frames cost half as
/// much, and who goes first is decided by turns, which are larger.
const CHUNK_SIZE: usize = 16 << 10;
/// Content of the largest frame there is (RFC 9113 section 4.2).
const CHUNK_SIZE_MAX: usize = (1 << 24) - 1;
/// Bytes that nginx keeps of a frame between two reads: its buffer must be larger.
const RECV_BUFFER_MIN: usize = 16;
/// nginx's bounds of a pool.
const POOL_SIZE_MIN: u64 = 256;
const POOL_ALIGNMENT: u64 = 16;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Requests of one connection of HTTP/2 that run at the same time.
    directive "http2_max_concurrent_streams", "further ones are refused (REFUSED_STREAM), which says that nothing was done about them";
    /// Bytes of a request body in HTTP/2 that its client may send before they are asked for.
    directive "http2_body_preread_size", "the client has to wait (flow control)";
    /// Bytes that one turn of a loop reads from a connection of HTTP/2.
    directive "http2_recv_buffer_size", "the other connections have their turn first";
}

/// Settings with nothing left unset.
pub struct Http2 {
    /// `http2`
    pub is_on: bool,
    /// `http2_max_concurrent_streams`
    pub streams_max: u32,
    /// `http2_body_preread_size`: the window of a stream.
    pub body_preread_size: u32,
    /// `http2_recv_buffer_size`: bytes read in one turn.
    pub recv_buffer_size: usize,
    /// `http2_chunk_size`: content of one frame.
    chunk_size: usize,
}

/// HTTP/2 settings as written.
#[derive(Default)]
pub struct Raw {
    http2: Setting<bool>,
    max_concurrent_streams: Setting<usize>,
    body_preread_size: Setting<usize>,
    recv_buffer_size: Setting<usize>,
    chunk_size: Setting<usize>,
    without_effect: IneffectiveDirectives,
}

const EVERYWHERE: Contexts = HTTP | SERVER;

impl Settings<Http> for Http2 {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("http2", EVERYWHERE)
            .default("off")
            .since("1.25.1")
            .doc(
                "Enables HTTP/2: with TLS for clients that select it (ALPN), without TLS for clients that start with it (prior knowledge).",
            )
            .set(|raw, node, _| raw.http2.set_flag(node)),
        record::number("http2_max_concurrent_streams", EVERYWHERE)
            .default("128")
            .since("1.9.5")
            .doc("Maximum number of concurrent requests on one connection.")
            .set(|raw, node, _| raw.max_concurrent_streams.set_number(node)),
        record::size("http2_body_preread_size", EVERYWHERE)
            .default("64k")
            .since("1.11.0")
            .doc("Bytes of a request body that a client may send before the server reads it.")
            .set(|raw, node, _| {
                raw.body_preread_size.set_size(node)?;
                match raw.body_preread_size.get() {
                    Some(size) if *size > WINDOW_MAX => {
                        Err(node.fail(format!("the maximum body preread buffer size is {WINDOW_MAX}")))
                    }
                    _ => Ok(()),
                }
            }),
        record::size("http2_recv_buffer_size", HTTP)
            .default("256k")
            .since("1.9.5")
            .doc("Bytes that an event loop reads from a connection in one turn.")
            .set(|raw, node, _| {
                raw.recv_buffer_size.set_size(node)?;
                match raw.recv_buffer_size.get() {
                    Some(size) if *size <= RECV_BUFFER_MIN => Err(node.error("value is too small")),
                    _ => Ok(()),
                }
            }),
        record::size("http2_chunk_size", HTTP | SERVER | LOCATION)
            .default("16k")
            .since("1.9.5")
            .doc("Maximum number of bytes of a response in one frame, within the limit of the client.")
            .set(|raw, node, _| {
                raw.chunk_size.set_size(node)?;
                match raw.chunk_size.get() {
                    Some(0) => Err(node.fail("the http2 chunk size cannot be zero")),
                    _ => Ok(()),
                }
            }),
        record::size("http2_pool_size", EVERYWHERE)
            .since("1.9.5")
            .doc("Accepted and without effect: there is no pool that needs this size.")
            .set(|raw, node, _| {
                raw.without_effect.set_once(node)?;
                let size = node.size()?;
                if size < POOL_SIZE_MIN {
                    return Err(node.fail(format!("the pool size must be no less than {POOL_SIZE_MIN}")));
                }
                if size % POOL_ALIGNMENT != 0 {
                    return Err(node.fail(format!("the pool size must be a multiple of {POOL_ALIGNMENT}")));
                }
                Ok(())
            }),
        record::number("http2_streams_index_size", EVERYWHERE)
            .since("1.9.5")
            .doc("Accepted and without effect: there is no table that needs this size.")
            .set(|raw, node, _| match node.number()? {
                size if size.is_power_of_two() => raw.without_effect.set_once(node),
                _ => Err(node.error("must be a power of two")),
            }),
        replaced("http2_recv_timeout", "time", |_, node, cx| obsolete(node, cx, "client_header_timeout")),
        replaced("http2_idle_timeout", "time", |_, node, cx| obsolete(node, cx, "keepalive_timeout")),
        replaced("http2_max_requests", "number", |_, node, cx| obsolete(node, cx, "keepalive_requests")),
        replaced("http2_max_field_size", "size", |_, node, cx| {
            obsolete(node, cx, "large_client_header_buffers")
        }),
        replaced("http2_max_header_size", "size", |_, node, cx| {
            obsolete(node, cx, "large_client_header_buffers")
        }),
        forgotten("http2_max_concurrent_pushes", "number", EVERYWHERE),
        forgotten("http2_push", "uri | off", HTTP | SERVER | LOCATION),
        forgotten("http2_push_preload", "on | off", HTTP | SERVER | LOCATION),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let streams_max = raw.max_concurrent_streams.take().map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        let preread = raw.body_preread_size.take().map(|size| size.min(WINDOW_MAX) as u32);
        Ok(Self {
            is_on: raw.http2.or(outer.map(|o| o.is_on), false),
            streams_max: streams_max.or(outer.map(|o| o.streams_max)).unwrap_or(128),
            body_preread_size: preread.or(outer.map(|o| o.body_preread_size)).unwrap_or(64 << 10),
            recv_buffer_size: raw.recv_buffer_size.or(outer.map(|o| o.recv_buffer_size), 256 << 10),
            chunk_size: raw.chunk_size.or(outer.map(|o| o.chunk_size), CHUNK_SIZE).min(CHUNK_SIZE_MAX),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        plan.chunk_size = self.chunk_size;
    }
}

impl Http2 {
    /// Settings of a server; `None` for one that was not loaded from a configuration.
    pub(crate) fn of(server: &Server) -> Option<&Self> {
        server.parts.find()
    }
}

/// A directive of nginx's past, which another one has replaced.
const fn replaced(
    name: &'static str,
    syntax: &'static str,
    set: fn(&mut Raw, &Node, &mut Cx<'_>) -> Result<(), ConfError>,
) -> Directive<Raw> {
    record::new(name, syntax, EVERYWHERE, Args::exact(1))
        .since("1.9.5")
        .doc("Obsolete and without effect: replaced by another directive.")
        .set(set)
}

/// A directive of nginx's past for what is no more.
const fn forgotten(name: &'static str, syntax: &'static str, contexts: Contexts) -> Directive<Raw> {
    record::new(name, syntax, contexts, Args::exact(1))
        .since("1.13.9")
        .doc("Obsolete and without effect: server push is not supported.")
        .set(|_, node, cx| {
            cx.warn(node.span, format!("the \"{}\" directive is obsolete, ignored", node.name));
            Ok(())
        })
}

fn obsolete(node: &Node, cx: &mut Cx<'_>, instead: &str) -> Result<(), ConfError> {
    let message =
        format!("the \"{}\" directive is obsolete, use the \"{instead}\" directive instead", node.name);
    cx.warn(node.span, message);
    Ok(())
}
