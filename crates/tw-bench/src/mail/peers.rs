//! Auth servers and mail servers that accept everything: one thread for each connection.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::clients::Protocol;
use crate::Outcome;

/// Bytes of the stack of a thread.
const STACK_SIZE: usize = 64 << 10;

/// The auth servers of all protocols; each leads to a mail server of its own.
pub(super) struct Peers(Vec<(Protocol, SocketAddr)>);

impl Peers {
    /// Starts them.
    pub(super) fn start() -> Outcome<Self> {
        let mut auth = Vec::new();
        for protocol in Protocol::ALL {
            let mail = serve(move |stream| mail(protocol, stream))?;
            auth.push((protocol, serve(move |stream| authenticate(mail, stream))?));
        }
        Ok(Self(auth))
    }

    /// Address of the auth server of a protocol.
    pub(super) fn auth(&self, protocol: Protocol) -> SocketAddr {
        let entry = self.0.iter().find(|(known_protocol, _)| *known_protocol == protocol);
        entry.map_or_else(|| SocketAddr::from(([127, 0, 0, 1], 1)), |(_, addr)| *addr)
    }
}

/// Serves each connection on a thread of its own, until the process ends.
fn serve(each: impl Fn(TcpStream) -> io::Result<()> + Copy + Send + 'static) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection that breaks is the business of its client.
            let _ = thread::Builder::new().stack_size(STACK_SIZE).spawn(move || each(stream));
        }
    });
    Ok(addr)
}

/// Answers requests with the address of a mail server.
fn authenticate(mail: SocketAddr, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 10, stream.try_clone()?);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let is_kept = line.trim_end().ends_with("HTTP/1.1");
        while line.trim_end() != "" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
        }
        let version = if is_kept { "1.1" } else { "1.0" };
        let (ip, port) = (mail.ip(), mail.port());
        let answer = format!(
            "HTTP/{version} 200 OK\r\nAuth-Status: OK\r\nAuth-Server: {ip}\r\nAuth-Port: {port}\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(answer.as_bytes())?;
        if !is_kept {
            return Ok(());
        }
    }
}

/// Accepts a login, and answers all commands until the client leaves.
fn mail(protocol: Protocol, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 10, stream.try_clone()?);
    stream.write_all(match protocol {
        Protocol::Pop3 => b"+OK ready\r\n",
        Protocol::Imap => b"* OK ready\r\n",
        Protocol::Smtp => b"220 ready\r\n",
    })?;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer: &[u8] = match protocol {
            Protocol::Pop3 => b"+OK\r\n",
            Protocol::Imap if line.ends_with("}\r\n") => b"+ OK\r\n",
            Protocol::Imap => b"a1 OK done\r\n",
            Protocol::Smtp if line.starts_with("XCLIENT") => b"220 again\r\n",
            Protocol::Smtp => b"250 OK\r\n",
        };
        stream.write_all(answer)?;
    }
}
