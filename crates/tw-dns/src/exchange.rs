//! One query to one server: over UDP, and over TCP when the response is truncated or someone sends forged ones.
//!
//! ```text
//! UDP, letters mixed ─► answer ─────────────────────────────────────────────► done
//!    │                     └─ nothing found, and nobody knows what the server does with letters
//!    │                              └─► UDP, lower case ─► answer ──────────► done
//!    └─ too long, wrong case, or too much that is no answer ─► TCP ─► answer ► done
//! ```
//!
//! Every question has a socket of its own, and so a random port. Dropping the future closes it.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno as Os;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, connect, recv, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::Interest;
use tokio::net::{TcpStream, UdpSocket};
use tw_base::Errno;

use crate::answer::{Question, Reply};
use crate::error::ResolveError;
use crate::servers::{CaseHandling, Server};
use crate::stats::Stats;
use crate::wire::{Case, Query, RANDOM_SIZE, Transport, Verdict};

tw_base::limits! {
    /// Limits of what a server can send.
    pub(crate) const LIMITS;

    /// Datagrams for a question of ours that are no answer to it.
    ///
    /// Limit of datagrams that do not match the query. With more, someone is guessing, and the query goes over TCP, which is
    /// hard to forge.
    const UNMATCHED_MAX: usize = 8, count, "it is asked over TCP";
    /// A datagram of a name server.
    ///
    /// Room for a datagram. We do not offer more than 512 bytes; servers may send more.
    const DATAGRAM_SIZE: usize = 2048, bytes, "it is asked over TCP, where an answer has at most 65535 bytes";
}

/// Result of an exchange: an answer, or the reason why the server cannot be reached.
pub(crate) type ExchangeResult = Result<Reply, ResolveError>;

/// Queries `server`. Ends only with an answer or an error of the system; the timeout is the caller's.
pub(crate) async fn query(
    server: &Server,
    question: &Question,
    again: bool,
    stats: &Stats,
) -> ExchangeResult {
    let case = server.case(again);
    let (query, answer) = over_udp(server.addr, question, case, stats).await.map_err(system)?;
    let answer = match answer {
        Datagram::Reply(reply @ Reply::Missing { .. })
            if query.is_mixed() && server.case_handling() == CaseHandling::Unknown =>
        {
            // The name has no records, or only in lower case: some servers compare letters exactly.
            stats.count(&reply);
            let (_, answer) = over_udp(server.addr, question, Case::Lower, stats).await.map_err(system)?;
            if let Datagram::Reply(Reply::Found { .. } | Reply::Alias { .. }) = answer {
                server.set_case_handling(CaseHandling::Confused);
            }
            answer
        }
        Datagram::Reply(reply @ (Reply::Found { .. } | Reply::Alias { .. })) => {
            if query.is_mixed() {
                server.set_case_handling(CaseHandling::Kept);
            }
            Datagram::Reply(reply)
        }
        answer => answer,
    };
    let reply = match answer {
        Datagram::Reply(reply) => reply,
        Datagram::Useless(why) => match over_tcp(server.addr, question).await {
            Ok(reply) => reply,
            Err(error) => {
                if why == Useless::WrongCase {
                    // TCP is not available, so the server's own case has to do.
                    server.set_case_handling(CaseHandling::Confused);
                }
                return Err(system(error));
            }
        },
    };
    stats.count(&reply);
    Ok(reply)
}

/// Queries `server` over TCP only (`options use-vc`).
pub(crate) async fn query_over_tcp(server: &Server, question: &Question, stats: &Stats) -> ExchangeResult {
    let reply = over_tcp(server.addr, question).await.map_err(system)?;
    stats.count(&reply);
    Ok(reply)
}

/// Result of waiting for a datagram.
enum Datagram {
    Reply(Reply),
    Useless(Useless),
}

/// Reason for repeating a query over TCP.
#[derive(PartialEq, Eq)]
enum Useless {
    Truncated,
    WrongCase,
    Forged,
}

async fn over_udp(
    server: SocketAddr,
    question: &Question,
    case: Case,
    stats: &Stats,
) -> io::Result<(Query, Datagram)> {
    let query = Query::new(question, case, &random()?);
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    // For a connected socket the kernel chooses a random port, drops datagrams of other senders, and reports a port
    // without a listener. `bind` is not used, because the sandbox of a server may not allow it.
    connect(&socket, &server)?;
    let socket = UdpSocket::from_std(socket.into())?;
    socket.send(query.bytes()).await?;
    let mut unmatched = 0;
    let useless = loop {
        // If no server listens at the address, the socket has an error and no data.
        let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
        let interest = if ready.is_error() { Interest::ERROR } else { Interest::READABLE };
        // The buffer is on the stack only while a datagram is read: a query that waits holds none.
        let mut datagram = [0; DATAGRAM_SIZE];
        let received =
            socket.try_io(interest, || Ok(recv(&socket, datagram.as_mut_slice(), RecvFlags::DONTWAIT)?));
        let size = match received {
            Ok((size, _)) => size,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let message = datagram.get(..size).unwrap_or_default();
        match query.match_response(message, Transport::Udp) {
            // A datagram that fills the buffer was cut off.
            Verdict::Reply(_) if size == DATAGRAM_SIZE => break Useless::Truncated,
            Verdict::Reply(reply) => return Ok((query, Datagram::Reply(reply))),
            Verdict::Truncated => break Useless::Truncated,
            Verdict::WrongCase => {
                stats.unmatched.add(1);
                break Useless::WrongCase;
            }
            Verdict::Unmatched => {
                stats.unmatched.add(1);
                unmatched += 1;
                if unmatched > UNMATCHED_MAX {
                    break Useless::Forged;
                }
            }
        }
    };
    if useless == Useless::Truncated {
        stats.truncated.add(1);
    }
    Ok((query, Datagram::Useless(useless)))
}

/// Queries over TCP, with the length before each message (RFC 7766).
async fn over_tcp(server: SocketAddr, question: &Question) -> io::Result<Reply> {
    let query = Query::new(question, Case::Lower, &random()?);
    let stream = TcpStream::connect(server).await?;
    // A name has at most 255 bytes, and so this message less than 300.
    let length = (query.bytes().len() as u16).to_be_bytes();
    let message = [&length, query.bytes()].concat();
    let mut rest = &*message;
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let mut length = [0; 2];
    fill(&stream, &mut length).await?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    fill(&stream, &mut answer).await?;
    Ok(match query.match_response(&answer, Transport::Tcp) {
        Verdict::Reply(reply) => reply,
        // A connection of its own carries no other response.
        _ => Reply::Failed(ResolveError::Format),
    })
}

/// Reads until `buffer` is full.
async fn fill(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut rest = buffer;
    while !rest.is_empty() {
        stream.readable().await?;
        match stream.try_read(rest) {
            Ok(0) => return Err(Os::CONNRESET.into()),
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Random bytes that cannot be predicted; never waits once the system has started.
fn random() -> io::Result<[u8; RANDOM_SIZE]> {
    let mut bytes = [0; RANDOM_SIZE];
    // So few bytes are returned completely or not at all.
    getrandom(&mut bytes, GetRandomFlags::NONBLOCK)?;
    Ok(bytes)
}

fn system(error: io::Error) -> ResolveError {
    ResolveError::System(Errno::from(&error))
}
