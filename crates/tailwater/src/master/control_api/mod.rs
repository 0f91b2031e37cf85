//! Control API (`-l`): processes, configuration, reloads, purges, metrics and messages of the master as JSON over HTTP.
//!
//! ```text
//! client ─► Connection: reads ─► ApiRequest ─► Master::respond ─► Connection: writes, closes
//!                         ├ a purge: waits for the worker process, on a socket of its own
//!                         └ metrics: the worker process gets the connection and responds
//! ```
//! Paths below `/1/nginx` and `/1/control` are those of nginx 1.31.5; `/1/tailwater` has what nginx has not. The master serves it
//! between its other tasks: it never waits for a client, and a client that sends or takes nothing for a while is closed. On a Unix
//! socket, the permissions of the file decide who may connect. An IP address needs a token (`--control-token`).

mod connection;
mod endpoint;
mod respond;
mod token;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use tailwater_commands::cli::ControlOptions;
use tailwater_commands::output::console::Fault;
use tw_base::Errno;
use tw_conf::{Origin, Sources};
use tw_net::Addr;

use connection::{ApiRequest, ApiResponse, Connection, Progress};
use token::Token;

/// Connections at the same time. The oldest one is closed for a further one.
const CONNECTIONS_MAX: usize = 16;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 16;

/// The API while it listens.
#[derive(Debug)]
pub(super) struct ControlApi {
    listener: OwnedFd,
    address: Addr,
    /// Token that clients must send; `None` on a Unix socket.
    token: Option<Token>,
    connections: Vec<Connection>,
    /// Number of the next connection.
    next: u64,
    /// Files of the configuration in use, by name.
    files: Vec<(String, String)>,
}

impl ControlApi {
    /// Listens at the address of the command line, or takes over `inherited`, the socket of an old binary.
    ///
    /// # Errors
    /// The address or the token is invalid, or the socket cannot be opened.
    pub(super) fn open(options: &ControlOptions, inherited: Option<OwnedFd>) -> Result<Self, Fault> {
        let shown = String::from_utf8_lossy(&options.address).into_owned();
        let address = parse(&shown)?;
        let token = match (&address, &options.token) {
            (Addr::Unix(_), None) => None,
            (_, Some(file)) => Some(Token::read(file)?),
            (Addr::Inet(_), None) => {
                let fault = Fault::emerg(format!("control API on \"{shown}\" needs --control-token FILE"));
                return Err(
                    fault.hint("a Unix socket (-l unix:/path) needs none: its file has the mode 0600")
                );
            }
        };
        let opened = match (inherited, &address) {
            (Some(socket), _) => Ok(socket),
            (None, Addr::Unix(Some(path))) => listen_unix(path),
            (None, Addr::Inet(address)) => listen_inet(address),
            (None, Addr::Unix(None)) => Err(io::ErrorKind::InvalidInput.into()),
        };
        let listener = opened.map_err(|error| {
            Fault::emerg(format!("control API cannot listen on \"{shown}\" ({})", Errno::from(&error)))
        })?;
        Ok(Self { listener, address, token, connections: Vec::new(), next: 0, files: Vec::new() })
    }

    /// Sets the files of the configuration in use.
    pub(super) fn set_files(&mut self, files: Vec<(String, String)>) {
        self.files = files;
    }

    /// Files of the configuration in use: name and text of each.
    fn files(&self) -> &[(String, String)] {
        &self.files
    }

    /// The listening socket, for another binary.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Events to wait for. A new binary accepts connections in the place of this one (`is_replaced`).
    pub(super) fn events(&self, is_replaced: bool) -> impl Iterator<Item = PollFd<'_>> {
        let listener = (!is_replaced).then(|| PollFd::new(&self.listener, rustix::event::PollFlags::IN));
        listener.into_iter().chain(self.connections.iter().map(Connection::event))
    }

    /// Time at which a client is closed that is too slow.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.connections.iter().map(Connection::deadline).min()
    }

    /// Accepts connections, reads and writes. Returns requests that are complete, each with the number of its connection.
    fn advance(&mut self, is_replaced: bool, now: Instant) -> Vec<(u64, ApiRequest)> {
        if !is_replaced {
            self.accept(now);
        }
        let token = self.token.as_ref();
        let mut requests = Vec::new();
        self.connections.retain_mut(|connection| match connection.advance(token, now) {
            Progress::Pending => true,
            Progress::Request(request) => {
                requests.push((connection.number, request));
                true
            }
            Progress::Ended => false,
        });
        requests
    }

    /// Sends the response to the connection of this number.
    fn respond(&mut self, number: u64, response: &ApiResponse) {
        let now = Instant::now();
        if let Some(connection) =
            self.connections.iter_mut().find(|known_connection| known_connection.number == number)
        {
            connection.respond(response, now);
        }
    }

    /// Lets the connection of this number wait for the outcome of a purge, which arrives on `outcome`.
    fn wait_for(&mut self, number: u64, outcome: UnixStream) {
        if let Some(connection) =
            self.connections.iter_mut().find(|known_connection| known_connection.number == number)
        {
            connection.wait_for(outcome);
        }
    }

    /// Connection of this number.
    fn connection(&self, number: u64) -> Option<&Connection> {
        self.connections.iter().find(|known_connection| known_connection.number == number)
    }

    /// Closes this process's end of the connection of this number: another process responds.
    fn leave_to_another(&mut self, number: u64) {
        self.connections.retain(|connection| connection.number != number);
    }

    fn accept(&mut self, now: Instant) {
        // An error concerns one client, or passes: the listener is asked again at the next event.
        while let Ok(stream) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            if self.connections.len() >= CONNECTIONS_MAX {
                self.connections.remove(0);
            }
            self.connections.push(Connection::new(self.next, stream, now));
            self.next += 1;
        }
    }

    /// Ends the API. The file of a Unix socket is removed, unless another binary listens there.
    pub(super) fn close(self, is_replaced: bool) {
        if let (Addr::Unix(Some(path)), false) = (&self.address, is_replaced) {
            // A file that is gone needs no removal.
            let _ = fs::remove_file(path);
        }
    }
}

/// Texts of a configuration by the names of their files. Files that are no text are shown as far as they are one.
pub(super) fn config_files(sources: &Sources) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let named = sources.iter().filter_map(|file| match &file.origin {
        Origin::File(name) => Some((text(name), text(&file.text))),
        Origin::CommandLine => None,
    });
    named.collect()
}

/// Reads the word of `-l`: `unix:/path`, a port on the loopback interface, or an address with a port.
fn parse(word: &str) -> Result<Addr, Fault> {
    let invalid = |why: &str| {
        Fault::emerg(format!("{why} in \"-l {word}\""))
            .hint("for example: -l unix:/run/tailwater-control.sock")
    };
    if let Some(path) = word.strip_prefix("unix:") {
        return if path.starts_with('/') {
            Ok(Addr::Unix(Some(Path::new(path).into())))
        } else {
            Err(invalid("no absolute path"))
        };
    }
    if let Ok(port) = word.parse::<u16>() {
        return Ok(Addr::Inet(SocketAddr::from(([127, 0, 0, 1], port))));
    }
    word.parse().map(Addr::Inet).map_err(|_| invalid("invalid address"))
}

fn listen_inet(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Listens on a Unix socket whose file only the owner may use. A file that a server has left behind is replaced.
fn listen_unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    match bind(&socket, &address) {
        Err(rustix::io::Errno::ADDRINUSE) if is_left_behind(path) => {
            fs::remove_file(path)?;
            bind(&socket, &address)?;
        }
        bound => bound?,
    }
    // The permissions are set before it listens: no connection succeeds until then.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Returns true for a socket at which no process listens.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn addresses_are_ports_paths_and_addresses() {
        let inet = |text: &str| Addr::Inet(text.parse().unwrap());
        assert_eq!(parse("unix:/run/a.sock").unwrap(), Addr::Unix(Some(Path::new("/run/a.sock").into())));
        assert_eq!(parse("8080").unwrap(), inet("127.0.0.1:8080"));
        assert_eq!(parse("10.0.0.1:80").unwrap(), inet("10.0.0.1:80"));
        assert_eq!(parse("[::1]:80").unwrap(), inet("[::1]:80"));
        for word in ["", "unix:", "unix:a", "localhost:80", "/run/a.sock", "70000", "::1"] {
            assert!(parse(word).is_err(), "{word}");
        }
    }

    #[test]
    fn file_of_a_server_that_has_ended_is_replaced_and_no_other() {
        let dir = TempDir::new("control").unwrap();
        let path = dir.join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        let socket = listen_unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listen_unix(&path).is_err(), "a server listens there");
        drop(socket);
        fs::write(dir.join("file"), "text").unwrap();
        assert!(listen_unix(&dir.join("file")).is_err());
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"text");
    }

    #[test]
    fn address_without_a_token_is_refused() {
        let options = ControlOptions { address: b"127.0.0.1:0".to_vec(), token: None };
        let fault = ControlApi::open(&options, None).unwrap_err();
        assert!(fault.message.contains("needs --control-token"), "{fault}");
    }
}
