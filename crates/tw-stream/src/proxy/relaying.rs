//! The relay of a session, once an upstream server is connected: what is sent first, what ends it, and what is recorded.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tw_base::Errno;
use tw_connect::UpstreamGroup;
use tw_connect::group::now_ms;
use tw_connect::observed_relay::ObservedEnd;
use tw_connect::relay::{RelayEnding, RelayFailure, RelayLimits, RelaySide, Relayed, relay};
use tw_core::session::Session;
use tw_log::Level;
use tw_net::Transport;
use tw_upstream::PeerOutcome;

use super::connect::ConnectedPeer;
use super::filtered::FilteredRelay;
use super::metered::RelayMeter;
use super::session_drop::{log_drop, until_dropped};
use super::settings::ProxySettings;
use crate::local_future::LocalFuture;
use crate::protocol::Stream;
use crate::session::{SessionStatus, StreamSession};
use crate::session_filter::FilterQueue;

/// Reason why a relay is over.
enum RelayOutcome {
    Relayed(Relayed),
    /// The server gets no sessions any more.
    Dropped,
    /// The filter has ended the session, and has logged the reason.
    EndedByFilter(SessionStatus),
}

/// Relays the bytes of `s` until the session is over.
pub(super) async fn run(
    s: &mut StreamSession,
    group: &UpstreamGroup<Stream>,
    downstream: Rc<Transport>,
    connected: Box<ConnectedPeer<Transport>>,
    settings: &ProxySettings,
) -> SessionStatus {
    let ConnectedPeer { transport, lease, permit, header } = *connected;
    log_connection(s, &transport, lease.peer().text());
    // A server without a response has succeeded when it is connected, as in nginx.
    let _ = lease.passed(now_ms());
    let limits = limits(s, settings);
    let filter = match Box::pin(FilterQueue::begin(s)).await {
        Ok(filter) => filter,
        Err(status) => {
            let _ = lease.done(PeerOutcome::Success, now_ms());
            return status;
        }
    };
    let client = s.client.clone();
    let peer = lease.peer().id();
    let meter = RelayMeter::new(s.meter.clone(), lease);
    let ends = [(RelaySide::Client, &*downstream), (RelaySide::Server, &transport)];
    let ends = ends.map(|(side, transport)| meter.end(side, transport));
    let dropped = until_dropped(settings, &client.event_loop, group, peer);
    let outcome = match filter {
        Some(filter) => Box::pin(relay_filtered(s, filter, Bytes::from(header), ends, limits, dropped)).await,
        None => {
            let first = first_bytes(s, &header);
            drop(header);
            let [to_client, to_server] = ends;
            let mut relaying =
                pin!(relay(&client.event_loop, (to_client, first), (to_server, Bytes::new()), limits));
            let mut dropped = dropped;
            poll_fn(|cx| match relaying.as_mut().poll(cx) {
                Poll::Ready(relayed) => Poll::Ready(RelayOutcome::Relayed(relayed)),
                Poll::Pending => dropped.as_mut().poll(cx).map(|()| RelayOutcome::Dropped),
            })
            .await
        }
    };
    let first_byte = match &outcome {
        RelayOutcome::Relayed(relayed) => relayed.first_byte,
        RelayOutcome::Dropped | RelayOutcome::EndedByFilter(_) => None,
    };
    record(s, &meter, first_byte);
    let _ = meter.into_lease().done(PeerOutcome::Success, now_ms());
    drop(permit);
    match outcome {
        RelayOutcome::Relayed(relayed) => {
            log_end(s, &relayed);
            SessionStatus::OK
        }
        RelayOutcome::Dropped => {
            log_drop(s);
            SessionStatus::BAD_GATEWAY
        }
        // DIFF(nginx): the status tells that a filter has failed.
        RelayOutcome::EndedByFilter(status) => status,
    }
}

/// Relays the bytes of `s` by way of a filter. The server gets `header` in front of all.
async fn relay_filtered(
    s: &mut StreamSession,
    filter: FilterQueue,
    header: Bytes,
    [to_client, to_server]: [ObservedEnd<'_, RelayMeter>; 2],
    limits: RelayLimits,
    mut dropped: LocalFuture<'_, ()>,
) -> RelayOutcome {
    let client = s.client.clone();
    let early = first_bytes(s, &[]);
    let filtered = FilteredRelay::new(s, filter, early);
    let to_client = filtered.end(RelaySide::Client, to_client);
    let to_server = filtered.end(RelaySide::Server, to_server);
    let mut relaying =
        pin!(relay(&client.event_loop, (to_client, header), (to_server, Bytes::new()), limits));
    poll_fn(|cx| {
        if let Err(status) = filtered.poll(cx) {
            return Poll::Ready(RelayOutcome::EndedByFilter(status));
        }
        match relaying.as_mut().poll(cx) {
            Poll::Ready(relayed) => Poll::Ready(match filtered.failure() {
                Some(status) => RelayOutcome::EndedByFilter(status),
                None => RelayOutcome::Relayed(relayed),
            }),
            Poll::Pending => dropped.as_mut().poll(cx).map(|()| RelayOutcome::Dropped),
        }
    })
    .await
}

fn limits(s: &StreamSession, settings: &ProxySettings) -> RelayLimits {
    RelayLimits {
        idle: settings.timeout,
        // One direction may wait as long as the other one makes progress.
        client: Duration::MAX,
        server: Duration::MAX,
        size: settings.buffer_size,
        client_rate: settings.upload_rate(s),
        server_rate: settings.download_rate(s),
        ending: if settings.half_close { RelayEnding::Both } else { RelayEnding::Either },
    }
}

/// Bytes for the server in front of what the client will send: PROXY protocol header, and what was read before.
pub(super) fn first_bytes(s: &mut StreamSession, header: &[u8]) -> Bytes {
    let preread = std::mem::take(&mut s.preread);
    if header.is_empty() {
        return preread;
    }
    let mut first = BytesMut::with_capacity(header.len() + preread.len());
    first.extend_from_slice(header);
    first.extend_from_slice(&preread);
    first.freeze()
}

/// Takes over what the relay has counted.
fn record(s: &mut StreamSession, meter: &RelayMeter, first_byte: Option<Instant>) {
    s.received += meter.from_client.get();
    s.sent += meter.to_client.get();
    let Some(attempt) = s.upstream.as_mut().and_then(|upstream| upstream.current()) else { return };
    attempt.end();
    attempt.first_byte = first_byte.map(|at| attempt.span(at));
    (attempt.sent, attempt.received) = (meter.to_server.get(), meter.from_server.get());
}

fn log_connection(s: &StreamSession, transport: &Transport, peer: &str) {
    // The address costs a system call.
    if s.client.writes(Level::Info)
        && let Ok(local) = transport.local_addr()
    {
        s.client.write(Level::Info, format_args!("proxy {local} connected to {peer}"));
    }
}

/// Logs the end of a session.
fn log_end(s: &StreamSession, relayed: &Relayed) {
    match &relayed.result {
        Ok(side) => log_disconnect(s, *side),
        Err(RelayFailure::Timeout) => {
            let message = "connection timed out (110: Connection timed out) while proxying connection";
            s.log(Level::Info, format_args!("{message}"));
        }
        Err(RelayFailure::Read(side, error)) => {
            let errno = Errno(error.raw_os_error().unwrap_or_default());
            let (level, peer) = by_side(*side);
            s.log(level, format_args!("recv() failed ({errno}) while proxying and reading from {peer}"));
            log_disconnect(s, *side);
        }
        Err(RelayFailure::Write(side, error)) => {
            let errno = Errno(error.raw_os_error().unwrap_or_default());
            let (level, peer) = by_side(*side);
            s.log(level, format_args!("send() failed ({errno}) while proxying and sending to {peer}"));
        }
    }
}

/// Level of a failure of a side, and its name.
fn by_side(side: RelaySide) -> (Level, &'static str) {
    match side {
        RelaySide::Client => (Level::Info, "client"),
        RelaySide::Server => (Level::Error, "upstream"),
    }
}

fn log_disconnect(s: &StreamSession, side: RelaySide) {
    let (_, name) = by_side(side);
    let (received, sent) = s
        .upstream
        .as_ref()
        .and_then(|upstream| upstream.attempts.last())
        .map_or((0, 0), |attempt| (attempt.received, attempt.sent));
    s.client.write(
        Level::Info,
        format_args!(
            "{name} disconnected, bytes from/to client:{}/{}, bytes from/to upstream:{received}/{sent}",
            s.received, s.sent
        ),
    );
}
