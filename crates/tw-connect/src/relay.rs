//! Relay: copies bytes in both directions between a client and a server.
//!
//! The relay ends when the server has closed its side and the client has all of what came before; when nothing has happened for the
//! idle timeout; and when a side has taken nothing of what there is for it for as long as that side may.
//!
//! A relay on which nothing happens holds no buffer: bytes are read into one of the loop's, and what the other side does not
//! take at once is kept until it does.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tw_core::event_loop::{Buffers, LoopCore};
use tw_net::Transport;
use tw_rt::Deadline;

use crate::reading::read_bytes;
use crate::upstream_connection::ReadOutcome;

/// One side of a relay.
pub trait RelayEnd {
    /// Reads the available bytes, about `max` of them at most.
    ///
    /// # Errors
    /// Error of the transport; `UnexpectedEof` if it was cut.
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)>;

    /// Sends a part of `bytes`, if anything can be sent now: `WouldBlock` otherwise.
    ///
    /// # Errors
    /// Error of the transport.
    fn try_write(&self, bytes: &Bytes) -> io::Result<usize>;

    /// Ready when [`try_write`](Self::try_write) is worth being tried.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when there is something to be read.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Announces that nothing more will be sent.
    ///
    /// # Errors
    /// The side is gone.
    fn shutdown_write(&self) -> io::Result<()>;
}

impl RelayEnd for &Transport {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        read_bytes(buffers, self, max)
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        Transport::try_write(self, bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Transport::poll_writable(self, cx)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Transport::poll_readable(self, cx)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        Transport::shutdown_write(self)
    }
}

/// Limits of a relay.
#[derive(Clone, Copy)]
pub struct RelayLimits {
    /// Longest time without any traffic.
    pub idle: Duration,
    /// Longest time for which the client may take nothing.
    pub client: Duration,
    /// Longest time for which the server may take nothing.
    pub server: Duration,
    /// Bytes that are read at once, and so kept at most for a side that does not take them.
    pub size: usize,
}

/// Result of a relay.
pub struct Relayed {
    /// Bytes that the server has taken.
    pub to_server: u64,
    /// Bytes that the client has taken.
    pub to_client: u64,
    /// Error that has ended it: `TimedOut` for a timeout, or that of a side.
    pub result: io::Result<()>,
}

/// Copies bytes in both directions until the server has closed its side. Each side comes with the bytes that were already
/// read from it.
pub async fn relay<C: RelayEnd + Copy, S: RelayEnd + Copy>(
    core: &LoopCore,
    client: (C, Bytes),
    server: (S, Bytes),
    limits: RelayLimits,
) -> Relayed {
    let (to_client, to_server) = (client.0, server.0);
    let mut up = Direction::new(client, to_server, limits.size, limits.server);
    let mut down = Direction::new(server, to_client, limits.size, limits.client);
    let mut deadline = Deadline::new();
    deadline.set(limits.idle);
    let result = poll_fn(|cx| {
        let moved = [up.drive(core, cx), down.drive(core, cx)];
        for moved in moved {
            match moved {
                Ok(Progress::Something) => deadline.set(limits.idle),
                Ok(Progress::Nothing) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        // DIFF(nginx): a client that has closed its side may still want what the server has to say.
        if down.stage == DirectionStage::Closed {
            return Poll::Ready(Ok(()));
        }
        match deadline.poll_elapsed(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    Relayed { to_server: up.passed, to_client: down.passed, result }
}

/// One direction of a relay.
struct Direction<F, T> {
    from: F,
    to: T,
    /// Bytes read and not written yet.
    kept: Bytes,
    stage: DirectionStage,
    /// Bytes that went in this direction.
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

impl<F: RelayEnd, T: RelayEnd> Direction<F, T> {
    fn new((from, early): (F, Bytes), to: T, size: usize, patience: Duration) -> Self {
        let (stage, stalled) = (DirectionStage::Open, Deadline::new());
        Self { from, to, kept: early, stage, passed: 0, size, patience, stalled }
    }

    /// Moves what can be moved now, and sees to it that the receiver does not take for ever.
    fn drive(&mut self, core: &LoopCore, cx: &mut Context<'_>) -> io::Result<Progress> {
        let moved = self.advance(core, cx)?;
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
    fn advance(&mut self, core: &LoopCore, cx: &mut Context<'_>) -> io::Result<Progress> {
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
            if moved == Progress::Something && !core.budget.may_copy(0) {
                cx.waker().wake_by_ref();
                return Ok(moved);
            }
            let read = match self.from.read(&core.buffers, self.size) {
                // Whether what passes through is whole, those who speak know.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    (ReadOutcome::Closed, Bytes::new())
                }
                read => read?,
            };
            match read {
                (ReadOutcome::Some, bytes) => {
                    let _ = core.budget.may_copy(bytes.len());
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
