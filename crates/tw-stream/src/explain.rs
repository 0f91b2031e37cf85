//! Explanation of a session (`--explain tcp://…`, `udp://…`): the listening address, the modules of its server in the order of the phases, and
//! the upstream servers. Nothing is run: what depends on the session is named as such.

use tw_accept::{find_destination, no_destination};
use tw_conf::Span;
use tw_net::listen::SocketKind;

use crate::config::Config;

/// The session to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionToExplain {
    /// The host that a client connects to: a name or an address; IPv6 in brackets.
    pub host: Vec<u8>,
    /// The port that it connects to.
    pub port: u16,
    /// Kind of the socket: a connection, or datagrams.
    pub kind: SocketKind,
}

/// One line of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Subject; empty if the line continues the one before.
    pub about: &'static str,
    /// Statement.
    pub text: String,
    /// Place of the directive.
    pub span: Option<Span>,
}

/// Explains a session by a configuration.
///
/// # Errors
/// No server of `stream` listens there.
pub fn explain(config: &Config, session: &SessionToExplain) -> Result<Vec<Line>, String> {
    let addresses = config.listening.addresses(session.kind);
    let Some(address) = find_destination(addresses.clone(), &session.host, session.port)
        .and_then(|at| addresses.clone().nth(at))
    else {
        return Err(no_destination(addresses, session.port));
    };
    let Some(group) = config.listening.find(address, session.kind) else { return Ok(Vec::new()) };
    let group = &group.servers;
    let server = config.server(group.default_server);
    let listen = server.settings.listens.iter().find(|listen| listen.addresses.contains(address));
    let note = if group.proxy_protocol { ", behind the PROXY protocol" } else { "" };
    let line = |about, text: String| Line { about, text, span: None };
    let span = listen.and_then(|listen| listen.span);
    let mut lines = vec![Line { about: "listen", text: format!("{address}{note}"), span }];
    let plan = &server.plan;
    for (phase, modules) in plan.modules.before_content() {
        if !modules.is_empty() {
            lines.push(line(phase, modules.join(", ")));
        }
    }
    match (&plan.content, plan.modules.content) {
        (Some(handler), Some(module)) => {
            lines.push(line("content", module.to_owned()));
            lines.extend(handler.explain().into_iter().map(|(about, text)| line(about, text)));
        }
        _ => lines.push(line("content", "none: sessions end with status 500".to_owned())),
    }
    if !plan.modules.log.is_empty() {
        lines.push(line("log", plan.modules.log.join(", ")));
    }
    Ok(lines)
}
