//! A session: a client being served, its variables and its lines in the logs.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tw_connect::{AttemptFailure, AttemptPeer, AttemptingSession, PassedSession, UpstreamAttempt};
use tw_core::event_loop::PassedConnection;
use tw_core::log::{LoggedSession, visit_tags};
use tw_core::session::Session;
use tw_core::session_meter::{ServerCounters, SessionMeter};
use tw_core::vars::{Bindings, LOCAL_ADDR, ProxiedSession, ServedSession, Slots};
use tw_log::{ContextVisitor, Level, LineContext, PushResult, Sink, Text};
use tw_net::{Addr, Transport, proxy_protocol};
use tw_rt::Deadline;
use tw_tls_settings::{TlsInfo, TlsSession};

use crate::client::Client;
use crate::config::Server;
use crate::dialogue::{AuthMethod, Login};
use crate::mail_loop::MailLoop;
use crate::session_status::{LoginResult, SessionStatus};

/// A client being served.
pub struct MailSession {
    /// The client.
    pub client: Rc<Client>,
    /// Connection of the client; `None` while a TLS handshake or the relay has it.
    pub(crate) transport: Option<Transport>,
    /// Login, as far as it is known. Its secrets are wiped when the client is logged in.
    pub login: Login,
    /// Name of the user of the last login, for variables and log lines.
    pub user: Box<[u8]>,
    /// Method of the last login.
    pub method: Option<AuthMethod>,
    /// Logins that the auth server was asked about.
    pub attempts: u32,
    /// Name of the client's host, or a word in brackets; only SMTP has one.
    pub(crate) host: Vec<u8>,
    /// Address of the mail server; empty before it is known.
    pub upstream: Box<str>,
    /// Auth server that was asked last.
    auth_server: Box<str>,
    /// Bytes read of the client.
    pub received: u64,
    /// Bytes sent to the client.
    pub sent: u64,
    /// Bytes of the client that were read before the session began.
    pub(crate) early: Vec<u8>,
    /// End of the session.
    pub status: SessionStatus,
    /// Current action, for log lines.
    pub(crate) action: Cell<&'static str>,
    pub(crate) deadline: RefCell<Deadline>,
    /// Time for which limits have the login wait.
    login_delay: Duration,
    /// Counters of its server; `None` if it has none.
    pub(crate) meter: Option<Rc<SessionMeter>>,
    /// Counts it as open; `None` of a session without a connection.
    #[expect(dead_code, reason = "held while the session lasts")]
    open: Option<OpenSession>,
    local: OnceCell<Addr>,
    bindings: Bindings,
    kept_objects: Vec<Rc<dyn Any>>,
}

/// Counts a session as open while it lives.
struct OpenSession(Rc<MailLoop>);

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.0.tally.open_mail.sub(1);
    }
}

/// Reason why a client gets no more bytes, or why none are read of it.
#[derive(Debug)]
pub(crate) enum ClientFailure {
    /// The time is over.
    Timeout,
    /// The client has closed, or the connection is broken.
    Closed,
    /// The client has sent something before its time.
    Invalid,
    /// The TLS handshake failed, or the certificate of the client is refused.
    Handshake,
}

impl ClientFailure {
    /// End of a session that is not logged in.
    pub(crate) const fn status(&self) -> SessionStatus {
        match self {
            Self::Timeout => SessionStatus::TimedOut,
            Self::Closed => SessionStatus::Left,
            Self::Invalid => SessionStatus::Invalid,
            Self::Handshake => SessionStatus::Handshake,
        }
    }
}

impl MailSession {
    /// Begins the session of a client.
    pub(crate) fn new(client: Rc<Client>, transport: Transport) -> Self {
        client.event_loop.tally.open_mail.add(1);
        let counters = client.server().plan.counters.clone();
        let meter = counters.map(|counters| {
            let counters: Arc<dyn ServerCounters> = counters;
            let meter = SessionMeter::new(None, client.event_loop.index, client.accepted);
            meter.decide(Some(&counters));
            meter
        });
        let open = OpenSession(client.event_loop.clone());
        Self { meter, open: Some(open), transport: Some(transport), ..Self::internal(client) }
    }

    /// A session without a connection, which counts nowhere.
    pub(crate) fn internal(client: Rc<Client>) -> Self {
        Self {
            meter: None,
            open: None,
            client,
            transport: None,
            login: Login::default(),
            user: Box::default(),
            method: None,
            attempts: 0,
            host: Vec::new(),
            upstream: Box::default(),
            auth_server: Box::default(),
            received: 0,
            sent: 0,
            early: Vec::new(),
            status: SessionStatus::Open,
            action: Cell::new(""),
            deadline: RefCell::new(Deadline::new()),
            login_delay: Duration::ZERO,
            local: OnceCell::new(),
            bindings: Bindings::default(),
            kept_objects: Vec::new(),
        }
    }

    /// Takes over the facts about a connection that was passed on.
    pub(crate) fn take_passed(&mut self, passed: PassedConnection) {
        let PassedConnection { local, early, tls, proxy_header, .. } = passed;
        if let (Some(header), false) = (proxy_header, self.client.sends_proxy_header) {
            // The header of a connection that was passed on is set nowhere else, so this cannot fail.
            let _ = self.client.proxy.set(header);
        }
        self.local = OnceCell::from(local);
        self.received = early.len() as u64;
        self.early = early;
        if let Some(Ok(tls)) = tls.map(|tls| tls.downcast::<TlsInfo>()) {
            self.client.set_tls(*tls);
        }
    }

    /// The server of the configuration.
    pub fn server(&self) -> &Server {
        self.client.server()
    }

    /// Loop of the session.
    pub(crate) fn event_loop(&self) -> &Rc<MailLoop> {
        &self.client.event_loop
    }

    /// Address that took the connection; the listening address while the session has no connection. One system call, the first time.
    pub fn local_addr(&self) -> &Addr {
        if let Some(local) = self.local.get() {
            return local;
        }
        match self.transport.as_ref().and_then(|transport| transport.local_addr().ok()) {
            Some(local) => self.local.get_or_init(|| local),
            None => &self.client.listen,
        }
    }

    /// Takes the connection out of the session.
    pub(crate) fn take_transport(&mut self) -> Option<Transport> {
        // The local address is read from the socket before it is given away, if a variable may ask for it later.
        if self.slots().prepared.has(LOCAL_ADDR) {
            self.local_addr();
        }
        self.transport.take()
    }

    /// Sends all of `bytes`. The client may take nothing for as long as `timeout` of its server.
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), ClientFailure> {
        let timeout = self.server().settings.timeout;
        let mut deadline = Deadline::new();
        deadline.set(timeout);
        while !bytes.is_empty() {
            let Some(transport) = &self.transport else { return Err(ClientFailure::Closed) };
            match transport.try_write(bytes) {
                Ok(n) => {
                    self.add_sent(n as u64);
                    bytes = bytes.get(n..).unwrap_or_default();
                    deadline.set(timeout);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| match transport.poll_writable(cx) {
                        Poll::Ready(ready) => Poll::Ready(ready.map_err(|_| ClientFailure::Closed)),
                        Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err(ClientFailure::Timeout)),
                    })
                    .await?;
                }
                Err(_) => return Err(ClientFailure::Closed),
            }
        }
        Ok(())
    }

    /// Counts bytes that were read of the client.
    pub(crate) fn add_received(&mut self, bytes: u64) {
        self.received += bytes;
        self.meter.iter().for_each(|meter| meter.received(bytes));
    }

    /// Counts bytes that the client has taken.
    fn add_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.meter.iter().for_each(|meter| meter.sent(bytes));
    }

    /// Waits for `time`, or until the connection of the client is broken.
    pub(crate) async fn pause(&self, time: Duration) -> Result<(), ClientFailure> {
        let mut deadline = Deadline::new();
        deadline.set(time);
        let Some(transport) = &self.transport else { return Err(ClientFailure::Closed) };
        poll_fn(|cx| match transport.poll_closed(cx) {
            Poll::Ready(_) => Poll::Ready(Err(ClientFailure::Closed)),
            Poll::Pending => deadline.poll_elapsed(cx).map(Ok),
        })
        .await
    }

    /// Logs the end of a session that the client has caused.
    pub(crate) fn log_failure(&self, failure: &ClientFailure) {
        if let ClientFailure::Timeout = failure {
            self.log(Level::Info, format_args!("client timed out (110: Connection timed out)"));
        }
    }

    /// Forgets the secrets of the login, and gives back the memory that only the time before it needs.
    pub(crate) fn wipe_login(&mut self) {
        self.login = Login::default();
        self.deadline.take();
        self.auth_server = Box::default();
    }

    /// Forgets the values of variables and all that handlers hold for the session.
    pub(crate) fn forget_values(&mut self) {
        self.bindings.clear();
        self.kept_objects.clear();
    }

    /// Has the login wait, at least for this time.
    pub fn delay_login(&mut self, span: Duration) {
        self.login_delay = self.login_delay.max(span);
    }

    /// Takes the time for which the login waits.
    pub(crate) fn take_login_delay(&mut self) -> Duration {
        std::mem::take(&mut self.login_delay)
    }

    /// Counts a login.
    pub(crate) fn count_login(&self, result: LoginResult) {
        let tally = &self.event_loop().tally;
        match result {
            LoginResult::Accepted => tally.mail_logins_accepted.add(1),
            LoginResult::Refused => tally.mail_logins_refused.add(1),
            LoginResult::Failed => tally.mail_logins_failed.add(1),
        }
        if let Some(counters) = &self.server().plan.counters {
            counters.login(self.event_loop().index, result);
        }
    }

    /// Counts the end of the session.
    pub(crate) fn count_end(&self) {
        let (Some(meter), Some(counters)) = (&self.meter, &self.server().plan.counters) else { return };
        // A client that left without a word had no session, such as one that checks if the port is open.
        if self.status == SessionStatus::Left && self.received == 0 {
            return;
        }
        meter.end(self.status.code());
        if self.status != SessionStatus::Done {
            counters.failed(self.event_loop().index, self.status);
        }
    }
}

impl Session for MailSession {
    fn client_addr(&self) -> &Addr {
        self.client.addr()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        match self.action.get() {
            "" => self.client.write_about(level, message, Some(&Context(self))),
            action => {
                let message = format_args!("{message} while {action}");
                self.client.write_about(level, message, Some(&Context(self)));
            }
        }
    }

    fn slots(&self) -> &Slots<Self> {
        &self.client.generation.slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.client.event_loop.buffers.path
    }

    fn hold<T: 'static>(&mut self, value: Rc<T>) {
        self.kept_objects.retain(|object| !object.is::<T>());
        self.kept_objects.push(value);
    }
}

impl ServedSession for MailSession {
    fn loop_index(&self) -> usize {
        self.client.event_loop.index
    }

    fn hostname(&self) -> &[u8] {
        &self.client.generation.process.hostname
    }

    fn connection_id(&self) -> u64 {
        self.client.id
    }

    fn client_text(&self) -> &str {
        self.client.addr_text()
    }

    fn local_addr(&self) -> &Addr {
        Self::local_addr(self)
    }

    fn proxy_header(&self) -> Option<&proxy_protocol::Header> {
        self.client.proxy.get().map(|header| &**header)
    }
}

impl ProxiedSession for MailSession {
    fn peer(&self) -> &Addr {
        self.client.peer()
    }

    fn peer_text(&self) -> &str {
        self.client.peer_text()
    }

    fn set_client_addr(&self, addr: Addr) {
        self.client.set_addr(addr);
    }
}

impl PassedSession for MailSession {
    type OwnAttempt = ();

    /// None: attempts at auth servers are no attempts to pass the session on.
    fn attempts(&self) -> &[UpstreamAttempt<()>] {
        &[]
    }
}

impl AttemptingSession for MailSession {
    fn begin_attempt(&mut self, to: AttemptPeer, _: Option<Duration>) {
        self.auth_server = to.text().into();
    }

    fn record_failure(&mut self, failure: &AttemptFailure) {
        let Some(level) = failure.cause.level() else { return };
        // The line says itself what was being done, in the words for requests of HTTP.
        let line = failure.to_string().replacen(&failure.stage.to_string(), "", 1);
        self.log(level, format_args!("{}, auth http server {}", line.trim_end(), self.auth_server));
    }
}

impl TlsSession for MailSession {
    fn tls(&self) -> Option<&TlsInfo> {
        self.client.tls()
    }
}

impl LoggedSession for MailSession {
    const FORMAT: Option<(&'static str, &'static str)> = None;
    const FILE: Option<&'static str> = None;

    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> PushResult {
        sink.push_to(path.to_bytes(), b"/", tw_log::Links::Follow, line)
    }
}

/// End of a line of the error log: client, server, user, and mail server.
struct Context<'a>(&'a MailSession);

impl LineContext for Context<'_> {
    fn visit(&self, visitor: &mut dyn ContextVisitor) {
        let s = self.0;
        let starttls = if s.client.used_starttls.get() { " using starttls" } else { "" };
        visitor.text(format_args!(", client: {}{starttls}", s.client.addr_text()));
        visitor.member("client", format_args!("{}", s.client.addr_text()));
        visitor.bare("server", format_args!("{}", s.client.listen));
        if !s.user.is_empty() {
            visitor.quoted("login", format_args!("{}", Text(&s.user)));
        }
        if !s.upstream.is_empty() {
            visitor.bare("upstream", format_args!("{}", s.upstream));
        }
        visit_tags(&s.client.server().settings.error_log_tags, s, visitor);
    }
}
