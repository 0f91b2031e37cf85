//! One health check: a connection or a socket for datagrams of its own, and what is sent and expected there. Every wait has an end.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::health::CheckFailure;
use tw_connect::reading::read_bytes;
use tw_connect::upstream_tls::TlsPools;
use tw_connect::{OpenParams, ReadOutcome, UpstreamConnection, UpstreamGroup};
use tw_core::event_loop::LoopCore;
use tw_net::{Addr, Transport, connect_datagrams};
use tw_rt::{DatagramSocket, Deadline, OutgoingMessage, ReceivedMessage};
use tw_upstream::HealthCheckParams;

use super::check::{ANSWER_MAX, AnswerState, CheckTarget, CheckTransport, Expectation, HealthCheck};
use crate::local_future::LocalFuture;
use crate::plan::GroupHealthCheck;
use crate::protocol::Stream;
use crate::proxy::proxy_header::proxy_header;
use crate::session::StreamSession;

/// Datagram of a check without `send`, as nginx sends it.
const DATAGRAM: &[u8] = b"nginx health check";
/// Bytes of an answer that are read at once, and room for one datagram.
const READ_SIZE: usize = 16 << 10;

impl GroupHealthCheck for HealthCheck {
    fn group(&self) -> &Arc<UpstreamGroup<Stream>> {
        &self.target.group
    }

    fn params(&self) -> HealthCheckParams {
        self.params
    }

    fn criteria_name(&self) -> &str {
        self.criteria.as_ref().map_or("", |criteria| &criteria.name)
    }

    fn probe<'a>(
        &'a self,
        s: &'a StreamSession,
        addr: &'a Addr,
    ) -> LocalFuture<'a, Result<(), CheckFailure>> {
        Box::pin(probe(s, self, addr))
    }
}

/// Checks the peer at `addr`. `s` is the session in whose place that is done: variables in the settings of the proxy have its values.
async fn probe(s: &StreamSession, check: &HealthCheck, addr: &Addr) -> Result<(), CheckFailure> {
    let to = match (addr, check.port) {
        (Addr::Inet(addr), Some(port)) => Addr::Inet((addr.ip(), port).into()),
        _ => addr.clone(),
    };
    match check.transport {
        CheckTransport::Tcp => check_connection(s, check, &to).await,
        CheckTransport::Udp => check_datagrams(s, check, &to).await,
    }
}

fn sending(failure: UpstreamFailure) -> CheckFailure {
    CheckFailure::Upstream(failure.at(AttemptStage::Sending))
}

fn reading(failure: UpstreamFailure) -> CheckFailure {
    CheckFailure::Upstream(failure.at(AttemptStage::ReadingBody))
}

async fn check_connection(s: &StreamSession, check: &HealthCheck, to: &Addr) -> Result<(), CheckFailure> {
    let CheckTarget { group, proxy } = &check.target;
    let options = proxy.options(s);
    let timeout = proxy.connect_timeout();
    let header = proxy_header(s, proxy.proxy_protocol());
    let tls = proxy.tls(s, group.peers.name().as_bytes());
    let pools = tls.as_ref().map(|_| TlsPools::of(&s.client.generation.disks));
    let secured = tls.as_ref().zip(pools.as_ref());
    let core: &LoopCore = &s.client.event_loop;
    let params = OpenParams { core, to, options: &options, timeout, header: &header, secured };
    let (transport, _permit) =
        UpstreamConnection::open_transport(params).await.map_err(CheckFailure::Upstream)?;
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
async fn check_datagrams(s: &StreamSession, check: &HealthCheck, to: &Addr) -> Result<(), CheckFailure> {
    let connecting =
        |error| CheckFailure::Upstream(UpstreamFailure::Connect(error).at(AttemptStage::Connecting));
    let proxy = &check.target.proxy;
    let socket = connect_datagrams(to, &proxy.options(s)).map_err(connecting)?;
    let criteria = check.criteria.as_deref();
    let bytes = criteria.and_then(|criteria| criteria.send.as_deref()).unwrap_or(DATAGRAM);
    let bytes = [&*proxy_header(s, proxy.proxy_protocol()), bytes].concat();
    let mut deadline = Deadline::new();
    deadline.set(check.timeout);
    let outcome =
        socket.send(&[OutgoingMessage { bytes: &bytes, to: None, from: None, segment: None, ecn: 0 }]);
    if outcome.datagrams == 0 {
        let error = outcome.error.unwrap_or_else(|| io::ErrorKind::WouldBlock.into());
        return Err(sending(UpstreamFailure::Send(error)));
    }
    let received = deadline.guard(receive(&s.client.event_loop, &socket)).await;
    match (received, criteria.and_then(|criteria| criteria.expect.as_ref())) {
        (Ok(Err(error)), _) => Err(reading(UpstreamFailure::Receive(error))),
        // Without an expected answer, silence until the timeout is a success.
        (Err(_), None) | (Ok(Ok(_)), None) => Ok(()),
        (Err(_), Some(_)) => Err(reading(UpstreamFailure::ReceiveTimeout)),
        (Ok(Ok(answer)), Some(expected)) => match expected.state(&answer) {
            AnswerState::Matches => Ok(()),
            AnswerState::Open | AnswerState::Differs => Err(unexpected()),
        },
    }
}

/// Receives one datagram.
async fn receive(core: &LoopCore, socket: &DatagramSocket) -> io::Result<Vec<u8>> {
    loop {
        poll_fn(|cx| socket.poll_readable(cx)).await?;
        let received: io::Result<_> = core.datagrams.with(|batch| {
            tw_rt::watch::operation("receiving datagrams", || socket.try_receive(batch))?;
            let first = |message: ReceivedMessage<'_>| {
                let len = message.segment.map_or(message.bytes.len(), usize::from).min(message.bytes.len());
                message.bytes.get(..len).unwrap_or_default().to_vec()
            };
            Ok(batch.iter().next().map(first))
        });
        match received {
            Ok(Some(datagram)) => return Ok(datagram),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
