//! Explanation of a session (`--explain tcp://…`, `udp://…`, `tls://…`): the listening address, the modules of its server in the order of
//! the phases, and the upstream servers. Nothing is run, and whatever depends on the session is named as such; except for a client that
//! names a server in its TLS handshake (SNI): the code that serves sessions selects the server and the target by that name, on a loop of
//! its own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use tw_accept::{find_destination, literal, local_address, no_destination};
use tw_conf::Span;
use tw_core::event_loop::{Counts, LoopConfiguration, LoopCore};
use tw_core::regex::Captures;
use tw_net::Addr;
use tw_net::listen::SocketKind;
use tw_rt::LoopOptions;
use tw_tls::client_hello;
use tw_tls_settings::TlsInfo;

use crate::client::{Client, ClientConnection};
use crate::config::{Config, GenerationRef, LoopGeneration, Server};
use crate::listening::AddressGroup;
use crate::plan::{PrereadEntry, PrereadStep};
use crate::server_choice::choose_server;
use crate::session::{SessionTransport, StreamSession};
use crate::stream_loop::StreamLoop;

/// The session to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionToExplain {
    /// The host that a client connects to: a name or an address; IPv6 in brackets.
    pub host: Vec<u8>,
    /// The port that it connects to.
    pub port: u16,
    /// First bytes of the client.
    pub protocol: ExplainedProtocol,
}

/// Protocol of the session to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainedProtocol {
    /// A connection, of whose bytes nothing is known.
    Tcp,
    /// Datagrams.
    Udp,
    /// A connection whose client begins a TLS handshake and names the host in it.
    Tls,
}

impl ExplainedProtocol {
    fn socket_kind(self) -> SocketKind {
        match self {
            Self::Tcp | Self::Tls => SocketKind::Stream,
            Self::Udp => SocketKind::Datagram,
        }
    }
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

/// Explains a session by `generation`, which is not in use. For TLS, starts a thread with a loop and ends it. The inner error is the
/// reason why there is nothing to explain.
///
/// # Errors
/// Failure to start the thread.
pub fn explain(
    generation: &GenerationRef,
    session: &SessionToExplain,
) -> io::Result<Result<Vec<Line>, String>> {
    let address = match find_address(&generation.config, session) {
        Ok(address) => address.clone(),
        Err(error) => return Ok(Err(error)),
    };
    if session.protocol != ExplainedProtocol::Tls {
        let found = generation.listening.find(&address, session.protocol.socket_kind());
        let explained = found.map(|group| {
            let server = generation.server(group.servers.default_server);
            let mut lines = vec![listen_line(&address, group, server)];
            lines.extend(before_content(server));
            lines.extend(content(server, server.plan.content.as_ref().map(|handler| handler.explain())));
            lines
        });
        return Ok(explained.ok_or_else(|| no_address(&address)));
    }
    let (sender, receiver) = mpsc::channel();
    let generation = generation.clone();
    let host = session.host.clone();
    let event_loop = tw_rt::LoopThread::<()>::start(LoopOptions::new(0), move |_| async move {
        // The caller waits for it.
        let _ = sender.send(explain_tls(generation, &address, &host));
    })?;
    let ended = event_loop.join();
    receiver.recv().map_err(|_| io::Error::other(format!("the loop ended early: {ended:?}")))
}

/// The listening address that takes the session.
fn find_address<'a>(config: &'a Config, session: &SessionToExplain) -> Result<&'a Addr, String> {
    let addresses = config.listening.addresses(session.protocol.socket_kind());
    let found = find_destination(addresses.clone(), &session.host, session.port);
    let found = found.and_then(|at| addresses.clone().nth(at));
    found.ok_or_else(|| no_destination(addresses, session.port))
}

fn no_address(address: &Addr) -> String {
    format!("no server listens on {address}")
}

/// Explains the session of a client that names `host` in its handshake.
fn explain_tls(generation: GenerationRef, address: &Addr, host: &[u8]) -> Result<Vec<Line>, String> {
    let core = LoopCore::new(0, Arc::new(Counts::default()), generation.process());
    let connection = ClientConnection {
        id: 1,
        peer: Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000))),
        listen: Rc::new(address.clone()),
        kind: SocketKind::Stream,
        accepted: tw_rt::clock::now(),
    };
    let client = Client::new(connection, StreamLoop::new(core), LoopGeneration::new(generation));
    let client = client.ok_or_else(|| no_address(address))?;
    let group = client.group().ok_or_else(|| no_address(address))?;
    let mut s = StreamSession::new(client.clone(), SessionTransport::Away);
    s.pretend_local(local_address(address, host));
    // An address is no name that a client sends.
    let name =
        if literal(host).is_none() { String::from_utf8_lossy(host).into_owned() } else { String::new() };
    let first = client.server();
    let mut lines = vec![listen_line(address, group, first)];
    let [preaccess, access, _] = first.plan.modules.before_content();
    lines.extend([preaccess, access].into_iter().filter_map(phase_line));
    if client.is_tls {
        client.set_hello(TlsInfo::of_name(Some(&*name).filter(|name| !name.is_empty()).map(Into::into)));
        choose_server(&s, name.as_bytes());
    } else {
        s.preread = Bytes::from(client_hello::of_name(&name));
        for entry in &first.plan.preread {
            // A step that may wait, as for a script, is not run.
            let PrereadEntry::Handler(handler) = entry else { continue };
            match handler.preread(&mut s) {
                PrereadStep::Pass => {}
                PrereadStep::Done => break,
                PrereadStep::More => return Err("the session waits for more than a client hello".to_owned()),
                PrereadStep::End(status) => {
                    return Err(format!("such a session ends with status {} in the preread phase", status.0));
                }
            }
        }
    }
    let server = client.server();
    lines.push(server_line(group, server, first, &name, client.is_tls));
    let [_, _, preread] = server.plan.modules.before_content();
    lines.extend(phase_line(preread));
    lines.extend(content(server, server.plan.content.as_ref().map(|handler| handler.explain_session(&s))));
    Ok(lines)
}

fn line(about: &'static str, text: String) -> Line {
    Line { about, text, span: None }
}

fn listen_line(address: &Addr, group: &AddressGroup, server: &Server) -> Line {
    let listen = server.settings.listens.iter().find(|listen| listen.addresses.contains(address));
    let note = if group.servers.proxy_protocol { ", behind the PROXY protocol" } else { "" };
    Line { about: "listen", text: format!("{address}{note}"), span: listen.and_then(|listen| listen.span) }
}

/// The server that a name has selected, and how.
fn server_line(group: &AddressGroup, server: &Server, default: &Server, name: &str, is_tls: bool) -> Line {
    let own = match &*server.settings.name {
        b"" => "without a name".to_owned(),
        own => String::from_utf8_lossy(own).into_owned(),
    };
    let is_named = matches!(group.names.find(name.as_bytes(), &mut Captures::default()), Ok(Some(_)));
    let why = match std::ptr::eq(server, default) {
        false => format!("the client names \"{name}\" (SNI)"),
        true if is_named && is_tls => format!("the client names \"{name}\" (SNI)"),
        true => "default server".to_owned(),
    };
    Line { about: "server", text: format!("{own}: {why}"), span: Some(server.span) }
}

fn phase_line((phase, modules): (&'static str, Vec<&'static str>)) -> Option<Line> {
    (!modules.is_empty()).then(|| line(phase, modules.join(", ")))
}

/// The modules that run in front of the content.
fn before_content(server: &Server) -> impl Iterator<Item = Line> + '_ {
    server.plan.modules.before_content().into_iter().filter_map(phase_line)
}

/// The module of the content with what it does, and the modules behind it.
fn content(server: &Server, explained: Option<Vec<(&'static str, String)>>) -> Vec<Line> {
    let modules = &server.plan.modules;
    let mut lines = match (explained, modules.content) {
        (Some(explained), Some(module)) => {
            let more = explained.into_iter().map(|(about, text)| line(about, text));
            std::iter::once(line("content", module.to_owned())).chain(more).collect()
        }
        _ => vec![line("content", "none: sessions end with status 500".to_owned())],
    };
    if !modules.log.is_empty() {
        lines.push(line("log", modules.log.join(", ")));
    }
    lines
}
