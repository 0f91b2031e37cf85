//! Explanation of a session (`--explain imap://…`, `pop3s://…`, `smtp://…`): the listening address, the server, the methods of a login, and
//! the auth server. Nothing is run.

use tw_accept::{find_destination, no_destination};
use tw_conf::Span;

use crate::config::{Generation, Server};
use crate::dialogue::{AuthMethod, MailProtocol, StartTls};

/// The session to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailToExplain {
    /// The host that a client connects to: a name or an address; IPv6 in brackets.
    pub host: Vec<u8>,
    /// The port that it connects to.
    pub port: u16,
    /// Protocol that it speaks.
    pub protocol: MailProtocol,
    /// True if it begins with a TLS handshake.
    pub is_tls: bool,
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

/// Explains a session by `generation`, which is not in use.
///
/// # Errors
/// Reason why there is nothing to explain.
pub fn explain(generation: &Generation, session: &MailToExplain) -> Result<Vec<Line>, String> {
    let listening = &generation.config.listening;
    let addresses = listening.addresses();
    let position = find_destination(addresses.clone(), &session.host, session.port);
    let address = position.and_then(|at| addresses.clone().nth(at));
    let Some(group) = address.and_then(|address| listening.find(address)) else {
        return Err(no_destination(addresses, session.port));
    };
    let server = generation.config.server(group.default_server);
    let speaks = server.protocol.name();
    if server.protocol != session.protocol {
        return Err(format!("the server of {} speaks {speaks}", group.address));
    }
    match (group.ssl, session.is_tls) {
        (true, false) => return Err(format!("{} expects a TLS handshake: {speaks}s://", group.address)),
        (false, true) => return Err(format!("{} expects no TLS handshake: {speaks}://", group.address)),
        _ => {}
    }
    let tls = if group.ssl { " ssl" } else { "" };
    let proxy = if group.proxy_protocol { " proxy_protocol" } else { "" };
    let line = |about, text: String| Line { about, text, span: None };
    let mut lines = vec![
        Line { span: Some(server.span), ..line("listen", format!("{}{tls}{proxy}", group.address)) },
        line("protocol", speaks.to_owned()),
        line("starttls", starttls(server, group.ssl)),
        line("login", methods(server)),
    ];
    lines.extend(auth_server(server));
    let to = "the address that it answers with, Auth-Server and Auth-Port".to_owned();
    lines.push(line("upstream", to));
    Ok(lines)
}

fn starttls(server: &Server, is_tls: bool) -> String {
    match (is_tls, server.starttls) {
        (true, _) => "not offered, the connection is over TLS".to_owned(),
        (false, StartTls::Off) => "off".to_owned(),
        (false, StartTls::On) => "on".to_owned(),
        (false, StartTls::Only) => "only: no login without it".to_owned(),
    }
}

/// Methods of a login, by their names in the configuration.
fn methods(server: &Server) -> String {
    let methods = AuthMethod::ALL.into_iter().filter(|method| server.dialogue.methods.has(*method));
    methods.map(AuthMethod::name).collect::<Vec<_>>().join(" ")
}

/// The auth server, and the members of its group.
fn auth_server(server: &Server) -> Vec<Line> {
    let Some(target) = &server.auth_http.target else { return Vec::new() };
    let scheme = if target.is_secured { "https" } else { "http" };
    let group = &target.group;
    let uri = String::from_utf8_lossy(&target.uri);
    let text = format!("{scheme}://{}{uri}", group.peers.name());
    let mut lines = vec![Line { about: "auth_http", text, span: None }];
    if group.is_named {
        let list = group.peers.list();
        let member = |text: String| Line { about: "", text, span: None };
        lines.extend(
            list.servers().iter().map(|(_, server)| member(tw_connect::upstream_block::server::text(server))),
        );
    }
    lines
}
