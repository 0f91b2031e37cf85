//! Connection to the mail server that the auth server has named, and the login there.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_connect::failure::AttemptFailure;
use tw_connect::{OpenParams, UpstreamConnection};
use tw_core::event_loop::ConnectionPermit;
use tw_core::session::Session;
use tw_log::{Level, Text};
use tw_net::listen::SocketKind;
use tw_net::proxy_protocol::{write_v1, write_v2};
use tw_net::{Addr, ConnectOptions, Transport};
use tw_rt::Deadline;
use zeroize::Zeroizing;

use super::login::{LoginTarget, Progress, UpstreamLogin};
use super::settings::ProxyProtocol;
use crate::auth_http::response::AuthResponse;
use crate::auth_http::{AuthFailure, shown};
use crate::dialogue::MailProtocol;
use crate::session::MailSession;

/// Smallest size of the buffer for responses: a line of every protocol fits.
const BUFFER_MIN: usize = 512;

/// Mail server for a session.
pub(crate) struct MailServer {
    addr: Addr,
    /// True if the password of the login is still the token of the client.
    has_token: bool,
}

/// A session whose login the mail server has accepted.
pub(crate) struct LoggedIn {
    /// Connection to the mail server.
    pub(crate) transport: Transport,
    /// Held while the connection is open.
    pub(crate) permit: ConnectionPermit,
    /// Bytes of the mail server for the client.
    pub(crate) reply: Bytes,
    /// Bytes of the client behind its login.
    pub(crate) rest: Bytes,
}

/// Reason why there is no session with the mail server.
pub(crate) enum UpstreamRefusal {
    /// A failure that is logged.
    Failed,
    /// The mail server refuses to serve the client before it has the login.
    Unavailable(ClientText),
    /// The mail server does not accept user name and password.
    LoginRefused(ClientText),
}

/// Text for the client; `None` if it gets an internal error in the place of the mail server's text.
pub(crate) type ClientText = Option<Vec<u8>>;

impl MailServer {
    /// Reads the address in a response of the auth server.
    pub(crate) fn of(s: &MailSession, response: &AuthResponse) -> Result<Self, AuthFailure> {
        let name = s.server().auth_http.target.as_ref().map(|target| target.group.peers.name().clone());
        let name = name.unwrap_or_default();
        let failure = |text: String| AuthFailure::Response(format!("auth http server {name} {text}"));
        let AuthResponse { server, port, .. } = response;
        if server.is_empty() || port.is_empty() {
            return Err(failure("did not send server or port".to_owned()));
        }
        let is_token = s.login.method.is_token();
        let has_own = s.login.password.is_some() && !s.login.method.has_challenge();
        let has_password = response.password.is_some() || has_own;
        if !has_password && s.server().protocol != MailProtocol::Smtp {
            return Err(failure("did not send password".to_owned()));
        }
        let text = std::str::from_utf8(server).unwrap_or_default();
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let Ok(ip) = bare.parse::<IpAddr>() else {
            let hint = if is_host(bare) { " (a name is not resolved: an address is expected)" } else { "" };
            return Err(failure(format!("sent invalid server address:\"{}\"{hint}", shown(server))));
        };
        let number = std::str::from_utf8(port).ok().and_then(|port| port.parse::<u16>().ok());
        let Some(port) = number.filter(|port| *port > 0) else {
            return Err(failure(format!("sent invalid server port:\"{}\"", shown(port))));
        };
        let has_token = is_token && response.password.is_none();
        Ok(Self { addr: Addr::Inet(SocketAddr::new(ip, port)), has_token })
    }

    /// Takes user name and password of the response into the login of the session.
    pub(crate) fn take_login(&self, s: &mut MailSession, response: AuthResponse) {
        if s.login.method.has_challenge() {
            // A digest is of no use to the mail server.
            s.login.password = None;
        }
        if let Some(user) = response.user {
            s.user = user.bytes().into();
            s.login.user = user;
        }
        if let Some(password) = response.password {
            s.login.password = Some(password);
        }
    }
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Connects to the mail server, and logs in there.
pub(crate) async fn log_in(s: &mut MailSession, server: &MailServer) -> Result<LoggedIn, UpstreamRefusal> {
    s.upstream = server.addr.to_string().into();
    s.action.set("connecting to upstream");
    let timeout = s.server().settings.timeout;
    let now = tw_rt::clock::now();
    let until = now.checked_add(timeout).unwrap_or(now);
    let (transport, permit) = open(s, server, timeout).await.map_err(|failure| {
        if let Some(level) = failure.cause.level() {
            // The line says itself what was being done.
            s.action.set("");
            s.log(level, format_args!("{failure}"));
        }
        UpstreamRefusal::Failed
    })?;
    transport.socket().set_nodelay();
    let reply = dialogue(s, server, &transport, until).await?;
    s.action.set("");
    s.log(Level::Info, format_args!("client logged in"));
    Ok(LoggedIn { transport, permit, reply: reply.into(), rest: Bytes::new() })
}

async fn open(
    s: &MailSession,
    server: &MailServer,
    timeout: Duration,
) -> Result<(Transport, ConnectionPermit), AttemptFailure> {
    let mut header = Vec::new();
    match s.server().proxy.proxy_protocol {
        ProxyProtocol::Off => {}
        ProxyProtocol::V1 => write_v1(&mut header, s.client_addr(), s.local_addr()),
        ProxyProtocol::V2 => {
            write_v2(&mut header, SocketKind::Stream, s.client_addr(), s.local_addr(), &[]);
        }
    }
    let options = ConnectOptions::default();
    let core = &s.event_loop().core;
    let params =
        OpenParams { core, to: &server.addr, options: &options, timeout, header: &header, secured: None };
    UpstreamConnection::open_transport(params).await
}

/// Leads the dialogue of the login; returns the bytes for the client.
async fn dialogue(
    s: &mut MailSession,
    server: &MailServer,
    transport: &Transport,
    until: Instant,
) -> Result<Vec<u8>, UpstreamRefusal> {
    let client = s.client.clone();
    let settings = client.server();
    let mut login = UpstreamLogin::default();
    let size = settings.proxy.buffer_size.max(BUFFER_MIN);
    let mut response = Zeroizing::new(Vec::with_capacity(size));
    loop {
        s.action.set("reading response from upstream");
        if response.len() >= size {
            s.log(
                Level::Error,
                format_args!("upstream sent too long response line: \"{}\"", Text(&response)),
            );
            return Err(UpstreamRefusal::Failed);
        }
        if let Err(failure) = read(transport, &mut response, size, until).await {
            s.log(failure.level(), format_args!("{failure}"));
            return Err(UpstreamRefusal::Failed);
        }
        let target = LoginTarget {
            protocol: settings.protocol,
            login: &s.login,
            server_name: &settings.settings.name,
            client: s.client.addr_text(),
            is_ipv6: s.client.addr().inet().is_some_and(|addr| addr.is_ipv6()),
            host: &s.host,
            xclient: settings.proxy.xclient,
            smtp_auth: settings.proxy.smtp_auth,
            has_token: server.has_token,
        };
        let (line, action) = match login.advance(&response, &target) {
            Progress::Incomplete => continue,
            Progress::Send(line, action) => (line, action),
            Progress::Done(reply) => return Ok(reply),
            Progress::Refused => {
                let text = refused(s, &response);
                return Err(match login.awaits_verdict() {
                    true => UpstreamRefusal::LoginRefused(text),
                    false => UpstreamRefusal::Unavailable(text),
                });
            }
            Progress::NoPassword => {
                s.log(Level::Error, format_args!("no password available"));
                return Err(UpstreamRefusal::Failed);
            }
        };
        response.clear();
        s.action.set(action);
        if let Err(failure) = write(transport, line.bytes(), until).await {
            s.log(failure.level(), format_args!("{failure}"));
            return Err(UpstreamRefusal::Failed);
        }
    }
}

/// Logs a response that refuses the login, and returns the text for the client.
fn refused(s: &MailSession, response: &[u8]) -> ClientText {
    let line = response.strip_suffix(b"\r\n").unwrap_or(response);
    let passes = s.server().proxy.passes_errors;
    let level = if passes { Level::Info } else { Level::Error };
    s.log(level, format_args!("upstream sent invalid response: \"{}\"", Text(line)));
    passes.then(|| response.to_vec())
}

/// Failure of a read or a write. Displayed as a line of the log.
#[derive(Debug)]
enum IoFailure {
    /// The mail server takes too long.
    Timeout,
    /// The mail server has closed the connection.
    Closed,
    /// The connection is broken.
    Broken(&'static str, io::Error),
}

impl IoFailure {
    fn level(&self) -> Level {
        match self {
            Self::Timeout => Level::Info,
            Self::Closed | Self::Broken(..) => Level::Error,
        }
    }
}

impl std::fmt::Display for IoFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Timeout => f.write_str("upstream timed out (110: Connection timed out)"),
            Self::Closed => f.write_str("upstream prematurely closed connection"),
            Self::Broken(call, error) => {
                let errno = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                write!(f, "{call}() failed ({errno})")
            }
        }
    }
}

/// Appends the bytes that the mail server sends next, up to `size` in all.
async fn read(
    transport: &Transport,
    response: &mut Vec<u8>,
    size: usize,
    until: Instant,
) -> Result<(), IoFailure> {
    let len = response.len();
    response.resize(size, 0);
    let read = read_into(transport, response.get_mut(len..).unwrap_or_default(), until).await;
    let count = *read.as_ref().unwrap_or(&0);
    response.truncate(len + count);
    match read? {
        0 => Err(IoFailure::Closed),
        _ => Ok(()),
    }
}

async fn read_into(transport: &Transport, room: &mut [u8], until: Instant) -> Result<usize, IoFailure> {
    let mut deadline = Deadline::new();
    deadline.set_at(until);
    loop {
        match transport.try_read_into(room) {
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(IoFailure::Broken("recv", error)),
        }
        poll_fn(|cx| match transport.poll_readable(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(|error| IoFailure::Broken("recv", error))),
            Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err(IoFailure::Timeout)),
        })
        .await?;
    }
}

async fn write(transport: &Transport, mut bytes: &[u8], until: Instant) -> Result<(), IoFailure> {
    let mut deadline = Deadline::new();
    deadline.set_at(until);
    while !bytes.is_empty() {
        match transport.try_write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| match transport.poll_writable(cx) {
                    Poll::Ready(ready) => {
                        Poll::Ready(ready.map_err(|error| IoFailure::Broken("send", error)))
                    }
                    Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err(IoFailure::Timeout)),
                })
                .await?;
            }
            Err(error) => return Err(IoFailure::Broken("send", error)),
        }
    }
    Ok(())
}
