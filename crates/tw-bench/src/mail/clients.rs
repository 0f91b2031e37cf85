//! Clients that log in.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::Outcome;

/// Protocol of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Pop3,
    Imap,
    Smtp,
}

impl Protocol {
    pub(super) const ALL: [Self; 3] = [Self::Imap, Self::Pop3, Self::Smtp];

    /// Name in the configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pop3 => "pop3",
            Self::Imap => "imap",
            Self::Smtp => "smtp",
        }
    }

    /// Commands of a login, each with the beginning of its reply.
    fn login(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Pop3 => &[("USER user@example.com\r\n", "+OK"), ("PASS secret\r\n", "+OK")],
            Self::Imap => &[("a1 LOGIN user@example.com secret\r\n", "a1 OK")],
            Self::Smtp => &[
                ("EHLO client.example\r\n", "250"),
                ("AUTH PLAIN AHVzZXJAZXhhbXBsZS5jb20Ac2VjcmV0\r\n", "235"),
            ],
        }
    }
}

/// Connection of a session that is logged in; dropping it ends the session.
pub(super) type Session = Box<dyn Connection>;

/// A connection, whatever carries its bytes.
pub(super) trait Connection: Read + Write {}

impl<C: Read + Write> Connection for C {}

/// Logs in again and again on `clients` threads; returns the number of logins and the time that they took.
pub(super) fn log_in_for(
    time: Duration,
    clients: usize,
    addr: SocketAddr,
    protocol: Protocol,
) -> Outcome<(usize, Duration)> {
    let logins = AtomicUsize::new(0);
    let begun = Instant::now();
    let results: Vec<io::Result<()>> = thread::scope(|scope| {
        let client = || {
            while begun.elapsed() < time {
                log_in(&mut connect(addr)?, protocol)?;
                logins.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let panicked = |_| Err(io::Error::other("a client panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    results.into_iter().collect::<io::Result<Vec<()>>>()?;
    Ok((logins.into_inner(), begun.elapsed()))
}

/// Opens sessions, one after the other.
pub(super) fn open(
    addr: SocketAddr,
    protocol: Protocol,
    tls: Option<&Arc<ClientConfig>>,
    name: &str,
    count: usize,
) -> Outcome<Vec<Session>> {
    (0..count)
        .map(|_| {
            let mut stream = connect(addr)?;
            let Some(config) = tls else {
                log_in(&mut stream, protocol)?;
                return Ok(Box::new(stream) as Session);
            };
            let connection = ClientConnection::new(config.clone(), ServerName::try_from(name.to_owned())?)?;
            let mut stream = StreamOwned::new(connection, stream);
            log_in(&mut stream, protocol)?;
            Ok(Box::new(stream) as Session)
        })
        .collect()
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn log_in(stream: &mut (impl Read + Write), protocol: Protocol) -> io::Result<()> {
    let mut reply = Vec::with_capacity(512);
    read_reply(stream, &mut reply)?;
    for (command, expected) in protocol.login() {
        stream.write_all(command.as_bytes())?;
        read_reply(stream, &mut reply)?;
        if !reply.starts_with(expected.as_bytes()) {
            let text = String::from_utf8_lossy(&reply);
            return Err(io::Error::other(format!("{}: {command:?} has the reply {text:?}", protocol.name())));
        }
    }
    Ok(())
}

/// Reads a reply, of which SMTP may have several lines.
fn read_reply(stream: &mut impl Read, reply: &mut Vec<u8>) -> io::Result<()> {
    reply.clear();
    let mut buffer = [0; 512];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        reply.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let mut lines = reply.strip_suffix(b"\r\n").into_iter().flat_map(|text| text.rsplit(|b| *b == b'\n'));
        if lines.next().is_some_and(|last| last.get(3) != Some(&b'-')) {
            return Ok(());
        }
    }
}
