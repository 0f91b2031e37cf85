//! A tunnel: after an upgrade, or a CONNECT, both sides send bytes that are relayed unchanged.
//!
//! Timeouts are `read_timeout` without any traffic, and `send_timeout` of the proxy and of the client for a side that takes
//! nothing.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use tw_connect::group::now_ms;
use tw_connect::relay::{RelayEnd, RelayEnding, RelayLimits, relay};
use tw_connect::settings::Timeouts;
use tw_connect::upstream_connection::UpstreamConnection;
use tw_log::Level;
use tw_upstream::{Lease, PeerOutcome};

use super::exchange::Exchange;
use tw_request::body::{Body, Upgraded};
use tw_request::plan::{LocalFuture, Outcome};
use tw_request::request::{After, Request};

/// Opens a tunnel between the client and the server, which has agreed to it. Each read takes `size` bytes at most.
pub(super) fn open<C>(r: &mut Request, exchange: Exchange<C>, timeouts: &Timeouts, size: usize) -> Outcome {
    let Exchange { connection, lease, input, sending, .. } = exchange;
    sending.give_back(r);
    lease.status(r.upstream.answer.status);
    Outcome::Respond(Body::Upgraded(Box::new(Tunnel {
        connection,
        lease,
        early: input,
        timeouts: *timeouts,
        size,
    })))
}

struct Tunnel {
    connection: Rc<UpstreamConnection>,
    lease: Lease,
    /// Bytes that the server has sent behind its head.
    early: Bytes,
    timeouts: Timeouts,
    /// Bytes that are read at once.
    size: usize,
}

impl Upgraded for Tunnel {
    fn run<'a>(
        self: Box<Self>,
        r: &'a mut Request,
        client: &'a dyn RelayEnd,
        early: Bytes,
    ) -> LocalFuture<'a, ()> {
        let Self { connection, lease, early: answer, timeouts, size } = *self;
        let limits = RelayLimits {
            idle: timeouts.read,
            client: r.plan().core.send.timeout,
            server: timeouts.send,
            size,
            client_rate: None,
            server_rate: None,
            ending: RelayEnding::Server,
        };
        // Values that only the beginning needs are boxed and not held across the relay, so that the future stays small.
        let begin = Box::new((early, answer, limits));
        Box::pin(async move {
            // A codec of streams never reports a tunnel, so the connection has a transport.
            let Some(upstream) = connection.transport() else { return };
            connection.drop_timers();
            let event_loop = r.client().event_loop.clone();
            let answer_len = begin.1.len() as u64;
            let relayed = {
                let begin = begin;
                let (early, answer, limits) = *begin;
                relay(&event_loop, (client, early), (upstream, answer), limits)
            }
            .await;
            r.count_sent(usize::try_from(relayed.to_client).unwrap_or(usize::MAX));
            // The connection has counted both heads, and the bytes that came directly behind that of the response.
            let (sent, received) = connection.traffic();
            let sent = sent + relayed.to_server;
            let received = received + relayed.to_client.saturating_sub(answer_len);
            if let Some(attempt) = r.upstream.current() {
                attempt.end();
                (attempt.sent, attempt.received) = (sent, received);
                attempt.length = relayed.to_client;
            }
            lease.sent(sent);
            lease.received(received);
            match relayed.result {
                Ok(_) => {
                    r.costs.sent.complete = true;
                    // Bytes that the client still sends must not cause a reset, which would discard data that it has
                    // not read yet.
                    r.state.after = After::Close;
                }
                Err(failure) => match failure.error().filter(|error| error.kind() != io::ErrorKind::TimedOut)
                {
                    None => {
                        r.log(Level::Info, format_args!("upstream timed out (110: Connection timed out) while proxying upgraded connection"));
                    }
                    Some(error) => {
                        let errno = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                        r.log(
                            Level::Info,
                            format_args!("connection failed ({errno}) while proxying upgraded connection"),
                        );
                    }
                },
            }
            let _ = lease.done(PeerOutcome::Success, now_ms());
        })
    }
}
