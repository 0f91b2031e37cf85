//! Datagrams of a session in both directions: each that comes goes on at once, as a datagram of its own, and some number of them ends
//! the session (`proxy_requests`, `proxy_responses`).
//!
//! ```text
//! client ─► queue of the session ─► socket of the session ─► server
//! client ◄── listening socket ◄──────┘ recvmmsg into the buffer of the loop, sendmmsg out of it
//! ```
//! The counts and the ends are nginx's: a session whose number of responses is not known lasts until nothing has come for
//! `proxy_timeout`. The network reports a server that does not listen only after a datagram was sent, so the session is over then, and
//! the next one goes to another server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use tw_connect::UpstreamGroup;
use tw_connect::observed_relay::RelayObserver;
use tw_connect::read_rate::ReadRate;
use tw_connect::relay::RelaySide;
use tw_core::event_loop::HandoverVerdict;
use tw_log::Level;
use tw_net::Addr;
use tw_rt::{BATCH, DatagramSocket, Deadline, OutgoingMessage, ReceivedMessage};
use tw_upstream::PeerOutcome;

use super::connect::{self, ConnectedPeer};
use super::datagram_end::{SessionEnd, end_lease, log_end, record};
use super::datagram_filter::DatagramFilter;
use super::metered::RelayMeter;
use super::relaying::first_bytes;
use super::session_drop::until_dropped;
use super::settings::ProxySettings;
use crate::datagram_client::DatagramClient;
use crate::protocol::Stream;
use crate::session::{SessionStatus, StreamSession};
use crate::session_filter::FilterQueue;
use crate::session_handover::can_pass;
use crate::session_record::{ExchangeCounts, SessionRecord};
use crate::stream_loop::StreamLoop;

// DIFF(nginx): a session goes on after its loop has stopped.

tw_base::limits! {
    /// Limits of sessions over datagrams.
    pub(crate) const LIMITS;

    /// Batches of 16 datagrams that a session moves at once.
    const BATCHES_AT_ONCE_MAX: usize = 4, count, "the others have their turn first";
    /// Silence of a server after which a session over UDP ends whose loop has stopped, without `proxy_responses`.
    const LAST_SILENCE_MAX: Duration = Duration::from_secs(1), time, "the session ends";
}

/// Handover of a session to the next process.
enum HandoverState {
    /// None is possible, or it was refused.
    Impossible,
    /// Possible once nothing is on its way to the server.
    Possible(HandoverFacts),
    /// Offered: the next process decides, and nothing is read meanwhile.
    Offered(oneshot::Receiver<HandoverVerdict>),
}

/// Facts about a session for its record.
struct HandoverFacts {
    upstream: SocketAddr,
    /// Begin of the session.
    begun: Instant,
    /// Time until there was a socket.
    connected: Option<Duration>,
    /// Bytes of the client before those that are counted here.
    received: u64,
}

/// Result of a look at one direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Moved,
    /// Something has happened to the socket: both directions are to be tried again.
    Again,
    /// Nothing is there, or the other side takes nothing.
    Nothing,
}

/// Datagrams between a client and a server.
struct Exchange<'a> {
    event_loop: &'a Rc<StreamLoop>,
    client: &'a Rc<DatagramClient>,
    server: DatagramSocket,
    settings: &'a ProxySettings,
    meter: &'a RelayMeter,
    /// Datagrams for the server.
    outgoing: VecDeque<Bytes>,
    filter: Option<DatagramFilter>,
    /// End of the session by the filter.
    end: Option<SessionStatus>,
    upload: Option<ReadRate>,
    download: Option<ReadRate>,
    deadline: Deadline,
    /// True while a rate holds back one of the directions: that is no silence.
    is_paused: bool,
    is_stopping: bool,
    takes_requests: bool,
    count: ExchangeCounts,
    first_byte: Option<Instant>,
    /// Time until the first datagram of the server was there, in the process that has begun the session.
    first_byte_before: Option<Duration>,
    handover: HandoverState,
}

/// Passes the datagrams of `s` to a server of `group` until the session is over.
pub(super) async fn serve(
    s: &mut StreamSession,
    client: Rc<DatagramClient>,
    group: &UpstreamGroup<Stream>,
    settings: &ProxySettings,
) -> SessionStatus {
    let connected = match client.take_inherited() {
        None => {
            let connected = Box::pin(connect::try_peers::<DatagramSocket>(s, group, settings)).await;
            connected.map(|connected| (connected, None))
        }
        Some(inherited) => {
            let connected = Box::pin(connect::take_over(s, group, inherited)).await;
            connected.map(|(connected, record)| (connected, Some(record)))
        }
    };
    let (connected, inherited) = match connected {
        Ok(connected) => connected,
        Err(status) => return status,
    };
    let ConnectedPeer { transport: server, lease, permit, header } = *connected;
    // The address costs a system call.
    if s.client.writes(Level::Info)
        && let Ok(local) = server.local_addr()
    {
        let local = Addr::from(Some(local));
        let peer = lease.peer().text();
        s.client.write(Level::Info, format_args!("udp proxy {local} connected to {peer}"));
    }
    let filter = match Box::pin(FilterQueue::begin(s)).await {
        Ok(filter) => filter,
        Err(status) => {
            end_lease(s, lease, PeerOutcome::Success);
            return status;
        }
    };
    let event_loop = s.client.event_loop.clone();
    let peer = lease.peer().id();
    let meter = RelayMeter::new(s.meter.clone(), lease);
    let header_of_all = if filter.is_some() { &[][..] } else { &header[..] };
    let mut exchange = Exchange::new(s, &event_loop, &client, server, header_of_all, settings, &meter);
    exchange.filter = filter.map(|filter| DatagramFilter::new(filter, header.clone()));
    exchange.handover = handover_state(s, &meter);
    if let Some(record) = inherited {
        exchange.resume(&record);
    }
    let end = {
        let mut dropped = until_dropped(settings, &event_loop, group, peer);
        if let Err(status) = exchange.filter_first(s) {
            exchange.end = Some(status);
        }
        poll_fn(|cx| match exchange.poll(s, cx) {
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => dropped.as_mut().poll(cx).map(|()| SessionEnd::Dropped),
        })
        .await
    };
    let is_complete = exchange.is_complete();
    let Exchange { count, first_byte, first_byte_before, server, .. } = exchange;
    record(s, &count, first_byte, first_byte_before);
    let status = log_end(s, &end, &count, is_complete);
    let has_failed =
        status == SessionStatus::BAD_GATEWAY && !matches!(end, SessionEnd::Dropped | SessionEnd::Filter(_));
    match end {
        // The outcome of a session that goes on in another process is not known yet.
        SessionEnd::HandedOver => drop(meter.into_lease()),
        _ => end_lease(
            s,
            meter.into_lease(),
            if has_failed { PeerOutcome::Failed } else { PeerOutcome::Success },
        ),
    }
    drop((server, permit));
    status
}

/// Possibility of a handover of `s`, which `meter` counts.
fn handover_state(s: &mut StreamSession, meter: &RelayMeter) -> HandoverState {
    let begun = s.client.accepted;
    let received = s.received;
    let Some(upstream) = meter.peer_addr().inet().filter(|_| can_pass(s.server())) else {
        return HandoverState::Impossible;
    };
    let attempt = s.upstream.as_mut().and_then(|upstream| upstream.current());
    let connected = attempt.and_then(|attempt| attempt.connected);
    HandoverState::Possible(HandoverFacts { upstream, begun, connected, received })
}

impl<'a> Exchange<'a> {
    /// Begins with the first datagram of the client, which the session has.
    fn new(
        s: &mut StreamSession,
        event_loop: &'a Rc<StreamLoop>,
        client: &'a Rc<DatagramClient>,
        server: DatagramSocket,
        header: &[u8],
        settings: &'a ProxySettings,
        meter: &'a RelayMeter,
    ) -> Self {
        let first_len = s.preread.len();
        let rate = |rate: Option<u64>, read| rate.map(|rate| ReadRate::new(rate, read));
        let mut deadline = Deadline::new();
        deadline.set(settings.timeout);
        Self {
            event_loop,
            client,
            server,
            settings,
            meter,
            upload: rate(settings.upload_rate(s), first_len),
            download: rate(settings.download_rate(s), 0),
            // As in nginx, only the first datagram has the header of the PROXY protocol.
            outgoing: VecDeque::from([first_bytes(s, header)]),
            filter: None,
            end: None,
            deadline,
            is_paused: false,
            is_stopping: false,
            takes_requests: true,
            count: ExchangeCounts { requests: 1, ..ExchangeCounts::default() },
            first_byte: None,
            first_byte_before: None,
            handover: HandoverState::Impossible,
        }
    }

    /// Goes on with a session of another process, where the first datagram was sent.
    fn resume(&mut self, record: &SessionRecord) {
        self.outgoing.clear();
        self.count = record.counts;
        self.first_byte_before = record.first_byte;
    }

    fn poll(&mut self, s: &mut StreamSession, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.client.register(cx);
        if let Some(ending) = self.client.ending() {
            return Poll::Ready(SessionEnd::Client(ending));
        }
        if let Some(step) = self.poll_verdict(s, cx) {
            return step;
        }
        self.poll_filter(s, cx);
        let mut moved = false;
        for _ in 0..BATCHES_AT_ONCE_MAX {
            self.is_paused = false;
            let steps = self.upload(s, cx).and_then(|up| Ok((up, self.download(s, cx)?)));
            if let Some(status) = self.end {
                return Poll::Ready(SessionEnd::Filter(status));
            }
            let (up, down) = match steps {
                Ok(steps) => steps,
                Err(error) => return Poll::Ready(SessionEnd::Failed(error)),
            };
            if self.is_done() {
                return Poll::Ready(SessionEnd::Done);
            }
            if (up, down) == (Step::Nothing, Step::Nothing) {
                return self.poll_silence(s, cx, moved);
            }
            moved |= up == Step::Moved || down == Step::Moved;
        }
        if moved {
            self.heard(cx);
        }
        // The rest has its turn when the others have had theirs.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits for the end of the longest silence.
    fn poll_silence(&mut self, s: &mut StreamSession, cx: &mut Context<'_>, moved: bool) -> Poll<SessionEnd> {
        self.offer();
        if let Some(step) = self.poll_verdict(s, cx) {
            return step;
        }
        let was_running = !self.is_stopping;
        self.is_stopping = self.event_loop.connections.is_stopping() && !self.expects_handover();
        if moved || self.is_stopping && was_running {
            self.heard(cx);
        }
        if self.is_stopping && self.settings.responses.is_some() && self.is_complete() {
            return Poll::Ready(SessionEnd::Stopped);
        }
        if self.is_paused {
            self.deadline.set(self.silence_max());
            return Poll::Pending;
        }
        self.deadline.poll_elapsed(cx).map(|()| {
            if self.is_stopping && self.is_complete() { SessionEnd::Stopped } else { SessionEnd::Timeout }
        })
    }

    /// Returns true if the session may still be offered to the next process, which has not said yet that it takes any: it goes on until then.
    fn expects_handover(&self) -> bool {
        matches!(self.handover, HandoverState::Possible(_))
            && self.takes_requests
            && self.event_loop.expects_handover()
    }

    // DIFF(nginx): a session goes on in the next worker process, with its socket.
    /// Offers the session to the next process, unless something is on its way to the server. One that takes no further datagrams stays.
    fn offer(&mut self) {
        let HandoverState::Possible(facts) = &self.handover else { return };
        if !self.event_loop.can_offer_sessions() {
            return;
        }
        let is_busy = !self.outgoing.is_empty() || self.client.has_queued();
        if is_busy || !self.takes_requests {
            return;
        }
        let record = self.record(facts).and_then(|record| record.write());
        let offered = record.zip(self.server.duplicate().ok());
        let decision = offered.and_then(|(record, socket)| self.event_loop.offer_session(record, socket));
        self.handover = decision.map_or(HandoverState::Impossible, HandoverState::Offered);
    }

    /// The record of the session; `None` if its client has no address.
    fn record(&self, facts: &HandoverFacts) -> Option<SessionRecord> {
        let (listen, client, local) = self.client.addresses()?;
        let now = tw_rt::clock::now();
        let counts = ExchangeCounts { from_client: facts.received + self.count.from_client, ..self.count };
        let first_byte = self.first_byte.map(|at| at.saturating_duration_since(facts.begun));
        Some(SessionRecord {
            listen,
            client,
            local,
            upstream: facts.upstream,
            loop_count: self.event_loop.process().main.worker_count() as u64,
            is_moved: self.client.is_moved(),
            counts,
            elapsed: now.saturating_duration_since(facts.begun),
            connected: facts.connected,
            first_byte: self.first_byte_before.or(first_byte),
        })
    }

    /// Waits for the decision of the next process; `None` if there is none to wait for.
    fn poll_verdict(&mut self, s: &mut StreamSession, cx: &mut Context<'_>) -> Option<Poll<SessionEnd>> {
        let HandoverState::Offered(decision) = &mut self.handover else { return None };
        let Poll::Ready(verdict) = Pin::new(decision).poll(cx) else { return Some(Poll::Pending) };
        self.handover = HandoverState::Impossible;
        if verdict != Ok(HandoverVerdict::Accepted) {
            return None;
        }
        // Datagrams that have come meanwhile go to the server from the same port. Those that its socket does not take are lost.
        while self.client.has_queued() || !self.outgoing.is_empty() {
            match self.upload(s, cx) {
                Ok(Step::Moved) => {}
                Ok(Step::Again | Step::Nothing) | Err(_) => break,
            }
        }
        Some(Poll::Ready(SessionEnd::HandedOver))
    }

    /// Records that something has come.
    fn heard(&mut self, cx: &Context<'_>) {
        self.deadline.set(self.silence_max());
        self.client.touch(cx.waker());
    }

    fn silence_max(&self) -> Duration {
        match (self.is_stopping, self.settings.responses) {
            (true, None) => self.settings.timeout.min(LAST_SILENCE_MAX),
            _ => self.settings.timeout,
        }
    }

    /// Gives the first datagram to the filter.
    fn filter_first(&mut self, s: &StreamSession) -> Result<(), SessionStatus> {
        let Some(filter) = &mut self.filter else { return Ok(()) };
        let first = self.outgoing.pop_front().unwrap_or_default();
        filter.take_from_client(s, first, &mut self.outgoing)
    }

    /// Takes what the filter sends.
    fn poll_filter(&mut self, s: &mut StreamSession, cx: &mut Context<'_>) {
        let Some(filter) = &mut self.filter else { return };
        match filter.poll(s, cx, &mut self.outgoing) {
            Err(status) => self.end = Some(status),
            Ok(datagrams) if datagrams.is_empty() => {}
            Ok(datagrams) => {
                let messages: Vec<_> = datagrams.iter().map(|data| self.client.message(data, None)).collect();
                self.send_to_client(&messages);
            }
        }
    }

    /// Sends messages to the client.
    fn send_to_client(&mut self, messages: &[OutgoingMessage<'_>]) {
        let outcome = self.client.send(messages);
        self.count.to_client += outcome.bytes;
        self.meter.wrote(RelaySide::Client, outcome.bytes);
        let lost = messages.len().saturating_sub(outcome.done) as u64 + u64::from(outcome.error.is_some());
        self.event_loop.tally.datagrams_dropped.add(lost);
    }

    /// Returns true if the filter has not seen all datagrams of this side.
    fn is_filter_busy(&self, side: RelaySide) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.is_busy(side))
    }

    /// Sends what is there of the client to the server.
    fn upload(&mut self, s: &StreamSession, cx: &mut Context<'_>) -> io::Result<Step> {
        while self.outgoing.len() < BATCH
            && self.takes_requests
            && !self.is_filter_busy(RelaySide::Client)
            && has_room(&mut self.upload, cx, &mut self.is_paused)
        {
            let Some(datagram) = self.client.take() else { break };
            self.count.requests += 1;
            self.count.from_client += datagram.len() as u64;
            self.meter.read(RelaySide::Client, datagram.len());
            if let Some(rate) = &mut self.upload {
                rate.count(datagram.len());
            }
            match &mut self.filter {
                None => self.outgoing.push_back(datagram),
                Some(filter) => {
                    if let Err(status) = filter.take_from_client(s, datagram, &mut self.outgoing) {
                        self.end = Some(status);
                    }
                }
            }
            self.check_requests();
        }
        // The first datagram was there before.
        self.check_requests();
        if self.outgoing.is_empty() {
            return Ok(Step::Nothing);
        }
        let messages: Vec<_> = self.outgoing.iter().map(|bytes| to_server(bytes)).collect();
        let outcome = self.server.send(&messages);
        let all = outcome.done == messages.len();
        self.outgoing.drain(..outcome.done);
        self.count.to_server += outcome.bytes;
        self.meter.wrote(RelaySide::Server, outcome.bytes);
        if let Some(error) = outcome.error {
            if !is_of_datagram(&error) {
                return Err(error);
            }
            self.event_loop.tally.datagrams_dropped.add(1);
        }
        if !all && let Poll::Ready(ready) = self.server.poll_writable(cx) {
            ready?;
            cx.waker().wake_by_ref();
        }
        Ok(if outcome.done > 0 { Step::Moved } else { Step::Nothing })
    }

    /// Takes no further datagrams once the session has as many as belong to it.
    fn check_requests(&mut self) {
        let max = self.settings.requests;
        if max > 0 && self.count.requests >= max && std::mem::replace(&mut self.takes_requests, false) {
            self.client.close_queue();
        }
    }

    /// Sends what is there of the server to the client.
    fn download(&mut self, s: &StreamSession, cx: &mut Context<'_>) -> io::Result<Step> {
        if self.is_filter_busy(RelaySide::Server) {
            return Ok(Step::Nothing);
        }
        if !has_room(&mut self.download, cx, &mut self.is_paused) {
            return Ok(Step::Nothing);
        }
        match self.server.poll_readable(cx) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Ok(Step::Nothing),
        }
        let event_loop = self.event_loop;
        event_loop.datagrams.with(|batch| {
            match tw_rt::watch::operation("receiving datagrams", || self.server.try_receive(batch)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_of_datagram(&error) => {
                    return Ok(Step::Again);
                }
                Err(error) => return Err(error),
            }
            self.first_byte.get_or_insert_with(tw_rt::clock::now);
            let mut messages = Vec::with_capacity(BATCH);
            for message in batch.iter() {
                let Some((bytes, segment)) = self.admit(&message) else { continue };
                match self.filter.as_mut().filter(|filter| filter.wants_from_server()) {
                    None => messages.push(self.client.message(bytes, segment)),
                    Some(filter) => {
                        if let Err(status) = filter.take_from_server(s, bytes, segment) {
                            self.end = Some(status);
                        }
                    }
                }
            }
            self.send_to_client(&messages);
            Ok(Step::Moved)
        })
    }

    /// Counts a message of the server, and returns the part of it that the client may get.
    fn admit<'b>(&mut self, message: &ReceivedMessage<'b>) -> Option<(&'b [u8], Option<u16>)> {
        let bytes = message.bytes;
        let len = message.bytes.len();
        self.count.from_server += len as u64;
        self.meter.read(RelaySide::Server, len);
        if let Some(rate) = &mut self.download {
            rate.count(len);
        }
        let size = message.segment.map(usize::from);
        let datagrams = size.map_or(1, |size| len.div_ceil(size) as u64);
        // DIFF(nginx): with `proxy_requests` nginx passes on any number, as long as the client has not sent all of its datagrams.
        let admitted =
            self.expected().map_or(datagrams, |max| datagrams.min(max - self.count.responses.min(max)));
        self.count.responses += admitted;
        if admitted == datagrams {
            return Some((bytes, message.segment));
        }
        self.event_loop.tally.datagrams_dropped.add(datagrams - admitted);
        let admitted = usize::try_from(admitted).ok().filter(|admitted| *admitted > 0)?;
        let size = size?;
        Some((bytes.get(..admitted * size)?, message.segment.filter(|_| admitted > 1)))
    }

    /// Number of responses that are expected so far; `None` if any number may come.
    fn expected(&self) -> Option<u64> {
        Some(self.settings.responses?.saturating_mul(self.count.requests))
    }

    /// Returns true if no response is missing.
    fn is_complete(&self) -> bool {
        self.expected().is_none_or(|expected| self.count.responses >= expected)
    }

    fn is_done(&self) -> bool {
        let all_requests = self.settings.requests == 0 || !self.takes_requests;
        let is_filtered = !self.is_filter_busy(RelaySide::Client) && !self.is_filter_busy(RelaySide::Server);
        is_filtered
            && all_requests
            && self.settings.responses.is_some()
            && self.is_complete()
            && self.outgoing.is_empty()
    }
}

fn to_server(bytes: &[u8]) -> OutgoingMessage<'_> {
    OutgoingMessage { bytes, to: None, from: None, segment: None, ecn: 0 }
}

/// Returns true if something may be read now. If not, wakes the task when it may.
fn has_room(rate: &mut Option<ReadRate>, cx: &mut Context<'_>, is_paused: &mut bool) -> bool {
    let has_room = rate.as_mut().is_none_or(|rate| rate.poll_room(cx).is_ready());
    *is_paused |= !has_room;
    has_room
}

/// Returns true for an error of one datagram: it is too large for the way. Others are of the server.
fn is_of_datagram(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
}
