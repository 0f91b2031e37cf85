//! Core directives of `stream` and its servers (nginx: ngx_stream_core_module).

use std::time::Duration;

use tw_accept::listen::Listen;
use tw_conf::{
    Args, ConfError, Cx, Directive, IneffectiveDirectives, Node, STREAM, STREAM_SERVER, Setting, Word, record,
};
use tw_connect::Resolving;
use tw_connect::resolving::RawResolving;
use tw_core::load::Resolve;
use tw_core::log::{LogTarget, RawLogTag};
use tw_core::module::Settings;
use tw_core::server_names::{ServerName, display_name};
use tw_net::listen::SocketKind;

use crate::protocol::Stream;

pub use crate::config::ServerSettings;

const ALL: u32 = STREAM | STREAM_SERVER;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a client that modules look at before its session goes on.
    directive "preread_buffer_size", "the session ends with status 400";
    /// Time in which these bytes must arrive.
    directive "preread_timeout", "the session ends";
    /// Time in which the PROXY protocol header of a session must arrive.
    directive "proxy_protocol_timeout", "the session ends";
}

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    server_name: Setting<Vec<Word>>,
    listen: Setting<Vec<Listen>>,
    error_log: Setting<Vec<LogTarget>>,
    error_log_tags: Setting<Vec<RawLogTag>>,
    resolving: RawResolving,
    tcp_nodelay: Setting<bool>,
    proxy_protocol_timeout: Setting<Duration>,
    preread_buffer_size: Setting<usize>,
    preread_timeout: Setting<Duration>,
    without_effect: IneffectiveDirectives,
}

impl Settings<Stream> for ServerSettings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "listen",
            "address:port | port | unix:path [parameters]",
            STREAM_SERVER,
            Args::at_least(1),
        )
        .doc("Address and port, range of ports, or unix socket, on which sessions begin.")
        .set(|raw, node, cx| {
            let listen = read_listen(node, cx)?;
            raw.listen.push(node, listen);
            Ok(())
        }),
        record::new("server_name", "name …", STREAM_SERVER, Args::at_least(1))
            .default("\"\"")
            .since("1.25.5")
            .doc("Names of the server, by which clients select it in a TLS handshake (SNI): exact, *.example.com, www.example.*, .example.com, or ~regex.")
            .set(|raw, node, _| {
                for word in &node.args {
                    raw.server_name.push(node, word.clone());
                }
                Ok(())
            }),
        record::new("error_log", "file | stderr | syslog:… | memory:size [level] [json]", ALL, Args::at_least(1))
            .default("logs/error.log error")
            .doc("Log file or syslog server for errors of sessions, and the minimum level; with json, each line is an object.")
            .set(|raw, node, cx| {
                let target = LogTarget::parse(node, cx)?;
                raw.error_log.push(node, target);
                Ok(())
            }),
        record::new("error_log_tag", "name value", ALL, Args::exact(2))
            .since("Tailwater 0.2")
            .doc("Adds a name and a value, which may hold variables, to the tags of lines in an error log in JSON. Inherited if the block has none of its own.")
            .set(|raw, node, _| RawLogTag::read(&mut raw.error_log_tags, node)),
        record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", ALL, Args::at_least(1))
            .since("1.11.3")
            .doc("Name servers, for names that are not known before a session needs them.")
            .set(|raw, node, _| raw.resolving.read(node)),
        record::time("resolver_timeout", ALL)
            .default("30s")
            .since("1.11.3")
            .doc("Time limit for resolving a name.")
            .set(|raw, node, _| raw.resolving.read_timeout(node)),
        record::flag("tcp_nodelay", ALL)
            .default("on")
            .since("1.9.4")
            .doc("Sends what is there at once, even if it is little.")
            .set(|raw, node, _| raw.tcp_nodelay.set_flag(node)),
        record::time("proxy_protocol_timeout", ALL)
            .default("30s")
            .since("1.11.4")
            .doc("Time in which a PROXY protocol header must arrive.")
            .set(|raw, node, _| raw.proxy_protocol_timeout.set_msec(node)),
        record::size("preread_buffer_size", ALL)
            .default("16k")
            .since("1.11.5")
            .doc("Bytes of a client that modules can look at before the session goes on.")
            .set(|raw, node, _| raw.preread_buffer_size.set_size(node)),
        record::time("preread_timeout", ALL)
            .default("30s")
            .since("1.11.5")
            .doc("Time in which these bytes must arrive.")
            .set(|raw, node, _| raw.preread_timeout.set_msec(node)),
        without_effect("server_names_hash_max_size"),
        without_effect("server_names_hash_bucket_size"),
        without_effect("variables_hash_max_size"),
        without_effect("variables_hash_bucket_size"),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let error_log = match raw.error_log.take() {
            Some(targets) => cx.error_log(targets)?,
            None => outer.map_or_else(|| cx.main_error_log(), |o| o.error_log.clone()),
        };
        let words = raw.server_name.take().unwrap_or_default();
        let half_minute = Duration::from_secs(30);
        Ok(Self {
            listens: raw.listen.take().unwrap_or_default(),
            names: ServerName::resolve_all(&words, cx)?,
            name: display_name(&words, cx),
            name_spans: words.iter().map(|word| word.span).collect(),
            error_log,
            error_log_tags: RawLogTag::resolve(raw.error_log_tags, outer.map(|o| &o.error_log_tags), cx)?,
            resolving: Resolving::resolve(raw.resolving, outer.map(|o| &o.resolving), cx),
            tcp_nodelay: raw.tcp_nodelay.or(outer.map(|o| o.tcp_nodelay), true),
            proxy_protocol_timeout: raw
                .proxy_protocol_timeout
                .or(outer.map(|o| o.proxy_protocol_timeout), half_minute),
            preread_buffer_size: raw.preread_buffer_size.or(outer.map(|o| o.preread_buffer_size), 16 << 10),
            preread_timeout: raw.preread_timeout.or(outer.map(|o| o.preread_timeout), half_minute),
        })
    }
}

const fn without_effect(name: &'static str) -> Directive<Raw> {
    record::new(name, "size", STREAM, Args::exact(1))
        .doc("Accepted and without effect: there is no table here that needs this size.")
        .set(|raw, node, _| {
            node.size()?;
            raw.without_effect.set_once(node)
        })
}

/// Reads the arguments of `listen`.
fn read_listen(node: &Node, cx: &mut Cx<'_>) -> Result<Listen, ConfError> {
    let mut listen = Listen::address(node, None)?;
    if node.args.iter().skip(1).any(|word| word.is("udp")) {
        refuse_options_of_connections(node)?;
        listen.options.kind = SocketKind::Datagram;
    }
    for word in node.args.iter().skip(1) {
        match word.as_str() {
            Some("udp") => {}
            _ => listen.parameter(node, word, cx)?,
        }
    }
    Ok(listen)
}

/// Refuses parameters beside `udp` that mean connections.
fn refuse_options_of_connections(node: &Node) -> Result<(), ConfError> {
    const OF_CONNECTIONS: [&str; 8] = [
        "ssl",
        "proxy_protocol",
        "fastopen",
        "backlog",
        "deferred",
        "multipath",
        "so_keepalive",
        "transparent",
    ];
    for word in node.args.iter().skip(1) {
        let has_name = |name: &&str| word.is(name) || word.param(name).is_some();
        if let Some(name) = OF_CONNECTIONS.iter().find(|name| has_name(name)) {
            let message = format!("\"{name}\" parameter is incompatible with \"udp\"");
            return Err(node.error(&message).at(word.span));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tw_conf::Span;

    use super::*;

    fn node(words: &[&str]) -> Node {
        let word = |text: &&str| Word { bytes: text.as_bytes().into(), span: Span::default(), quoted: false };
        let mut words = words.iter().map(word);
        let name = words.next().expect("a directive has a name");
        Node { name, args: words.collect(), block: None, span: Span::default(), end: Span::default() }
    }

    #[test]
    fn datagrams_have_no_options_of_connections() {
        let refusal = |words: &[&str]| {
            let words = [&["listen", "53", "udp"][..], words].concat();
            refuse_options_of_connections(&node(&words)).err().map(|error| error.message)
        };
        assert_eq!(refusal(&["reuseport", "rcvbuf=64k", "default_server"]), None);
        for option in ["ssl", "backlog=8", "fastopen=3", "so_keepalive=on", "deferred", "proxy_protocol"] {
            let message = refusal(&["reuseport", option]).expect("a socket of datagrams has no connections");
            let name = option.split('=').next().unwrap_or_default();
            assert!(
                message.contains(&format!("\"{name}\" parameter is incompatible with \"udp\"")),
                "{message}"
            );
        }
    }
}
