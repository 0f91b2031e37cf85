//! One client connection: from accept to close.
//!
//! ```text
//!          ┌──────────── keep-alive, nothing of a buffer is held ────────────┐
//!          ▼                                                                 │
//! accept → idle ─ readable → head ─ complete → route → phases → send → log ──┤
//!                              │                                             │
//!                              └─ malformed → its status ─────────→ close ◄──┘  (lingering, if the client may still send)
//! ```

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tw_http::{HeadError, Progress};
use tw_log::{ErrorLog, Level, Text};
use tw_net::Addr;
use tw_rt::{Deadline, Socket};

use super::generation::{DebugLines, ListenGroup};
use super::phases;
use super::proxy_protocol::{self, Greeting};
use super::request::{After, LoopGeneration, Request};
use super::request_body::{self, Drained};
use super::respond;
use crate::core::location::{LingeringClose, Location};
use crate::event_loop::{Loop, OneMore};

/// Bytes asked of the socket for a request head.
const HEAD_READ: usize = 4096;
/// How long an idle connection still waits for a request when its loop leaves; and then, half closed, for its client to
/// close it. A client that is about to ask is answered, and told that the connection ends.
const LAST_WAIT: Duration = Duration::from_millis(500);
/// Bytes read at once during a lingering close.
const LINGER_READ: usize = 16 << 10;

/// A client connection.
pub struct Conn {
    /// Its number: `*id` in log lines.
    pub id: u64,
    /// The socket.
    pub stream: Socket,
    /// The loop it lives on.
    pub home: Rc<Loop>,
    /// The listening address it came by.
    pub listen: Rc<Addr>,
    /// When it was accepted.
    pub accepted: Instant,
    /// Requests begun on it.
    pub requests: Cell<u64>,
    /// What a PROXY protocol header said.
    pub proxy: OnceCell<Box<tw_net::proxy_protocol::Header>>,
    verbosity: Verbosity,
    peer: Addr,
    local: OnceCell<Box<Addr>>,
    client: OnceCell<Box<str>>,
    deadline: RefCell<Deadline>,
    /// How long it may wait for a request.
    keepalive_timeout: Cell<Duration>,
    /// How long it may do so whatever happens.
    keepalive_min_timeout: Cell<Duration>,
    idle: RefCell<Idle>,
    socket: OnceCell<Option<tw_disk::SocketFd>>,
    group: Cell<(u64, usize)>,
    nodelay: Cell<NoDelay>,
}

/// How much of a connection is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verbosity {
    /// What the levels of the error logs admit.
    AsLogsSay,
    /// Everything, in every log (`debug_connection`).
    Everything,
}

/// Whether the connection may be closed to make room.
#[derive(Default)]
enum Idle {
    /// It serves a request.
    #[default]
    No,
    /// It waits for the next request.
    Since(Instant, Option<Waker>),
    /// It was asked to close.
    Asked,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NoDelay {
    Unset,
    Set,
}

/// Why waiting for a socket ended without it being ready.
#[derive(Debug)]
pub enum WaitError {
    /// The time was over.
    Timeout,
    /// The socket failed.
    Io(io::Error),
}

/// How an idle connection's wait ended.
enum Woken {
    Readable,
    Close,
}

impl Conn {
    /// A connection just accepted.
    pub(crate) fn new(id: u64, stream: Socket, peer: Addr, listen: Rc<Addr>, home: Rc<Loop>) -> Rc<Self> {
        let is_debugged = home.generation().main.debug_connections.iter().any(|peers| peers.has(&peer));
        let verbosity = if is_debugged { Verbosity::Everything } else { Verbosity::AsLogsSay };
        Rc::new(Self {
            id,
            verbosity,
            stream,
            home,
            listen,
            accepted: tw_rt::clock::now(),
            requests: Cell::new(0),
            proxy: OnceCell::new(),
            peer,
            local: OnceCell::new(),
            client: OnceCell::new(),
            deadline: RefCell::new(Deadline::new()),
            keepalive_timeout: Cell::new(Duration::ZERO),
            keepalive_min_timeout: Cell::new(Duration::ZERO),
            idle: RefCell::new(Idle::No),
            socket: OnceCell::new(),
            group: Cell::new((0, 0)),
            nodelay: Cell::new(NoDelay::Unset),
        })
    }

    /// The peer's address as text without port: `$remote_addr`.
    pub fn client(&self) -> &str {
        self.client.get_or_init(|| self.peer.client_text())
    }

    /// The peer's address.
    pub fn peer(&self) -> &Addr {
        &self.peer
    }

    /// Our address. One system call, the first time.
    pub fn local(&self) -> &Addr {
        self.local.get_or_init(|| {
            Box::new(
                self.stream.local_addr().map_or_else(|_| (*self.listen).clone(), |addr| Some(addr).into()),
            )
        })
    }

    /// Takes `addr` for our address without asking the socket.
    pub(crate) fn pretend_local(&self, addr: Addr) {
        // Asked for already, it stays what it was.
        let _ = self.local.set(Box::new(addr));
    }

    /// A second descriptor of the socket, for a pool thread to write to; `None` if there is no descriptor left.
    pub(crate) fn socket(&self) -> Option<&tw_disk::SocketFd> {
        let socket = self.socket.get_or_init(|| self.stream.try_clone().ok().map(Arc::new));
        socket.as_ref()
    }

    /// Waits until the socket may be read, at most `timeout`.
    pub async fn readable(&self, timeout: Duration) -> Result<(), WaitError> {
        self.deadline.borrow_mut().set(timeout);
        poll_fn(|cx| {
            if let Poll::Ready(ready) = self.stream.poll_readable(cx) {
                return Poll::Ready(ready.map_err(WaitError::Io));
            }
            self.deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(WaitError::Timeout))
        })
        .await
    }

    /// Waits until the socket may be written, at most `timeout`.
    pub async fn writable(&self, timeout: Duration) -> Result<(), WaitError> {
        self.deadline.borrow_mut().set(timeout);
        poll_fn(|cx| {
            if let Poll::Ready(ready) = self.stream.poll_writable(cx) {
                return Poll::Ready(ready.map_err(WaitError::Io));
            }
            self.deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(WaitError::Timeout))
        })
        .await
    }

    /// Sleeps, as `limit_rate` does, unless the client goes away meanwhile.
    ///
    /// # Errors
    /// The client has closed its side, or the socket failed. A client that sent more than was read so far is not watched.
    pub async fn sleep(&self, span: Duration) -> io::Result<()> {
        self.deadline.borrow_mut().set(span);
        let mut is_watched = true;
        poll_fn(|cx| {
            while is_watched && let Poll::Ready(ready) = self.stream.poll_readable(cx) {
                match ready.and_then(|()| self.stream.try_peek()) {
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    Ok(_) => is_watched = false,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Poll::Ready(Err(e)),
                }
            }
            self.deadline.borrow_mut().poll_elapsed(cx).map(Ok)
        })
        .await
    }

    /// Waits for the next request, or until the connection is asked to close.
    async fn idle(&self, timeout: Duration) -> Woken {
        let protected = timeout.min(self.keepalive_min_timeout.get());
        if !protected.is_zero()
            && let Some(woken) = self.protected(protected).await
        {
            return woken;
        }
        let timeout = timeout.saturating_sub(protected);
        if timeout.is_zero() && !protected.is_zero() {
            return Woken::Close;
        }
        *self.idle.borrow_mut() = Idle::Since(tw_rt::clock::now(), None);
        let _waiting = OneMore::in_level(&self.home.tally.waiting);
        self.deadline.borrow_mut().set(timeout);
        let woken = poll_fn(|cx| {
            if let Poll::Ready(ready) = self.stream.poll_readable(cx) {
                return Poll::Ready(if ready.is_ok() { Woken::Readable } else { Woken::Close });
            }
            // The first request of a client that has just connected is on its way.
            if self.home.connections.is_stopping() && self.requests.get() > 0 {
                return Poll::Ready(Woken::Close);
            }
            match &mut *self.idle.borrow_mut() {
                Idle::Since(_, waker @ None) => *waker = Some(cx.waker().clone()),
                Idle::Since(..) => {}
                Idle::No | Idle::Asked => return Poll::Ready(Woken::Close),
            }
            self.deadline.borrow_mut().poll_elapsed(cx).map(|()| Woken::Close)
        })
        .await;
        *self.idle.borrow_mut() = Idle::No;
        match woken {
            // DIFF(nginx): a request that was sent before its client could know is answered, not reset.
            Woken::Close if self.home.connections.is_stopping() => {
                self.protected(timeout.min(LAST_WAIT)).await.unwrap_or(Woken::Close)
            }
            woken => woken,
        }
    }

    /// Waits for the next request, and for nothing else; `None` when the time is over.
    async fn protected(&self, time: Duration) -> Option<Woken> {
        self.deadline.borrow_mut().set(time);
        poll_fn(|cx| {
            if let Poll::Ready(ready) = self.stream.poll_readable(cx) {
                return Poll::Ready(Some(if ready.is_ok() { Woken::Readable } else { Woken::Close }));
            }
            self.deadline.borrow_mut().poll_elapsed(cx).map(|()| None)
        })
        .await
    }

    /// Since when it has been idle.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        match &*self.idle.borrow() {
            Idle::Since(at, _) => Some(*at),
            Idle::No | Idle::Asked => None,
        }
    }

    /// Asks an idle connection to close.
    pub(crate) fn close_idle(&self) {
        let was = std::mem::replace(&mut *self.idle.borrow_mut(), Idle::Asked);
        if let Idle::Since(_, Some(waker)) = was {
            waker.wake();
        }
    }

    /// The listening address in `generation`; `None` if a reload took it away meanwhile.
    fn group<'g>(&self, generation: &'g LoopGeneration) -> Option<&'g ListenGroup> {
        let (id, at) = self.group.get();
        if id == generation.id {
            return generation.listens.get(at);
        }
        // A reload seldom moves it.
        let is_ours = |group: &ListenGroup| group.address == *self.listen;
        let at = match generation.listens.get(at) {
            Some(group) if is_ours(group) => at,
            _ => generation.listens.iter().position(is_ours)?,
        };
        self.group.set((generation.id, at));
        generation.listens.get(at)
    }

    /// Lets small writes leave at once, if the location asks for that (`tcp_nodelay`).
    pub(crate) fn send_at_once(&self, core: &Location) {
        if core.send.tcp_nodelay && self.nodelay.get() == NoDelay::Unset {
            self.nodelay.set(NoDelay::Set);
            // Without it responses are only a little later.
            let _ = self.stream.set_nodelay(true);
        }
    }

    /// Whether the client sent something that nobody read, as far as the loop was told.
    fn may_have_input(&self) -> bool {
        self.stream.may_have_input()
    }

    /// Writes a line into the main error log.
    pub(crate) fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let generation = self.home.generation();
        let message = format_args!("{message}{}", Whence(self));
        self.write(&generation.error_log, level, message);
    }

    /// Writes a step into the main error log, if somebody wants to know steps.
    pub(crate) fn debug(&self, message: fmt::Arguments<'_>) {
        let generation = self.home.generation();
        if generation.debug_lines == DebugLines::Perhaps {
            self.write(&generation.error_log, Level::Debug, message);
        }
    }

    /// Writes a line into a log that admits it, or into any for a client of `debug_connection`.
    pub(crate) fn write(&self, log: &ErrorLog, level: Level, message: fmt::Arguments<'_>) {
        match self.verbosity {
            Verbosity::AsLogsSay => log.write(level, Some(self.id), message),
            Verbosity::Everything => log.write_to_all(level, Some(self.id), message),
        }
    }
}

/// The end of a line of the main error log: `, client: …, server: …`.
struct Whence<'a>(&'a Conn);

impl fmt::Display for Whence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", client: {}, server: {}", self.0.client(), self.0.listen)
    }
}

/// Serves a connection until it is closed.
pub(crate) async fn serve(conn: Rc<Conn>) {
    let (timeout, proxied) = {
        let generation = conn.home.generation();
        let Some(group) = conn.group(&generation) else { return };
        let server = generation.server(group.default_server);
        (server.settings.client_header_timeout, group.proxy_protocol)
    };
    let mut early = Vec::new();
    if proxied {
        match Box::pin(proxy_protocol::read(&conn, timeout)).await {
            Greeting::Accepted(rest) => early = rest,
            Greeting::Refused => return,
        }
    }
    conn.keepalive_timeout.set(timeout);
    let mut wait = timeout;
    // Whether the first read is tried before the loop says that there is something.
    let mut is_try = conn.stream.may_have_input();
    while !early.is_empty() || matches!(conn.idle(wait).await, Woken::Readable) {
        let mut r = conn.home.take_request();
        r.bind(&conn);
        if !early.is_empty() {
            r.head.push(&std::mem::take(&mut early));
        }
        // On the heap while it runs: a connection that waits does not carry its size, a third of all it costs.
        let after = Box::pin(exchange(&conn, &mut r)).await;
        if std::mem::take(&mut is_try) {
            conn.home.saw_first_bytes(after != After::KeepAlive || conn.requests.get() > 0);
        }
        let linger = (after == After::Close).then(|| r.plan().core.lingering);
        let unread = !r.head.rest().is_empty() || r.body.is_pending();
        conn.home.give_back(r);
        match linger {
            None if after == After::KeepAlive => wait = conn.keepalive_timeout.get(),
            None => return,
            Some(lingering) => {
                let wanted = match lingering.close {
                    LingeringClose::Off => false,
                    LingeringClose::On => unread || conn.may_have_input(),
                    LingeringClose::Always => true,
                };
                if wanted {
                    Box::pin(linger_close(&conn, lingering.time, lingering.timeout)).await;
                }
                return;
            }
        }
    }
    if conn.home.connections.is_stopping() {
        // What the client sends while it does not know yet would reset what it has not read yet.
        Box::pin(linger_close(&conn, LAST_WAIT, LAST_WAIT)).await;
    }
}

/// Serves requests until there is nothing of a next one in the buffer.
async fn exchange(conn: &Rc<Conn>, r: &mut Request) -> After {
    loop {
        r.begin();
        let head = read_head(conn, r).await;
        if !matches!(head, Head::Closed | Head::NotBegun) {
            conn.requests.set(conn.requests.get() + 1);
            conn.home.tally.requests.add(1);
            conn.home.knock();
        }
        let body = match head {
            Head::Complete => {
                route(conn, r);
                match early_status(r).await {
                    None => phases::run(r).await,
                    Some(status) => phases::fail(r, status).await,
                }
            }
            Head::Bad(status) => {
                r.course.after = After::Close;
                phases::fail(r, status).await
            }
            Head::NotBegun => return After::KeepAlive,
            Head::Closed => return After::Abort,
            Head::Gone(status) => {
                r.out.status = status;
                r.course.after = After::Abort;
                log_request(conn, r);
                return After::Abort;
            }
        };
        respond::send(r, body).await;
        log_request(conn, r);
        if r.course.after == After::KeepAlive && request_body::drain(r).await == Drained::No {
            r.course.after = After::Abort;
        }
        if r.course.after != After::KeepAlive {
            return r.course.after;
        }
        let keepalive = r.plan().core.keepalive;
        conn.keepalive_timeout.set(keepalive.timeout);
        conn.keepalive_min_timeout.set(keepalive.min_timeout);
        r.head.next_request();
        if r.head.is_idle() {
            return After::KeepAlive;
        }
        r.clear();
        // One client's pipeline is not served ahead of other clients.
        tw_rt::yield_now().await;
    }
}

/// Whether the server was chosen already by the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostOf {
    Unknown,
    Known,
}

/// How reading a head ended.
enum Head {
    Complete,
    /// To be answered with this status, then closed.
    Bad(u16),
    /// Nothing came: the socket was tried before its client has said anything.
    NotBegun,
    /// The client closed before it asked for anything.
    Closed,
    /// The client went away or was too slow; this status goes into the access log only.
    Gone(u16),
}

async fn read_head(conn: &Rc<Conn>, r: &mut Request) -> Head {
    let generation = r.generation().clone();
    let Some(group) = conn.group(&generation) else { return Head::Closed };
    r.server = group.default_server;
    let server = generation.server(r.server);
    r.plan = server.plan;
    let mut limits = &server.settings.head;
    let mut host = HostOf::Unknown;
    let until = tw_rt::clock::now() + server.settings.client_header_timeout;
    let mut begun = !r.head.is_idle();
    let mut is_untouched = true;
    loop {
        if begun {
            match r.head.parse_to_host(limits) {
                Ok(None) => {
                    choose_server(r, group);
                    limits = &generation.server(r.server).settings.head;
                    host = HostOf::Known;
                    continue;
                }
                Ok(Some(Progress::Complete)) => {
                    if host == HostOf::Unknown {
                        choose_server(r, group);
                    }
                    return Head::Complete;
                }
                Ok(Some(Progress::NeedMore)) => {}
                Err(error) => {
                    if error == HeadError::NoHost {
                        choose_server(r, group);
                    }
                    return refused(r, error);
                }
            }
        }
        let was_empty = r.head.is_idle();
        match conn.stream.try_read(r.head.spare(HEAD_READ)) {
            Ok(0) if was_empty => return Head::Closed,
            Ok(0) => {
                r.log(
                    Level::Info,
                    format_args!("client prematurely closed connection while reading {}", r.head.reading()),
                );
                return Head::Gone(400);
            }
            Ok(_) => {
                begun = true;
                is_untouched = false;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && was_empty && is_untouched => {
                return Head::NotBegun;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(tw_rt::clock::now());
                let _reading = OneMore::in_level(&conn.home.tally.reading);
                match conn.readable(left).await {
                    Ok(()) => {}
                    Err(WaitError::Timeout) if was_empty => return Head::Closed,
                    Err(WaitError::Timeout) => {
                        r.log(
                            Level::Info,
                            format_args!(
                                "client timed out (110: Connection timed out) while reading {}",
                                r.head.reading()
                            ),
                        );
                        if r.plan().core.send.reset_timedout_connection {
                            // A plain close does as well, only later.
                            let _ = conn.stream.reset_on_close();
                        }
                        return Head::Gone(408);
                    }
                    Err(WaitError::Io(e)) => return lost(r, &e),
                }
            }
            Err(e) => return lost(r, &e),
        }
    }
}

fn lost(r: &Request, error: &io::Error) -> Head {
    let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
    r.log(Level::Info, format_args!("recv() failed ({text}) while reading {}", r.head.reading()));
    if r.head.is_idle() { Head::Closed } else { Head::Gone(400) }
}

fn refused(r: &mut Request, error: HeadError) -> Head {
    r.log(Level::Info, format_args!("{} while reading {}", r.head.error_text(error), r.head.reading()));
    // As far as the request line was good, an error page may use it.
    let Request { head, uri, .. } = &mut *r;
    uri.path.extend_from_slice(head.path());
    uri.args.extend_from_slice(head.args());
    Head::Bad(error.status())
}

/// Takes the host over from the head and chooses the server by it.
pub(crate) fn choose_server(r: &mut Request, group: &ListenGroup) {
    let Request { head, host, captures, .. } = &mut *r;
    host.extend_from_slice(head.host().unwrap_or_default());
    match group.names.find(host, captures.get_mut()) {
        Ok(Some((server, regex))) => {
            r.server = server;
            if let Some(regex) = regex {
                r.store_named_captures(regex);
            }
        }
        Ok(None) => {}
        Err(crate::regex::BacktrackLimit) => {
            r.log(Level::Error, format_args!("regex of a server name exceeded its limit of backtracking"));
        }
    }
    r.plan = r.generation().server(r.server).plan;
}

/// Takes the URI over from the head.
pub(crate) fn route(conn: &Rc<Conn>, r: &mut Request) {
    r.read_at = conn.home.files.borrow_mut().tick();
    let Request { head, uri, .. } = &mut *r;
    uri.path.extend_from_slice(head.path());
    uri.args.extend_from_slice(head.args());
    for line in r.head.ignored_lines() {
        r.log(
            Level::Info,
            format_args!(
                "client sent invalid header line: \"{}\" while reading {}",
                Text(line),
                r.head.reading()
            ),
        );
    }
    r.body.begin(r.head.framing());
    r.course.after = keep_alive(r);
    if r.generation().debug_lines == DebugLines::Perhaps {
        debug_head(r);
    }
}

/// Writes what was asked for into the log of steps.
fn debug_head(r: &Request) {
    r.debug(format_args!("http request line: \"{}\"", Text(r.head.request_line())));
    for (name, value) in r.head.fields() {
        r.debug(format_args!("http header: \"{}: {}\"", Text(name), Text(value)));
    }
    r.debug(format_args!("http uri: \"{}\"", Text(&r.uri.path)));
    r.debug(format_args!("http args: \"{}\"", Text(&r.uri.args)));
    let name = &r.generation().server(r.server).settings.name;
    r.debug(format_args!("using server \"{}\"", Text(name)));
}

/// Whether the connection may be used again, as far as the head tells.
fn keep_alive(r: &Request) -> After {
    if r.head.keep_alive() { After::KeepAlive } else { After::Close }
}

/// Reads the body first where `client_body_early_read` asks for it; the status of a failure.
async fn early_status(r: &mut Request) -> Option<u16> {
    let wanted = r.generation().server(r.server).settings.client_body_early_read.iter().any(|condition| {
        let value = condition.value(r);
        !value.is_empty() && value != b"0"
    });
    if wanted { Box::pin(request_body::read(r)).await.err() } else { None }
}

fn log_request(conn: &Conn, r: &mut Request) {
    r.debug(format_args!("http log: {}, {} bytes sent", r.out.status, r.sent.bytes));
    conn.home.tally.status(r.out.status);
    conn.home.tally.received.add(r.head.read_len() as u64 + r.body.wire());
    let generation = r.generation().clone();
    for handler in generation.plan(r.plan).log_handlers() {
        handler.log(r);
    }
}

/// Says that nothing more will be sent, then reads and ignores what the client still sends.
async fn linger_close(conn: &Rc<Conn>, time: Duration, timeout: Duration) {
    let until = tw_rt::clock::now() + time;
    if conn.stream.shutdown_write().is_err() {
        return;
    }
    let mut ignored = Vec::with_capacity(LINGER_READ);
    loop {
        ignored.clear();
        let left = until.saturating_duration_since(tw_rt::clock::now()).min(timeout);
        if left.is_zero() {
            return;
        }
        match conn.stream.try_read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => tw_rt::yield_now().await,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if conn.readable(left).await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
