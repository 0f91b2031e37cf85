//! Tunnel after an upgrade or a CONNECT: bytes of each side go to the other side unchanged.
//!
//! A tunnel ends when the server has closed its side and the client has received all of its bytes, as in nginx; when
//! nothing has happened for `read_timeout`; and when a side has taken no bytes for as long as that side may
//! (`send_timeout` of the proxy, and of the client).
//!
//! A tunnel on which nothing happens holds no buffer: bytes are read into one of the loop's, and what the other side does not
//! take at once is kept until it does.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tw_log::Level;
use tw_rt::Deadline;
use tw_upstream::{Lease, PeerOutcome};

use super::exchange::Exchange;
use super::group::now_ms;
use super::reading::read_bytes;
use super::settings::upstream::Timeouts;
use super::upstream_connection::{ReadOutcome, UpstreamConnection};
use crate::event_loop::Loop;
use crate::http::body::{Body, Upgraded};
use crate::http::plan::{LocalFuture, Outcome};
use crate::http::request::{After, Request};
use crate::http::tunnel_end::TunnelEnd;

/// Opens a tunnel between the client and the server, which has agreed to it. Each read takes `size` bytes at most.
pub(super) fn open<C>(r: &mut Request, exchange: Exchange<C>, timeouts: &Timeouts, size: usize) -> Outcome {
    let Exchange { connection, lease, input, sending, .. } = exchange;
    sending.give_back(r);
    let terms = TunnelLimits { idle: timeouts.read, server: timeouts.send, size };
    lease.status(r.facts.upstream.answer.status);
    if let Some((_, path)) = &mut r.facts.upstream.url {
        // Otherwise the head that was sent would stay with it.
        *path = Bytes::copy_from_slice(path);
    }
    Outcome::Respond(Body::Upgraded(Box::new(Tunnel { connection, lease, early: input, terms })))
}

/// Limits for both sides.
#[derive(Clone, Copy)]
struct TunnelLimits {
    /// Longest time without any traffic.
    idle: Duration,
    /// Longest time for which the server may take nothing.
    server: Duration,
    /// Bytes that are read at once, and so kept at most for a side that does not take them.
    size: usize,
}

struct Tunnel {
    connection: Rc<UpstreamConnection>,
    lease: Lease,
    /// Bytes that the server has sent behind its head.
    early: Bytes,
    terms: TunnelLimits,
}

/// One way through a tunnel.
struct Direction<'a> {
    from: TunnelEnd<'a>,
    to: TunnelEnd<'a>,
    /// Bytes read and not written yet.
    kept: Bytes,
    stage: DirectionStage,
    /// Bytes that went this way.
    passed: u64,
    /// Bytes that are read at once.
    size: usize,
    /// Longest time for which the receiver may take nothing.
    patience: Duration,
    /// End of that time.
    stalled: Deadline,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectionStage {
    Open,
    /// The sender has closed its side; something may still be to be written.
    Ended,
    /// The receiver has been told.
    Closed,
}

/// Result of one pass over a direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Something,
    Nothing,
}

impl<'a> Direction<'a> {
    fn new(
        from: TunnelEnd<'a>,
        to: TunnelEnd<'a>,
        early: Bytes,
        terms: TunnelLimits,
        patience: Duration,
    ) -> Self {
        let (stage, stalled) = (DirectionStage::Open, Deadline::new());
        Self { from, to, kept: early, stage, passed: 0, size: terms.size, patience, stalled }
    }

    /// Moves what can be moved now, and sees to it that the receiver does not take for ever.
    fn drive(&mut self, home: &Loop, cx: &mut Context<'_>) -> io::Result<Progress> {
        let moved = self.advance(home, cx)?;
        if self.kept.is_empty() {
            self.stalled.clear();
            return Ok(moved);
        }
        if moved == Progress::Something || self.stalled.at().is_none() {
            self.stalled.set(self.patience);
        }
        match self.stalled.poll_elapsed(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(moved),
        }
    }

    /// Moves what can be moved now.
    fn advance(&mut self, home: &Loop, cx: &mut Context<'_>) -> io::Result<Progress> {
        let mut moved = Progress::Nothing;
        loop {
            while !self.kept.is_empty() {
                match self.to.try_write(&self.kept) {
                    Ok(n) => {
                        self.kept.advance(n);
                        self.passed += n as u64;
                        moved = Progress::Something;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        match self.to.poll_writable(cx) {
                            Poll::Ready(ready) => ready?,
                            Poll::Pending => return Ok(moved),
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            match self.stage {
                DirectionStage::Open => {}
                DirectionStage::Ended => {
                    // One that is gone already need not be told.
                    let _ = self.to.shutdown_write();
                    self.stage = DirectionStage::Closed;
                    return Ok(Progress::Something);
                }
                DirectionStage::Closed => return Ok(moved),
            }
            if moved == Progress::Something && !home.budget.may_copy(0) {
                cx.waker().wake_by_ref();
                return Ok(moved);
            }
            let read = match read(home, self.from, self.size) {
                // Whether what passes through is whole, those who speak know.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    (ReadOutcome::Closed, Bytes::new())
                }
                read => read?,
            };
            match read {
                (ReadOutcome::Some, bytes) => {
                    let _ = home.budget.may_copy(bytes.len());
                    self.kept = bytes;
                    moved = Progress::Something;
                }
                (ReadOutcome::Closed, _) => self.stage = DirectionStage::Ended,
                (ReadOutcome::Nothing, _) => match self.from.poll_readable(cx) {
                    Poll::Ready(ready) => ready?,
                    Poll::Pending => return Ok(moved),
                },
            }
        }
    }
}

/// Reads the available bytes of one side.
fn read(home: &Loop, from: TunnelEnd<'_>, size: usize) -> io::Result<(ReadOutcome, Bytes)> {
    match from {
        TunnelEnd::Transport(transport) => read_bytes(home, transport, size),
        TunnelEnd::Stream(stream) => match stream.read_now()? {
            Some(bytes) if bytes.is_empty() => Ok((ReadOutcome::Closed, bytes)),
            Some(bytes) => Ok((ReadOutcome::Some, bytes)),
            None => Ok((ReadOutcome::Nothing, Bytes::new())),
        },
    }
}

impl Upgraded for Tunnel {
    fn run<'a>(
        self: Box<Self>,
        r: &'a mut Request,
        client: TunnelEnd<'a>,
        early: Bytes,
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let Self { connection, lease, early: answer, terms } = *self;
            // No codec of streams says that it is one.
            let Some(upstream) = connection.transport().map(TunnelEnd::Transport) else { return };
            let home = r.client().home.clone();
            let deadline = RefCell::new(Deadline::new());
            let client_patience = r.plan().core.send.timeout;
            let mut up = Direction::new(client, upstream, early, terms, terms.server);
            let mut down = Direction::new(upstream, client, answer, terms, client_patience);
            let early_len = down.kept.len() as u64;
            deadline.borrow_mut().set(terms.idle);
            let ended = poll_fn(|cx| {
                let moved = [up.drive(&home, cx), down.drive(&home, cx)];
                for moved in moved {
                    match moved {
                        Ok(Progress::Something) => deadline.borrow_mut().set(terms.idle),
                        Ok(Progress::Nothing) => {}
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                // DIFF(nginx): a client that has closed its side may still want what the server has to say.
                if down.stage == DirectionStage::Closed {
                    return Poll::Ready(Ok(()));
                }
                match deadline.borrow_mut().poll_elapsed(cx) {
                    Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await;
            r.count_sent(usize::try_from(down.passed).unwrap_or(usize::MAX));
            // The heads, and what came right behind that of the response, were counted on the link.
            let (sent, received) = connection.traffic();
            let (sent, received) = (sent + up.passed, received + down.passed.saturating_sub(early_len));
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.end();
                (attempt.sent, attempt.received) = (sent, received);
                attempt.length = down.passed;
            }
            lease.sent(sent);
            lease.received(received);
            match ended {
                Ok(()) => {
                    r.costs.sent.complete = true;
                    // What the client still sends must not reset what it has not read yet.
                    r.state.after = After::Close;
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    r.log(Level::Info, format_args!("upstream timed out (110: Connection timed out) while proxying upgraded connection"));
                }
                Err(error) => {
                    let errno = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                    r.log(
                        Level::Info,
                        format_args!("connection failed ({errno}) while proxying upgraded connection"),
                    );
                }
            }
            let _ = lease.done(PeerOutcome::Success, now_ms());
        })
    }
}
