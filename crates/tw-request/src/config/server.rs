//! Core settings of a server (nginx: ngx_http_core_module, server level).

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{
    Args, Buffers, ConfError, Directive, HTTP, IneffectiveDirectives, SERVER, Setting, Span, Word, record,
};
use tw_core::module::Settings;
use tw_core::server_names::{ServerName, display_name};
use tw_http::HeadLimits;

use super::listen::Listen;
use crate::protocol::{Http, Resolve};
use crate::vars::Template;

/// Settings for all requests of a server.
pub struct ServerSettings {
    /// `server_name`, as they are looked up: the empty name if there is none, for requests without a host.
    pub names: Vec<ServerName>,
    /// The first `server_name`, for `$server_name` and redirects.
    pub name: Box<[u8]>,
    /// Places of the [`names`](Self::names); fewer if one is not written.
    pub name_spans: Vec<Span>,
    /// `listen`, without the default that applies when there is none.
    pub listens: Vec<Listen>,
    /// `ssl`: every `listen` is one of TLS.
    pub ssl: bool,
    /// `client_header_timeout`
    pub client_header_timeout: Duration,
    /// `client_header_buffer_size`, `large_client_header_buffers`, `max_headers` and the switches of the parser.
    pub head: HeadLimits,
    /// `client_body_early_read`: conditions under which a body is read before the location's handlers run.
    pub client_body_early_read: Arc<[Template]>,
}

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time in which a whole request head must arrive.
    directive "client_header_timeout", "the connection is closed; the access log says 408";
    /// Bytes of a request head before large_client_header_buffers count.
    directive "client_header_buffer_size", "the next limit";
    /// Bytes of one line of a request head, and of all lines that do not fit the first buffer.
    directive "large_client_header_buffers", "414 for the request line, 494 for a field (the client sees 400)";
    /// Fields of one request.
    directive "max_headers", "494 (the client sees 400)";
}

/// Core settings of a server as written.
#[derive(Default)]
pub struct Raw {
    server_name: Setting<Vec<Word>>,
    listen: Setting<Vec<Listen>>,
    ssl: Setting<bool>,
    client_header_timeout: Setting<Duration>,
    client_header_buffer_size: Setting<usize>,
    large_client_header_buffers: Setting<Buffers>,
    max_headers: Setting<usize>,
    ignore_invalid_headers: Setting<bool>,
    underscores_in_headers: Setting<bool>,
    merge_slashes: Setting<bool>,
    client_body_early_read: Setting<Vec<Word>>,
    without_effect: IneffectiveDirectives,
}

impl Settings<Http> for ServerSettings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("server_name", "name …", SERVER, Args::at_least(1))
            .default("\"\"")
            .doc("Names of the server: exact, *.example.com, www.example.*, .example.com, or ~regex.")
            .set(|raw, node, _| {
                for word in &node.args {
                    raw.server_name.push(node, word.clone());
                }
                Ok(())
            }),
        record::new("listen", "address[:port] | port | unix:path [parameters]", SERVER, Args::at_least(1))
            .default("*:80")
            .doc("Address and port, or unix socket, on which the server answers.")
            .set(|raw, node, cx| {
                let listen = Listen::parse(node, cx)?;
                raw.listen.push(node, listen);
                Ok(())
            }),
        // DIFF(nginx): as before 1.25.1, which refuses it.
        record::flag("ssl", HTTP | SERVER)
            .default("off")
            .doc("Makes every \"listen\" of the server one of TLS; deprecated, use \"listen ... ssl\".")
            .set(|raw, node, cx| {
                let message =
                    "the \"ssl\" directive is deprecated, use the \"listen ... ssl\" directive instead";
                cx.warn(node.span, message);
                raw.ssl.set_flag(node)
            }),
        record::time("client_header_timeout", HTTP | SERVER)
            .default("60s")
            .doc("Time in which a whole request head must arrive. Then the connection is closed without a response, and the access log says 408.")
            .set(|raw, node, _| raw.client_header_timeout.set_msec(node)),
        record::size("client_header_buffer_size", HTTP | SERVER)
            .default("1k")
            .doc("First buffer for a request head.")
            .set(|raw, node, _| raw.client_header_buffer_size.set_size(node)),
        record::new("large_client_header_buffers", "number size", HTTP | SERVER, Args::exact(2))
            .default("4 8k")
            .doc("Number and size of further buffers; a line must fit into one.")
            .set(|raw, node, _| raw.large_client_header_buffers.set_buffers(node)),
        record::number("max_headers", HTTP | SERVER)
            .default("1000")
            .since("1.29.8")
            .doc("Fields of one request.")
            .set(|raw, node, _| raw.max_headers.set_number(node)),
        record::flag("ignore_invalid_headers", HTTP | SERVER)
            .default("on")
            .doc("Leaves out fields with odd characters in their name.")
            .set(|raw, node, _| raw.ignore_invalid_headers.set_flag(node)),
        record::flag("underscores_in_headers", HTTP | SERVER)
            .default("off")
            .doc("Allows underscores in field names.")
            .set(|raw, node, _| raw.underscores_in_headers.set_flag(node)),
        record::flag("merge_slashes", HTTP | SERVER)
            .default("on")
            .doc("Turns several slashes of a path into one.")
            .set(|raw, node, _| raw.merge_slashes.set_flag(node)),
        record::new("client_body_early_read", "string …", HTTP | SERVER, Args::at_least(1))
            .since("1.31.5")
            .doc(
                "Reads the request body before a location's handlers run, if a value is neither empty nor 0.",
            )
            .set(|raw, node, _| raw.client_body_early_read.set_once(node, node.args.clone())),
        without_effect("server_names_hash_max_size", HTTP),
        without_effect("server_names_hash_bucket_size", HTTP),
        without_effect("variables_hash_max_size", HTTP),
        without_effect("variables_hash_bucket_size", HTTP),
        without_effect("connection_pool_size", HTTP | SERVER),
        without_effect("request_pool_size", HTTP | SERVER),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let words = raw.server_name.take().unwrap_or_default();
        let names = ServerName::resolve_all(&words, cx)?;
        let name = display_name(&words, cx);
        let head = outer.map(|o| o.head);
        let large = raw.large_client_header_buffers.or(
            head.map(|h| Buffers { count: h.large_buffers_count, size: h.large_buffer_size }),
            Buffers { count: 4, size: 8 << 10 },
        );
        let early_read = match raw.client_body_early_read.take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<Arc<[_]>, _>>()?,
            None => {
                outer.map_or_else(|| Arc::new([]) as Arc<[Template]>, |o| o.client_body_early_read.clone())
            }
        };
        let ssl = raw.ssl.or(outer.map(|o| o.ssl), false);
        let mut listens = raw.listen.take().unwrap_or_default();
        if ssl {
            if listens.is_empty() {
                listens.push(Listen::implied());
            }
            listens.iter_mut().for_each(|listen| listen.ssl = true);
        }
        Ok(Self {
            names,
            name_spans: words.iter().map(|word| word.span).collect(),
            name,
            listens,
            ssl,
            client_header_timeout: raw
                .client_header_timeout
                .or(outer.map(|o| o.client_header_timeout), Duration::from_secs(60)),
            head: HeadLimits {
                client_header_buffer_size: raw
                    .client_header_buffer_size
                    .or(head.map(|h| h.client_header_buffer_size), 1 << 10),
                large_buffers_count: large.count,
                large_buffer_size: large.size,
                max_headers: raw.max_headers.or(head.map(|h| h.max_headers), 1000),
                ignore_invalid_headers: raw
                    .ignore_invalid_headers
                    .or(head.map(|h| h.ignore_invalid_headers), true),
                underscores_in_headers: raw
                    .underscores_in_headers
                    .or(head.map(|h| h.underscores_in_headers), false),
                merge_slashes: raw.merge_slashes.or(head.map(|h| h.merge_slashes), true),
                allow_connect: false,
            },
            client_body_early_read: early_read,
        })
    }

    fn are_shared(&self) -> bool {
        // No code asks for these settings in a location.
        true
    }
}

const fn without_effect(name: &'static str, contexts: u32) -> Directive<Raw> {
    record::new(name, "size", contexts, Args::exact(1))
        .doc("Accepted and without effect: there is no table or buffer here that needs this size.")
        .set(|raw, node, _| {
            node.size()?;
            raw.without_effect.set_once(node)
        })
}
