//! Opening listening sockets, with nginx's order of calls, retries and words.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::Addr;
use rustix::io::Errno as Os;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tw_base::Errno;

use super::{AcceptingLoops, DatagramUse, Keepalive, ListenOptions, SocketKind};

/// Number of tries, and the pause between two of them, of a `bind()` whose address is in use: a program that is
/// being replaced gets two seconds to leave.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// `deferred` waits this long for the first bytes. The kernel cannot tell how long a connection has waited already,
/// so the shortest time it knows.
const DEFER_SECS: u32 = 1;

/// Purpose of an opened socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To take connections.
    Serve,
    /// `-t`: to see whether it could be opened. An address in use is no error, and no socket file is left behind.
    Test,
}

/// A step that failed. Displays as nginx writes it: `bind() to 0.0.0.0:80 failed (98: Address already in use)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenError {
    what: String,
    errno: Errno,
    hint: Option<&'static str>,
}

impl ListenError {
    fn new(what: String, error: &io::Error) -> Self {
        Self { what, errno: Errno::from(error), hint: None }
    }

    /// The error of the system.
    pub fn errno(&self) -> i32 {
        self.errno.0
    }

    /// Returns true if another socket has the address.
    pub fn is_in_use(&self) -> bool {
        self.errno.0 == Os::ADDRINUSE.raw_os_error()
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed ({})", self.what, self.errno)?;
        match self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ListenError {}

/// Events that [`open_all`] reports to its caller; each displays as the line to log.
#[derive(Debug)]
pub enum ListenReport {
    /// The socket could not be opened, or its file not be prepared. Level `emerg`.
    Failed(ListenError),
    /// An option could not be set; the socket works without it. Level `alert`.
    Ignored(ListenError),
    /// All failed sockets are tried once more after half a second. Level `notice`.
    TryAgain,
    /// An address stayed in use. Level `emerg`.
    GaveUp,
}

impl fmt::Display for ListenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenReport::Failed(error) => error.fmt(f),
            ListenReport::Ignored(error) => write!(f, "{error}, ignored"),
            ListenReport::TryAgain => f.write_str("try again to bind() after 500ms"),
            ListenReport::GaveUp => f.write_str("still could not bind()"),
        }
    }
}

/// A bound socket that listens, not yet on any loop. Dropping it closes this descriptor.
#[derive(Debug)]
pub struct ListenSocket {
    socket: Socket,
    addr: Addr,
    kind: SocketKind,
    share: AcceptingLoops,
}

/// Opens every socket, in order. Addresses in use are tried five times, half a second apart.
///
/// `None` when one could not be opened: then none stays open, and `report` was told why. Waits up to 2 s: never on
/// a loop.
pub fn open_all(
    wanted_values: &[(Addr, ListenOptions)],
    purpose: Purpose,
    report: &mut dyn FnMut(ListenReport),
) -> Option<Vec<ListenSocket>> {
    let mut opened: Vec<Option<ListenSocket>> = wanted_values.iter().map(|_| None).collect();
    for tries_left in (0..TRIES).rev() {
        let mut in_use = false;
        for (slot, (addr, options)) in opened.iter_mut().zip(wanted_values).filter(|(slot, _)| slot.is_none())
        {
            match ListenSocket::open_for(purpose, addr, options, report) {
                Ok(socket) => *slot = Some(socket),
                Err(error) if !error.is_in_use() => {
                    report(ListenReport::Failed(error));
                    return None;
                }
                Err(_) if purpose == Purpose::Test => {}
                Err(error) => {
                    in_use = true;
                    report(ListenReport::Failed(error));
                }
            }
        }
        if !in_use {
            return Some(opened.into_iter().flatten().collect());
        }
        if tries_left > 0 {
            report(ListenReport::TryAgain);
            pause();
        }
    }
    report(ListenReport::GaveUp);
    None
}

impl ListenSocket {
    /// Opens a socket on `addr`. Options the kernel refuses are reported and left out.
    ///
    /// An explicit `reuseport` shares the address with every socket that asks for it too. Without it the address
    /// must be free, but [`sibling`](Self::sibling)s may be added afterwards.
    pub fn open(
        addr: &Addr,
        options: &ListenOptions,
        report: &mut dyn FnMut(ListenReport),
    ) -> Result<Self, ListenError> {
        Self::open_for(Purpose::Serve, addr, options, report)
    }

    fn open_for(
        purpose: Purpose,
        addr: &Addr,
        options: &ListenOptions,
        report: &mut dyn FnMut(ListenReport),
    ) -> Result<Self, ListenError> {
        // A test must not join the sockets of a running server: it would take connections from it.
        let share = options.reuseport && purpose == Purpose::Serve;
        let this = Self::bound(addr, options, share, report)?;
        if let Addr::Unix(Some(path)) = addr {
            allow_everybody(path, report);
            if purpose == Purpose::Test {
                remove(path, report);
            }
        }
        this.set_options(options, report);
        this.listen(options)?;
        Ok(this)
    }

    /// One more socket on the address of this TCP or UDP one, with a queue of its own: the kernel spreads connections and clients
    /// over all of them. Errors: it is a Unix socket; the first socket belongs to another user.
    pub fn sibling(
        &self,
        options: &ListenOptions,
        report: &mut dyn FnMut(ListenReport),
    ) -> Result<Self, ListenError> {
        // The first socket was bound alone, so that an address in use was seen; now it may be shared.
        self.socket
            .set_reuse_port(true)
            .map_err(|e| ListenError::new(format!("setsockopt(SO_REUSEPORT) {}", self.addr), &e))?;
        let this = Self::bound(&self.addr, options, true, report)?;
        this.set_options(options, report);
        this.listen(options)?;
        Ok(this)
    }

    /// Duplicates the socket for another loop or process. All duplicates share one queue.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.share(self.share)
    }

    /// Duplicates the socket for a loop that has it for itself or among others.
    pub fn share(&self, share: AcceptingLoops) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, addr: self.addr.clone(), kind: self.kind, share })
    }

    /// A number that this socket has, whichever descriptor it is known by, and no other.
    pub fn cookie(&self) -> io::Result<u64> {
        Ok(sockopt::socket_cookie(&self.socket)?)
    }

    /// Returns the loops that accept from it.
    pub fn shared_with(&self) -> AcceptingLoops {
        self.share
    }

    /// A socket that was opened and set up elsewhere: handed over by the master, a former binary or systemd.
    ///
    /// # Errors
    /// The socket is neither a stream socket that listens nor a datagram socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(fd);
        let kind = match socket.r#type()? {
            Type::STREAM if socket.is_listener()? => SocketKind::Stream,
            Type::DGRAM => SocketKind::Datagram,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a listening socket")),
        };
        socket.set_nonblocking(true)?;
        let addr = local_addr(&socket)?;
        Ok(Self { socket, addr, kind, share: AcceptingLoops::All })
    }

    /// Kind of the socket.
    pub fn kind(&self) -> SocketKind {
        self.kind
    }

    /// Sets the options that may change while the socket is open: after a reload, or on an inherited one.
    pub fn configure(&self, options: &ListenOptions, report: &mut dyn FnMut(ListenReport)) {
        self.set_options(options, report);
        // A second listen() changes the length of the queue.
        if let Err(error) = self.listen(options) {
            report(ListenReport::Ignored(error));
        }
    }

    fn set_options(&self, options: &ListenOptions, report: &mut dyn FnMut(ListenReport)) {
        let mut set = |what: fmt::Arguments<'_>, result: io::Result<()>| {
            if let Err(e) = result {
                report(ListenReport::Ignored(ListenError::new(
                    format!("setsockopt({what}) {}", self.addr),
                    &e,
                )));
            }
        };
        let socket = &self.socket;
        if let Some(size) = options.rcvbuf {
            set(format_args!("SO_RCVBUF, {size}"), socket.set_recv_buffer_size(size));
        }
        if let Some(size) = options.sndbuf {
            set(format_args!("SO_SNDBUF, {size}"), socket.set_send_buffer_size(size));
        }
        if self.kind == SocketKind::Datagram {
            if let Some(addr) = self.addr.inet().filter(|addr| addr.ip().is_unspecified()) {
                let name = if addr.is_ipv6() { "IPV6_RECVPKTINFO" } else { "IP_PKTINFO" };
                let result = tw_sys::sockopt::set_receive_local_address(socket, addr.is_ipv6());
                set(format_args!("{name}, 1"), result);
            }
            if options.datagrams == DatagramUse::Quic {
                let is_ipv6 = self.addr.inet().is_some_and(|addr| addr.is_ipv6());
                set(format_args!("IP_RECVTOS, 1"), tw_sys::sockopt::set_receive_ecn(socket, is_ipv6));
                let result = tw_sys::sockopt::set_dont_fragment(socket, is_ipv6);
                set(format_args!("IP_MTU_DISCOVER, IP_PMTUDISC_PROBE"), result);
                // Kernels without it pass on each datagram for itself.
                let _ = tw_sys::sockopt::set_udp_gro(socket, true);
            }
            return;
        }
        match options.keepalive {
            Keepalive::System => {}
            Keepalive::Off => set(format_args!("SO_KEEPALIVE, 0"), socket.set_keepalive(false)),
            Keepalive::On { idle, interval, count } => {
                set(format_args!("SO_KEEPALIVE, 1"), socket.set_keepalive(true));
                if let Some(idle) = idle {
                    let result = sockopt::set_tcp_keepidle(socket, idle);
                    set(format_args!("TCP_KEEPIDLE, {}", idle.as_secs()), result.map_err(Into::into));
                }
                if let Some(interval) = interval {
                    let result = sockopt::set_tcp_keepintvl(socket, interval);
                    set(format_args!("TCP_KEEPINTVL, {}", interval.as_secs()), result.map_err(Into::into));
                }
                if let Some(count) = count {
                    let result = sockopt::set_tcp_keepcnt(socket, count);
                    set(format_args!("TCP_KEEPCNT, {count}"), result.map_err(Into::into));
                }
            }
        }
        if options.transparent != is_transparent(socket, &self.addr) {
            let value = u8::from(options.transparent);
            let result = set_transparent(socket, &self.addr, options.transparent);
            set(format_args!("IP_TRANSPARENT, {value}"), result);
        }
        if let Some(queue) = options.fastopen {
            set(format_args!("TCP_FASTOPEN, {queue}"), tw_sys::sockopt::set_tcp_fastopen(socket, queue));
        }
        let defers = tw_sys::sockopt::tcp_defer_accept(socket).is_ok_and(|secs| secs > 0);
        if options.deferred != defers {
            let secs = if options.deferred { DEFER_SECS } else { 0 };
            set(
                format_args!("TCP_DEFER_ACCEPT, {secs}"),
                tw_sys::sockopt::set_tcp_defer_accept(socket, secs),
            );
        }
    }

    /// The address it is bound to: with port 0, the one the kernel chose.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Removes the file of a Unix socket, as the last owner does when it stops for good.
    pub fn remove_file(&self, report: &mut dyn FnMut(ListenReport)) {
        if let Addr::Unix(Some(path)) = &self.addr {
            remove(path, report);
        }
    }

    fn listen(&self, options: &ListenOptions) -> Result<(), ListenError> {
        if self.kind == SocketKind::Datagram {
            return Ok(());
        }
        let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
        self.socket
            .listen(backlog)
            .map_err(|e| ListenError::new(format!("listen() to {}, backlog {backlog}", self.addr), &e))
    }

    fn bound(
        addr: &Addr,
        options: &ListenOptions,
        share: bool,
        report: &mut dyn FnMut(ListenReport),
    ) -> Result<Self, ListenError> {
        let step = |call: &str, e: io::Error| ListenError::new(format!("{call} {addr}"), &e);
        let (domain, to) = match addr {
            Addr::Inet(inet) => (Domain::for_address(*inet), SockAddr::from(*inet)),
            Addr::Unix(path) => {
                let to = SockAddr::unix(path.as_deref().unwrap_or(Path::new("")));
                (Domain::UNIX, to.map_err(|e| step("bind() to", e))?)
            }
        };
        let kind = options.kind;
        let (socket_type, protocol) = match kind {
            SocketKind::Stream if options.multipath && domain != Domain::UNIX => {
                (Type::STREAM, Some(Protocol::MPTCP))
            }
            SocketKind::Stream => (Type::STREAM, None),
            SocketKind::Datagram => (Type::DGRAM, None),
        };
        let socket =
            Socket::new(domain, socket_type.nonblocking(), protocol).map_err(|e| step("socket()", e))?;
        // With `SO_REUSEADDR`, any program could get a share of the datagrams.
        if kind == SocketKind::Stream {
            socket.set_reuse_address(true).map_err(|e| step("setsockopt(SO_REUSEADDR)", e))?;
        }
        if share && domain != Domain::UNIX {
            socket.set_reuse_port(true).map_err(|e| step("setsockopt(SO_REUSEPORT)", e))?;
        }
        if domain == Domain::IPV6
            && let Err(e) = socket.set_only_v6(options.ipv6only)
        {
            report(ListenReport::Ignored(step("setsockopt(IPV6_V6ONLY)", e)));
        }
        if options.transparent {
            set_transparent(&socket, addr, true).map_err(|e| {
                let hint = (Os::from_io_error(&e) == Some(Os::PERM)).then_some(TRANSPARENT_HINT);
                ListenError { hint, ..step("setsockopt(IP_TRANSPARENT)", e) }
            })?;
        }
        socket.bind(&to).map_err(|e| {
            let hint = bind_hint(addr, &e);
            ListenError { hint, ..step("bind() to", e) }
        })?;
        let addr = match addr {
            Addr::Inet(inet) if inet.port() == 0 => {
                local_addr(&socket).map_err(|e| step("getsockname()", e))?
            }
            _ => addr.clone(),
        };
        Ok(Self { socket, addr, kind, share: AcceptingLoops::All })
    }
}

#[expect(clippy::disallowed_methods, reason = "the main thread at start or reload; it runs no loop")]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// Explains a socket that may not be transparent.
const TRANSPARENT_HINT: &str =
    "\"transparent\" needs root or the capability CAP_NET_ADMIN in the process that opens the sockets";

/// Lets a socket have addresses that no interface of this machine has, or no longer.
fn set_transparent(socket: &Socket, addr: &Addr, is_on: bool) -> io::Result<()> {
    match addr.inet() {
        Some(addr) if addr.is_ipv6() => socket.set_ip_transparent_v6(is_on),
        Some(_) => socket.set_ip_transparent_v4(is_on),
        None => Ok(()),
    }
}

/// Returns true if a socket may have addresses of others.
fn is_transparent(socket: &Socket, addr: &Addr) -> bool {
    let is_transparent = match addr.inet() {
        Some(addr) if addr.is_ipv6() => socket.ip_transparent_v6(),
        Some(_) => socket.ip_transparent_v4(),
        None => Ok(false),
    };
    is_transparent.unwrap_or(false)
}

/// Explains a failed `bind()` by its most likely cause.
fn bind_hint(addr: &Addr, error: &io::Error) -> Option<&'static str> {
    let errno = Os::from_io_error(error)?;
    match (addr, errno) {
        (Addr::Inet(addr), Os::ACCESS) if addr.port() < 1024 => {
            Some("ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")
        }
        (Addr::Inet(_), Os::ADDRINUSE) => Some("another process listens there"),
        (Addr::Inet(_), Os::ADDRNOTAVAIL) => Some("no interface of this machine has that address"),
        (Addr::Unix(Some(path)), Os::ADDRINUSE) if nobody_listens(path) => {
            Some("no process listens on this socket file: it was left by a killed process, remove it")
        }
        (Addr::Unix(_), Os::ADDRINUSE) => Some("another process listens there"),
        _ => None,
    }
}

/// Returns true if the file is a socket that refuses connections. Does not wait when the queue of a listener is full.
fn nobody_listens(path: &Path) -> bool {
    let connect =
        || Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?.connect(&SockAddr::unix(path)?);
    connect().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

fn local_addr(socket: &Socket) -> io::Result<Addr> {
    let addr = socket.local_addr()?;
    match addr.as_socket() {
        Some(inet) => Ok(Addr::Inet(inet)),
        None => Ok(Addr::Unix(addr.as_pathname().map(Into::into))),
    }
}

/// Lets every user connect, as nginx does: permissions of the directory decide.
fn allow_everybody(path: &Path, report: &mut dyn FnMut(ListenReport)) {
    if let Err(e) = std::fs::set_permissions(path, Permissions::from_mode(0o666)) {
        report(ListenReport::Failed(ListenError::new(format!("chmod() \"{}\"", path.display()), &e)));
    }
}

fn remove(path: &Path, report: &mut dyn FnMut(ListenReport)) {
    if let Err(e) = std::fs::remove_file(path) {
        report(ListenReport::Failed(ListenError::new(format!("unlink() {}", path.display()), &e)));
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<ListenSocket> for OwnedFd {
    fn from(socket: ListenSocket) -> Self {
        socket.socket.into()
    }
}

#[cfg(test)]
mod tests;
