//! One health check: a connection or a socket for datagrams of its own, and what is sent and expected there. Every wait has an end.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, recv, socket_with};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::health::CheckFailure;
use tw_connect::reading::read_bytes;
use tw_connect::{OpenParams, ReadOutcome, UpstreamConnection};
use tw_core::event_loop::LoopCore;
use tw_net::{Addr, Transport};
use tw_rt::Deadline;

use super::{ANSWER_MAX, AnswerState, CheckTransport, Expectation, HealthCheck};

/// Datagram of a check without `send`, as nginx sends it.
const DATAGRAM: &[u8] = b"nginx health check";
/// Bytes of an answer that are read at once, and room for one datagram.
const READ_SIZE: usize = 16 << 10;

/// Checks the peer at `addr`.
pub(super) async fn probe(core: &LoopCore, check: &HealthCheck, addr: &Addr) -> Result<(), CheckFailure> {
    let to = match (addr, check.port) {
        (Addr::Inet(addr), Some(port)) => Addr::Inet((addr.ip(), port).into()),
        _ => addr.clone(),
    };
    match check.transport {
        CheckTransport::Tcp => check_connection(core, check, &to).await,
        CheckTransport::Udp => check_datagrams(check, &to).await,
    }
}

fn sending(failure: UpstreamFailure) -> CheckFailure {
    CheckFailure::Upstream(failure.at(AttemptStage::Sending))
}

fn reading(failure: UpstreamFailure) -> CheckFailure {
    CheckFailure::Upstream(failure.at(AttemptStage::ReadingBody))
}

async fn check_connection(core: &LoopCore, check: &HealthCheck, to: &Addr) -> Result<(), CheckFailure> {
    let proxy = &check.target.proxy;
    let (options, timeout) = (proxy.options_apart(), proxy.connect_timeout());
    let params = OpenParams { core, to, options: &options, timeout, header: &[], secured: None };
    let opened = UpstreamConnection::open_transport(params).await;
    let (transport, _permit) = opened.map_err(CheckFailure::Upstream)?;
    let Some(criteria) = &check.criteria else { return Ok(()) };
    // DIFF(nginx): sending and reading have this time together, so that no server can make a check last.
    let mut deadline = Deadline::new();
    deadline.set(check.timeout);
    if let Some(bytes) = &criteria.send {
        let sent = deadline.guard(send(&transport, bytes.clone())).await;
        sent.unwrap_or(Err(UpstreamFailure::SendTimeout)).map_err(sending)?;
    }
    let Some(expected) = &criteria.expect else { return Ok(()) };
    let answered = deadline.guard(expect(core, &transport, expected)).await;
    answered.unwrap_or(Err(reading(UpstreamFailure::ReceiveTimeout)))
}

async fn send(transport: &Transport, mut bytes: Bytes) -> Result<(), UpstreamFailure> {
    while !bytes.is_empty() {
        match transport.try_write(&bytes) {
            Ok(count) => drop(bytes.split_to(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| transport.poll_writable(cx)).await.map_err(UpstreamFailure::Send)?;
            }
            Err(error) => return Err(UpstreamFailure::Send(error)),
        }
    }
    Ok(())
}

/// Reads until the answer is as expected, or cannot be any more.
async fn expect(core: &LoopCore, transport: &Transport, expected: &Expectation) -> Result<(), CheckFailure> {
    let mut answer = Vec::new();
    loop {
        let (outcome, bytes) = read_bytes(&core.buffers, transport, READ_SIZE)
            .map_err(|error| reading(UpstreamFailure::Receive(error)))?;
        match outcome {
            ReadOutcome::Nothing => poll_fn(|cx| transport.poll_readable(cx))
                .await
                .map_err(|error| reading(UpstreamFailure::Receive(error)))?,
            ReadOutcome::Closed => return Err(reading(UpstreamFailure::Closed)),
            ReadOutcome::Some => {
                answer.extend_from_slice(&bytes);
                match expected.state(&answer) {
                    AnswerState::Matches => return Ok(()),
                    AnswerState::Open if answer.len() <= ANSWER_MAX => {}
                    AnswerState::Open | AnswerState::Differs => return Err(unexpected()),
                }
            }
        }
    }
}

fn unexpected() -> CheckFailure {
    CheckFailure::Answer("unexpected answer".to_owned())
}

/// Sends a datagram. Without `expect`, the check has failed if the kernel reports within the timeout that nobody takes it.
async fn check_datagrams(check: &HealthCheck, to: &Addr) -> Result<(), CheckFailure> {
    let connecting =
        |error| CheckFailure::Upstream(UpstreamFailure::Connect(error).at(AttemptStage::Connecting));
    let Addr::Inet(to) = to else {
        return Err(CheckFailure::Request("a Unix socket takes no datagrams of UDP".to_owned()));
    };
    let socket = connect_datagrams(*to, check.target.proxy.options_apart().bind).map_err(connecting)?;
    let criteria = check.criteria.as_deref();
    let bytes = criteria.and_then(|criteria| criteria.send.as_deref()).unwrap_or(DATAGRAM);
    let mut deadline = Deadline::new();
    deadline.set(check.timeout);
    let sent = deadline.guard(socket.send(bytes)).await;
    sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|error| sending(UpstreamFailure::Send(error)))?;
    let received = deadline.guard(receive(&socket)).await;
    match (received, criteria.and_then(|criteria| criteria.expect.as_ref())) {
        (Ok(Err(error)), _) => Err(reading(UpstreamFailure::Receive(error))),
        // No error in all the time.
        (Err(_), None) | (Ok(Ok(_)), None) => Ok(()),
        (Err(_), Some(_)) => Err(reading(UpstreamFailure::ReceiveTimeout)),
        (Ok(Ok(answer)), Some(expected)) => match expected.state(&answer) {
            AnswerState::Matches => Ok(()),
            AnswerState::Open | AnswerState::Differs => Err(unexpected()),
        },
    }
}

/// Connects a socket for datagrams. Never waits.
fn connect_datagrams(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<UdpSocket> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    // Only if an address is configured: a process that serves may have given up the right.
    if let Some(from) = from {
        bind(&socket, &from)?;
    }
    connect(&socket, &to)?;
    UdpSocket::from_std(socket.into())
}

/// Receives one datagram.
async fn receive(socket: &UdpSocket) -> io::Result<Vec<u8>> {
    loop {
        // The report that nobody is there is an error, and no byte to read.
        let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
        let interest = if ready.is_error() { Interest::ERROR } else { Interest::READABLE };
        let mut datagram = vec![0; READ_SIZE];
        let received =
            socket.try_io(interest, || Ok(recv(socket, datagram.as_mut_slice(), RecvFlags::DONTWAIT)?));
        match received {
            Ok((count, _)) => {
                datagram.truncate(count);
                return Ok(datagram);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
