//! Orders with an answer. The caller of `-s reload` learns if the configuration was taken over, and if not, the reason.
//!
//! A signal cannot be answered. So a master listens on a Unix socket as well, one in the abstract name space, which is
//! no file and ends with the process: `tailwater/NUMBER`. A connection is an order to reload, allowed for root and the
//! user of the master; the answer is the messages of the reload, and the end of the stream. Both sides check the
//! identity of the other.
//!
//! `tailwater purge` uses the same socket, with a first line of its own. A purge needs no address at which the server
//! listens and no location that allows it, only the rights of the server's user.
//!
//! A caller that finds by itself that the configuration is wrong orders nothing, but sends the reason for the error log
//! of the server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, geteuid};
use tailwater_commands::cli::Purge;
use tailwater_commands::output::console::Fault;
use tw_log::Level;

use super::timeouts::LOAD_TIMEOUT;

/// Longest wait of an answer for its reader. It fits into the buffer of a socket.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait of a client for the answer: as long as two worker processes in a row may take, and some more.
const COMMAND_TIMEOUT: Duration = LOAD_TIMEOUT.saturating_mul(3);
/// Longest wait for the request of a client, which is sent with the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of it that are read: some hundred messages.
const WISH_MAX: u64 = 64 << 10;
/// First line of a request.
const RELOAD: &str = "reload";
const PURGE: &str = "purge";
const FLEET_STATUS: &str = "fleet status\n";
/// The first line of an answer.
const DONE: &str = "done";
/// The first line of either, if the configuration is wrong; the messages follow.
const REFUSED: &str = "refused";

/// Socket on which a master takes orders.
#[derive(Debug)]
pub(super) struct Control(UnixListener);

/// Client with a request.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    /// The process.
    pub(super) pid: Pid,
    request: ClientRequest,
}

/// Request of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientRequest {
    /// A reload. It waits for the answer.
    Reload,
    /// To tell why it did not order one.
    NotReloaded(Vec<Fault>),
    /// A purge. It waits for the answer.
    Purge(Purge),
    /// The state of its fleets.
    FleetStatus,
    /// A purge of a kind that is not known here.
    Malformed,
}

impl Control {
    /// Takes orders from now on, for the process that calls this.
    pub(super) fn open() -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&name_of(rustix::process::getpid())?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The next order, if there is one.
    pub(super) fn next(&self) -> Option<Client> {
        while let Ok((stream, _)) = self.0.accept() {
            if let Ok(peer) = socket_peercred(&stream)
                && (peer.uid.is_root() || peer.uid == geteuid())
            {
                let request = ClientRequest::read(&stream);
                return Some(Client { stream, pid: peer.pid, request });
            }
        }
        None
    }
}

/// Readable when an order waits.
impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ClientRequest {
    /// Reads a request. An unknown one is a reload, as the connection alone is.
    fn read(stream: &UnixStream) -> Self {
        let mut text = Vec::new();
        let read = stream
            .set_read_timeout(Some(REQUEST_TIMEOUT))
            .and_then(|()| stream.take(WISH_MAX).read_to_end(&mut text));
        if let Some(order) = text.strip_prefix(PURGE.as_bytes()).and_then(|rest| rest.strip_prefix(b"\n")) {
            return postcard::from_bytes(order).map_or(Self::Malformed, Self::Purge);
        }
        if text == FLEET_STATUS.as_bytes() {
            return Self::FleetStatus;
        }
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        match (read, lines.next()) {
            (Ok(_), Some(REFUSED)) => Self::NotReloaded(lines.map(fault).collect()),
            _ => Self::Reload,
        }
    }
}

impl Client {
    /// Takes the request, once.
    pub(super) fn take_request(&mut self) -> ClientRequest {
        std::mem::replace(&mut self.request, ClientRequest::Malformed)
    }

    /// Connection to the client, for the process that responds.
    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Client at the other end of `stream`, whose request was read already.
    pub(super) fn new(stream: UnixStream, pid: Pid) -> Self {
        Self { stream, pid, request: ClientRequest::Malformed }
    }

    /// Sends the outcome and the messages `said` to the client.
    pub(super) fn respond(mut self, is_done: bool, said: &[Fault]) {
        let text = message(if is_done { DONE } else { REFUSED }, said);
        // A client that does not wait for the response does not get it.
        let _ = self
            .stream
            .set_write_timeout(Some(RESPONSE_TIMEOUT))
            .and_then(|()| self.stream.write_all(text.as_bytes()));
    }
}

/// Orders a reload and waits for its end. Returns the messages if the configuration was taken over; `None` if
/// `master` takes no orders this way.
pub(super) fn order_reload(master: Pid) -> Option<Result<Vec<Fault>, Vec<Fault>>> {
    let stream = connect(master, message(RELOAD, &[]).as_bytes()).ok()?;
    stream.set_read_timeout(Some(COMMAND_TIMEOUT)).ok()?;
    Some(read_answer(stream, "the server ended before it had reloaded its configuration"))
}

/// Orders a purge, waits for its end, and returns the messages.
pub(super) fn order_purge(master: Pid, order: &Purge) -> Result<Vec<Fault>, Vec<Fault>> {
    let refused = |text: String| Err(vec![Fault::emerg(text)]);
    let request = match postcard::to_stdvec(order) {
        Ok(order) => [PURGE.as_bytes(), b"\n", &order].concat(),
        Err(error) => return refused(format!("the order cannot be written: {error}")),
    };
    if request.len() as u64 > WISH_MAX {
        return refused(format!("the key or tag to purge is too long: {} bytes", request.len()));
    }
    send(master, &request, "the server ended before it reported the result of the purge")
}

/// Requests the state of the fleets, and returns it line by line.
pub(super) fn request_fleet_status(master: Pid) -> Result<Vec<Fault>, Vec<Fault>> {
    send(master, FLEET_STATUS.as_bytes(), "the server ended before it reported the state of its fleets")
}

/// Sends a request and waits for the response. `ended` is the message for a connection that ends without one.
fn send(master: Pid, request: &[u8], ended: &str) -> Result<Vec<Fault>, Vec<Fault>> {
    let refused = |text: String| Err(vec![Fault::emerg(text)]);
    let connected = connect(master, request).and_then(|stream| {
        stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        let runs_as = socket_peercred(&stream)?.uid;
        Ok((stream, runs_as))
    });
    match connected {
        Ok((_, runs_as)) if !geteuid().is_root() && runs_as != geteuid() => {
            let fault = Fault::emerg(format!("process {master} runs as another user"));
            Err(vec![fault.hint("order it as that user or as root")])
        }
        Ok((stream, _)) => read_answer(stream, ended),
        Err(error) => refused(format!("process {master} takes no orders ({})", tw_base::Errno::from(&error))),
    }
}

/// Waits for the response and returns its messages. `ended` is the message for a connection that ends without one.
pub(super) fn read_answer(stream: UnixStream, ended: &str) -> Result<Vec<Fault>, Vec<Fault>> {
    let mut lines = BufReader::new(stream).lines();
    let first = match lines.next() {
        Some(Ok(first)) => first,
        Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(vec![Fault::emerg("the server does not answer")]);
        }
        Some(Err(_)) | None => return Err(vec![Fault::emerg(ended)]),
    };
    let said = lines.map_while(Result::ok).map(|line| fault(&line)).collect();
    if first == DONE { Ok(said) } else { Err(said) }
}

// DIFF(nginx): nginx writes to a log by itself, which need not be that of the server.
/// Sends `master` the reason why no reload is ordered. Failures are ignored.
pub(super) fn report_refusal(master: Pid, why: &[Fault]) {
    let _ = connect(master, message(REFUSED, why).as_bytes());
}

/// A connection to `master` with what is wanted.
fn connect(master: Pid, request: &[u8]) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&name_of(master)?)?;
    // Any process can take the name of the socket.
    if socket_peercred(&stream)?.pid != master {
        return Err(io::ErrorKind::NotConnected.into());
    }
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(request)?;
    stream.shutdown(Shutdown::Write)?;
    Ok(stream)
}

/// `FIRST`, and a line for each of `said`.
fn message(first: &str, said: &[Fault]) -> String {
    let mut text = format!("{first}\n");
    for Fault { level, message, .. } in said {
        text.push_str(&format!("{level} {}\n", message.replace('\n', " ")));
    }
    text
}

/// Message of such a line.
fn fault(line: &str) -> Fault {
    let (level, message) = line.split_once(' ').unwrap_or(("", line));
    Fault { level: Level::parse(level.as_bytes()).unwrap_or(Level::Emerg), ..Fault::emerg(message) }
}

fn name_of(pid: Pid) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("tailwater/{}", pid.as_raw_nonzero()))
}

#[cfg(test)]
mod tests {
    use tailwater_commands::cli::{PurgeMode, PurgeScope};
    use tw_testkit::wait;

    use super::*;

    #[test]
    fn an_order_is_answered() {
        let control = Control::open().unwrap();
        let us = rustix::process::getpid();
        assert!(control.next().is_none());
        for is_done in [true, false] {
            let said = vec![Fault { level: Level::Warn, ..Fault::emerg("a") }, Fault::emerg("b\nc")];
            let answer = std::thread::scope(|scope| {
                let order_thread = scope.spawn(|| order_reload(us));
                let client = std::iter::repeat_with(|| control.next()).find_map(|client| client).unwrap();
                assert_eq!((client.pid, &client.request), (us, &ClientRequest::Reload));
                client.respond(is_done, &said);
                order_thread.join().unwrap().unwrap()
            });
            assert_eq!(answer.is_ok(), is_done);
            let messages = answer.unwrap_or_else(|said| said);
            let messages: Vec<_> = messages.iter().map(|fault| (fault.level, &*fault.message)).collect();
            assert_eq!(messages, [(Level::Warn, "a"), (Level::Emerg, "b c")]);
        }
        let ended = std::thread::scope(|scope| {
            let order_thread = scope.spawn(|| order_reload(us));
            drop(std::iter::repeat_with(|| control.next()).find_map(|client| client));
            order_thread.join().unwrap().unwrap()
        });
        assert!(ended.is_err());
        let order = Purge {
            cache: b"c".to_vec(),
            named: PurgeScope::Key(b"a\nb\xff*".to_vec()),
            mode: PurgeMode::Soft,
        };
        for is_done in [true, false] {
            let said = std::thread::scope(|scope| {
                let order_thread = scope.spawn(|| order_purge(us, &order));
                let mut client = std::iter::repeat_with(|| control.next()).find_map(|client| client).unwrap();
                assert_eq!(client.take_request(), ClientRequest::Purge(order.clone()));
                client.respond(is_done, &[Fault::emerg("said")]);
                order_thread.join().unwrap()
            });
            assert_eq!(said.is_ok(), is_done);
            assert_eq!(said.unwrap_or_else(|said| said)[0].message, "said");
        }
        let long = Purge { cache: vec![b'c'; 70_000], ..order };
        assert!(order_purge(us, &long).unwrap_err()[0].message.contains("to purge is too long"));
        drop(connect(us, b"purge\nnonsense").unwrap());
        assert_eq!(control.next().unwrap().take_request(), ClientRequest::Malformed);
        let why = vec![Fault::emerg("a\tb"), Fault { level: Level::Warn, ..Fault::emerg("c") }];
        report_refusal(us, &why);
        assert_eq!(control.next().unwrap().request, ClientRequest::NotReloaded(why));
        drop(control);
        // A child that another test starts has the socket, too, for a moment.
        assert!(wait::until(wait::TIMEOUT, || order_reload(us).is_none()));
    }
}
