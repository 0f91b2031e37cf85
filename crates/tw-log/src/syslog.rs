//! syslog as RFC 3164 and nginx write it: `<190>Nov 20 11:00:00 host tag: message`, one datagram each.

use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::target::SyslogServer;
use crate::{Level, time};

/// The facilities, by number; nginx's words.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Facility of a syslog message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Facility(u8);

impl Facility {
    /// Default of nginx.
    pub const LOCAL7: Self = Self(23);

    /// The facility of `facility=WORD`.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        (0..).zip(FACILITIES).find(|(_, name)| name.as_bytes() == word).map(|(number, _)| Self(number))
    }
}

/// Header of every message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SyslogHead {
    /// Facility of the messages.
    pub facility: Facility,
    /// `HOST TAG: ` or `TAG: `, as it follows the time.
    from: Box<str>,
}

impl SyslogHead {
    /// The head of messages from this host (`None`: `nohostname`) and program.
    #[must_use]
    pub fn new(facility: Facility, host: Option<&str>, tag: &str) -> Self {
        let from = match host {
            Some(host) => format!("{host} {tag}: "),
            None => format!("{tag}: "),
        };
        Self { facility, from: from.into() }
    }

    /// Appends it. `unix_s`: seconds since 1970. Allocates only if `out` has to grow.
    pub fn push(&self, out: &mut Vec<u8>, severity: Level, unix_s: i64) {
        // Severities are levels whose numbers begin at zero.
        let priority = u32::from(self.facility.0) * 8 + (severity as u32 - 1);
        // A Vec takes every write.
        let _ = write!(out, "<{priority}>");
        out.extend_from_slice(&time::syslog_time(unix_s));
        out.push(b' ');
        out.extend_from_slice(self.from.as_bytes());
    }
}

/// The socket to a server, made when there is something to send and again after an error.
#[derive(Debug)]
pub(crate) struct Datagrams {
    server: SyslogServer,
    socket: Option<Socket>,
}

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

/// Failed operation, in nginx's words.
#[derive(Debug)]
pub(crate) struct SendError {
    /// `connect()` or `send()`.
    pub(crate) call: &'static str,
    pub(crate) error: io::Error,
}

impl SendError {
    /// Severity: a server that is away is an error, an unexpected failure of a socket an alert.
    pub(crate) fn level(&self) -> Level {
        use ErrorKind::{
            BrokenPipe, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable,
            NotConnected, TimedOut,
        };
        match self.error.kind() {
            BrokenPipe | ConnectionRefused | ConnectionReset | HostUnreachable | NetworkDown
            | NetworkUnreachable | NotConnected | TimedOut
                if self.call == "send()" =>
            {
                Level::Error
            }
            _ => Level::Alert,
        }
    }
}

/// Result of sending a message.
#[derive(Debug)]
pub(crate) enum SendResult {
    /// Sent.
    Yes,
    /// Sent over a new socket. The failure may be about an earlier message: the absence of a UDP server shows only
    /// after the first one.
    Anew(SendError),
    /// The server does not take it now.
    Busy,
    /// Lost.
    No(SendError),
}

impl Datagrams {
    pub(crate) fn new(server: SyslogServer) -> Self {
        Self { server, socket: None }
    }

    /// Sends one message. If a socket fails, another one is tried.
    pub(crate) fn send(&mut self, message: &[u8]) -> SendResult {
        let is_busy = |failed: &SendError| failed.error.kind() == ErrorKind::WouldBlock;
        let had_socket = self.socket.is_some();
        let first = match self.send_once(message) {
            Ok(()) => return SendResult::Yes,
            Err(failed) if is_busy(&failed) => return SendResult::Busy,
            Err(failed) if had_socket => failed,
            Err(failed) => return SendResult::No(failed),
        };
        match self.send_once(message) {
            Ok(()) => SendResult::Anew(first),
            Err(failed) if is_busy(&failed) => SendResult::Busy,
            Err(failed) => SendResult::No(failed),
        }
    }

    fn send_once(&mut self, message: &[u8]) -> Result<(), SendError> {
        if self.socket.is_none() {
            let connected = connect(&self.server).map_err(|error| SendError { call: "connect()", error });
            self.socket = Some(connected?);
        }
        let sent = loop {
            let sent = match &self.socket {
                Some(Socket::Udp(socket)) => socket.send(message),
                Some(Socket::Unix(socket)) => socket.send(message),
                None => return Ok(()),
            };
            if !sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                break sent;
            }
        };
        match sent {
            Ok(_) => Ok(()),
            Err(error) => {
                if error.kind() != ErrorKind::WouldBlock {
                    self.socket = None;
                }
                Err(SendError { call: "send()", error })
            }
        }
    }

    /// Lets go of the socket: the next message makes another one.
    pub(crate) fn close(&mut self) {
        self.socket = None;
    }

    /// To wait for room.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| match socket {
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        })
    }
}

fn connect(server: &SyslogServer) -> io::Result<Socket> {
    match server {
        SyslogServer::Inet(address) => {
            // The socket is not bound first, as std would do: a sandbox need not allow that.
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
            rustix::net::connect(&socket, address)?;
            Ok(Socket::Udp(socket.into()))
        }
        SyslogServer::Unix(path) => {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect(path)?;
            Ok(Socket::Unix(socket))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_those_of_nginx() {
        let facility = |word: &str| Facility::parse(word.as_bytes()).unwrap();
        for (facility, severity, host, tag, expected) in [
            (Facility::LOCAL7, Level::Info, Some("h"), "nginx", "<190>Jan  1 00:00:00 h nginx: "),
            (facility("user"), Level::Error, None, "T_1", "<11>Jan  1 00:00:00 T_1: "),
            (facility("kern"), Level::Emerg, Some("h"), "nginx", "<0>Jan  1 00:00:00 h nginx: "),
        ] {
            let mut out = Vec::new();
            SyslogHead::new(facility, host, tag).push(&mut out, severity, 0);
            let text = String::from_utf8(out).unwrap();
            // The length of the head and the places of its parts do not depend on the time zone of the machine.
            assert_eq!(text.len(), expected.len(), "{text}");
            let start = expected.find('>').unwrap() + 1;
            let end = expected.find(":00 ").unwrap() + 3;
            assert_eq!((&text[..start], &text[end..]), (&expected[..start], &expected[end..]), "{text}");
        }
        assert_eq!(Facility::parse(b"local7"), Some(Facility::LOCAL7));
        assert_eq!(Facility::parse(b"Local7"), None);
    }
}
