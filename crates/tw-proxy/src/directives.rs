//! Directives that the `*_pass` modules share, and their limits. Each is written once; the prefix, and whatever else differs, are
//! constants that a module gives for its settings as written.
//!
//! | list | modules |
//! |---|---|
//! | [`CONNECTION`](UpstreamDirectives::CONNECTION) | all |
//! | [`SOCKET_SIZES`](UpstreamDirectives::SOCKET_SIZES) | those whose connections may carry much |
//! | [`RESPONSE`](ProxyDirectives::RESPONSE) | those whose servers make responses to requests |
//! | [`BODIES`](ProxyDirectives::BODIES), [`CACHE`](tw_http_cache::settings::CacheDirectives::CACHE) | those that keep bodies |
//! | [`TLS`](tw_connect::tls_directives::UpstreamTlsDirectives::TLS) | those that may reach their servers over TLS |

use tw_base::PrefixedName;
use tw_base::limit::{self, Limit};
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Word, record, units};
use tw_connect::bind::read_bind;
use tw_upstream::RetryBudget;

use super::settings::{HasProxy, HasUpstream};
use super::store::RawStore;
use tw_request::config::location::TempPath;
use tw_request::config::permissions;
use tw_request::header_names::IgnoredHeaders;
use tw_request::retry_conditions::RetryWords;

const ALL: u32 = HTTP | SERVER | LOCATION;

tw_base::limits! {
    /// Limits of connections, which all gateways have.
    const CONNECTION_LIMITS;

    /// Bytes of the head of a response.
    directive "buffer_size", "502";
    /// Time until a connection is there.
    directive "connect_timeout", "the next server, or 504";
    /// Time between two writes of a request.
    directive "send_timeout", "the next server, or 504";
    /// Time between two reads of a response.
    directive "read_timeout", "the next server, or 504";
    /// Servers that one request is sent to.
    directive "next_upstream_tries", "the last one's answer";
}

tw_base::limits! {
    /// Limits of gateways that keep bodies.
    const BODY_LIMITS;

    use CONNECTION_LIMITS;
    /// Bytes of a response's body in memory.
    directive "buffers", "the rest goes to a temporary file, or waits";
    /// Bytes of a response's body in a temporary file.
    directive "max_temp_file_size", "the upstream server waits";
    /// Bytes of memory for what a cache knows of its entries.
    parameter "cache_path", "keys_zone=", "a size that must be given", "those nobody has asked for longest are removed";
    /// Bytes of a cache on its disk.
    parameter "cache_path", "max_size=", "none", "those nobody has asked for longest are removed";
    /// Time for which a request waits for another one's response.
    directive "cache_lock_timeout", "it asks for itself, and its response is not kept";
}

/// Directives of connections and attempts of a `*_pass` module, whose settings as written are `Self`.
pub trait UpstreamDirectives: HasUpstream + Sized + 'static {
    /// Prefix of the names of directives, such as `proxy_`.
    const PREFIX: &'static str;
    /// Words of `next_upstream`.
    const NEXT_UPSTREAM: RetryWords;
    /// Default of `buffer_size`.
    const BUFFER_SIZE: &'static str = "4k|8k";
    /// Documentation of `buffer_size`.
    const BUFFER_DOC: &'static str = "Bytes of the head of a response.";

    /// Records of connections and attempts, named without the prefix.
    const CONNECTION: &'static [Directive<Self>] = &[
        record::time("connect_timeout", ALL)
            .default("60s")
            .doc("Time until a connection to an upstream server is there.")
            .set(|raw, node, _| raw.upstream().timeouts.connect.set_msec(node)),
        record::time("send_timeout", ALL)
            .default("60s")
            .doc("Time between two writes of a request to an upstream server.")
            .set(|raw, node, _| raw.upstream().timeouts.send.set_msec(node)),
        record::time("read_timeout", ALL)
            .default("60s")
            .doc("Time between two reads of a response of an upstream server.")
            .set(|raw, node, _| raw.upstream().timeouts.read.set_msec(node)),
        record::number("next_upstream_tries", ALL)
            .default("0")
            .since("1.7.5")
            .doc("Servers that a request is sent to at most; 0 means all.")
            .set(|raw, node, _| raw.upstream().retry.tries.set_number(node)),
        record::time("next_upstream_timeout", ALL)
            .default("0")
            .since("1.7.5")
            .doc("Time in which a request may go to a next server; 0 means no limit.")
            .set(|raw, node, _| raw.upstream().retry.timeout.set_msec(node)),
        record::new(
            "next_upstream_budget",
            "percent% [min=number] | off",
            ALL,
            Args::range(1, 2),
        )
        .default("off")
        .since("Tailwater 0.2")
        .doc("Requests under way to a group of servers that may be retries, in percent of all, and as many as min at least (3). A request beyond that is not retried: its client gets the response or error there is.")
        .set(|raw, node, _| raw.upstream().retry.budget.set_with(node, read_retry_budget)),
        record::size("buffer_size", ALL)
            .default(Self::BUFFER_SIZE)
            .doc(Self::BUFFER_DOC)
            .set(|raw, node, _| raw.upstream().buffer_size.set_size(node)),
        record::new("bind", "address [transparent] | off", ALL, Args::range(1, 2))
            .since("0.8.22")
            .doc("Local address of connections to upstream servers; may contain variables.")
            .set(|raw, node, _| {
                let bind = read_bind(node)?;
                raw.upstream().connection.bind.set_once(node, bind)
            }),
        record::flag("bind_dynamic", ALL)
            .default("off")
            .since("1.29.3")
            .doc("Computes the local address for each connection instead of once for a request.")
            .set(|raw, node, _| raw.upstream().connection.bind_dynamic.set_flag(node)),
        record::flag("socket_keepalive", ALL)
            .default("off")
            .since("1.15.6")
            .doc("Sets SO_KEEPALIVE on connections to upstream servers.")
            .set(|raw, node, _| raw.upstream().connection.socket_keepalive.set_flag(node)),
        record::new("allow_upstream", "string …", ALL, Args::at_least(1))
            .since("1.29.3")
            .doc("Allows requests to an upstream server only if no string is empty or 0.")
            .set(|raw, node, _| {
                node.args
                    .iter()
                    .for_each(|word| raw.upstream().connection.allow.push(node, word.clone()));
                Ok(())
            }),
        record::new("next_upstream", Self::NEXT_UPSTREAM.syntax, ALL, Args::at_least(1))
            .default("error timeout")
            .doc("Failures after which a request is sent to the next server.")
            .set(|raw, node, cx| raw.upstream().retry.on.add_bits(node, Self::NEXT_UPSTREAM.words, cx)),
    ];

    /// Records of the buffers of sockets, named without the prefix.
    const SOCKET_SIZES: &'static [Directive<Self>] = &[
        record::size("socket_rcvbuf", ALL)
            .since("1.31.3")
            .doc("Sets SO_RCVBUF on connections to upstream servers.")
            .set(|raw, node, _| raw.upstream().connection.socket_rcvbuf.set_size(node)),
        record::size("socket_sndbuf", ALL)
            .since("1.31.3")
            .doc("Sets SO_SNDBUF on connections to upstream servers.")
            .set(|raw, node, _| raw.upstream().connection.socket_sndbuf.set_size(node)),
    ];

    /// Names of the directives that limit connections.
    const CONNECTION_LIMIT_NAMES: [PrefixedName; CONNECTION_LIMITS.len()] =
        limit::names(Self::PREFIX, CONNECTION_LIMITS);

    /// Limits of connections.
    const CONNECTION_LIMITS: &'static [Limit] =
        &limit::with_names(CONNECTION_LIMITS, &Self::CONNECTION_LIMIT_NAMES);
}

/// Directives of a `*_pass` module whose servers make responses to requests; its settings as written are `Self`.
pub trait ProxyDirectives: HasProxy + UpstreamDirectives {
    /// Records of responses, named without the prefix.
    const RESPONSE: &'static [Directive<Self>] = &[
        record::flag("intercept_errors", ALL)
            .default("off")
            .doc("Applies error_page to responses of upstream servers with a status of 300 or more.")
            .set(|raw, node, _| raw.proxy().response.intercept_errors.set_flag(node)),
        record::new("ignore_headers", "field …", ALL, Args::at_least(1))
            .doc("Fields of responses that have no meaning here.")
            .set(|raw, node, cx| raw.proxy().response.ignored.add_bits(node, IgnoredHeaders::WORDS, cx)),
        record::new("hide_header", "field", ALL, Args::exact(1))
            .doc("A field of responses that is not passed on.")
            .set(|raw, node, _| {
                let name = node.arg(0)?.bytes.to_ascii_lowercase();
                raw.proxy().response.hide.push(node, name.into());
                Ok(())
            }),
        record::new("pass_header", "field", ALL, Args::exact(1))
            .doc("A field of responses that is passed on although it usually is not.")
            .set(|raw, node, _| {
                let name = node.arg(0)?.bytes.to_ascii_lowercase();
                raw.proxy().response.pass.push(node, name.into());
                Ok(())
            }),
        record::flag("request_dynamic", ALL)
            .default("off")
            .since("1.29.3")
            .doc("Computes the request anew for each upstream server that it is sent to.")
            .set(|raw, node, _| raw.proxy().request.dynamic.set_flag(node)),
    ];

    /// Records of bodies that are kept, named without the prefix.
    const BODIES: &'static [Directive<Self>] = &[
        record::buffers("buffers", ALL)
            .default("8 4k|8k")
            .doc("What is kept of the body of a response in memory while the client is slower than the upstream server. When the client has left it full for 10 ms, and another 10 ms for each megabyte that it has taken, more goes to a temporary file.")
            .set(|raw, node, _| raw.proxy().buffers.memory.set_buffers(node)),
        record::size("busy_buffers_size", ALL)
            .default("8k|16k")
            .doc("Checked as nginx does, and without effect: what the client has not taken yet is not held in buffers of its own.")
            .set(|raw, node, _| raw.proxy().buffers.busy_size.set_size(node)),
        record::size("max_temp_file_size", ALL)
            .default("1024m")
            .doc("Bytes of the body of a response in a temporary file; 0 means none.")
            .set(|raw, node, _| raw.proxy().buffers.max_temp_file_size.set_offset(node)),
        record::size("temp_file_write_size", ALL)
            .default("8k|16k")
            .doc("Checked as nginx does, and without effect: what is in memory is written at once.")
            .set(|raw, node, _| raw.proxy().buffers.temp_file_write_size.set_size(node)),
        record::new("temp_path", "path [level1 [level2 [level3]]]", ALL, Args::range(1, 4))
            .doc("Directory of temporary files of responses.")
            .set(|raw, node, cx| {
                let path = TempPath::parse(node, cx)?;
                raw.proxy().buffers.temp_path.set_once(node, path)
            }),
        record::flag("buffering", ALL)
            .default("on")
            .doc("Reads responses of upstream servers ahead of slow clients.")
            .set(|raw, node, _| raw.proxy().buffers.buffering.set_flag(node)),
        record::flag("request_buffering", ALL)
            .default("on")
            .since("1.7.11")
            .doc("Reads the whole body of a request before the upstream server is asked.")
            .set(|raw, node, _| raw.proxy().request.buffering.set_flag(node)),
        record::flag("pass_request_headers", ALL)
            .default("on")
            .doc("Passes the header fields of the request to the upstream server.")
            .set(|raw, node, _| raw.proxy().request.pass_headers.set_flag(node)),
        record::flag("pass_request_body", ALL)
            .default("on")
            .doc("Passes the body of the request to the upstream server.")
            .set(|raw, node, _| raw.proxy().request.pass_body.set_flag(node)),
        record::flag("ignore_client_abort", ALL)
            .default("off")
            .doc("Continues requests to upstream servers whose clients have closed the connection.")
            .set(|raw, node, _| raw.proxy().request.ignore_client_abort.set_flag(node)),
        record::flag("force_ranges", ALL)
            .default("off")
            .since("1.7.7")
            .doc("Answers range requests even if the upstream server does not announce ranges.")
            .set(|raw, node, _| raw.proxy().response.force_ranges.set_flag(node)),
        record::new("limit_rate", "rate", ALL, Args::exact(1))
            .default("0")
            .since("1.7.7")
            .doc("Bytes per second that are read of a response; may hold variables. 0 means no limit.")
            .set(|raw, node, _| {
                let word = read_rate(node)?;
                raw.proxy().response.limit_rate.set_once(node, word)
            }),
        record::new("store", "on | off | path", ALL, Args::exact(1))
            .default("off")
            .doc("Stores a copy of each response as a file, at the path of the request or at this path, which may contain variables.")
            .set(|raw, node, _| {
                let store = RawStore::read(node)?;
                raw.proxy().store.store.set_once(node, store)
            }),
        record::new("store_access", "users:permissions …", ALL, Args::range(1, 3))
            .default("user:rw")
            .doc("Permissions of such files.")
            .set(|raw, node, _| raw.proxy().store.access.set_with(node, permissions::read)),
    ];

    /// Names of the directives that limit connections and bodies.
    const BODY_LIMIT_NAMES: [PrefixedName; BODY_LIMITS.len()] = limit::names(Self::PREFIX, BODY_LIMITS);

    /// Limits of connections and of bodies that are kept.
    const BODY_LIMITS: &'static [Limit] = &limit::with_names(BODY_LIMITS, &Self::BODY_LIMIT_NAMES);
}

impl<R: HasProxy + UpstreamDirectives> ProxyDirectives for R {}

/// Retries under way that a budget allows at least, unless `min` says otherwise: those of a single request that fails twice must not
/// depend on others.
const RETRIES_MIN: u32 = 3;

/// Reads `next_upstream_budget`.
fn read_retry_budget(node: &Node) -> Result<Option<RetryBudget>, ConfError> {
    let word = node.arg(0)?;
    let min = node.args.get(1);
    if *word.bytes == *b"off" {
        return match min {
            None => Ok(None),
            Some(min) => Err(node.invalid_parameter(min)),
        };
    }
    let percent = word.bytes.strip_suffix(b"%").and_then(units::number).filter(|percent| *percent <= 100);
    let percent = percent.ok_or_else(|| {
        node.fail(format!("invalid budget \"{word}\""))
            .at(word.span)
            .hint("a budget is a number of percent, such as 20%")
    })?;
    let min = match min {
        None => RETRIES_MIN,
        Some(word) => word
            .param("min")
            .and_then(units::number)
            .and_then(|min| u32::try_from(min).ok())
            .ok_or_else(|| node.invalid_parameter(word))?,
    };
    // The percentage is at most 100.
    Ok(Some(RetryBudget { percent: percent as u32, min }))
}

/// Reads a rate, which may hold variables: checked now if it does not.
fn read_rate(node: &Node) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    if !word.bytes.contains(&b'$') && word.size().is_none() {
        return Err(node.error("invalid value"));
    }
    Ok(word.clone())
}
