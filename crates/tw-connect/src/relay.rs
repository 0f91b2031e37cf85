//! Relay: copies bytes in both directions between a client and a server.
//!
//! The relay ends when the sides that [`RelayEnding`] names have closed and the others have all of what came before; when nothing has
//! happened for the idle timeout; and when a side has taken nothing of what there is for it for as long as that side may.
//!
//! A relay on which nothing happens holds no buffer: bytes are read into one of the loop's, and what the other side does not
//! take at once is kept until it does.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tw_core::event_loop::{Buffers, BulkTurn, LoopCore};
use tw_net::Transport;
use tw_rt::Deadline;

use crate::read_rate::ReadRate;
use crate::reading::{READ_SIZE, read_bulk, read_bytes};
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

    /// Returns true if [`shutdown_write`](Self::shutdown_write) tells the peer more than the close of the connection that
    /// follows at once.
    fn tells_end(&self) -> bool {
        true
    }
}

impl RelayEnd for Transport {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        if max > READ_SIZE { read_bulk(self, max) } else { read_bytes(buffers, self, max) }
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

    fn tells_end(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }
}

impl<T: RelayEnd + ?Sized> RelayEnd for &T {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        (**self).read(buffers, max)
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        (**self).try_write(bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_writable(cx)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(cx)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        (**self).shutdown_write()
    }

    fn tells_end(&self) -> bool {
        (**self).tells_end()
    }
}

tw_base::limits! {
    /// The limits kept here.
    pub(crate) const LIMITS;

    /// Bytes of a relay that are read at once while the other side takes all of them at once.
    pub const BULK_READ_SIZE: usize = 256 << 10, bytes, "the rest is read later";
}

/// Limits of a relay.
#[derive(Clone, Copy)]
pub struct RelayLimits {
    /// Longest time without any traffic.
    pub idle: Duration,
    /// Longest time for which the client may take nothing; [`Duration::MAX`] is no limit.
    pub client: Duration,
    /// Longest time for which the server may take nothing; [`Duration::MAX`] is no limit.
    pub server: Duration,
    /// Bytes that are read at once, and so kept at most for a side that does not take them. As long as a side takes all at once,
    /// up to [`BULK_READ_SIZE`] are read.
    pub size: usize,
    /// Bytes per second that are read of the client; `None` is no limit.
    pub client_rate: Option<u64>,
    /// Bytes per second that are read of the server; `None` is no limit.
    pub server_rate: Option<u64>,
    /// Sides whose end is that of the relay.
    pub ending: RelayEnding,
}

/// Sides whose end is that of a relay, once all that came before it is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayEnding {
    /// The server: a client that has closed its side may still get what the server sends.
    Server,
    /// Whichever closes first.
    Either,
    /// Both: each may close its side while the other one still sends.
    Both,
}

/// Side of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelaySide {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// Result of a relay.
pub struct Relayed {
    /// Bytes that were read of the client while the relay ran.
    pub from_client: u64,
    /// Bytes that the server has taken.
    pub to_server: u64,
    /// Bytes that were read of the server while the relay ran.
    pub from_server: u64,
    /// Bytes that the client has taken.
    pub to_client: u64,
    /// Time at which the first bytes of the server were read.
    pub first_byte: Option<Instant>,
    /// Side that closed last before the relay ended, or its failure.
    pub result: Result<RelaySide, RelayFailure>,
}

/// Failure that ends a relay.
#[derive(Debug)]
pub enum RelayFailure {
    /// There was no traffic for the idle timeout, or a side took nothing for as long as it may.
    Timeout,
    /// A side could not be read.
    Read(RelaySide, io::Error),
    /// A side could not be written to.
    Write(RelaySide, io::Error),
}

impl RelayFailure {
    /// Error of the socket; `None` for a timeout.
    pub fn error(&self) -> Option<&io::Error> {
        match self {
            Self::Timeout => None,
            Self::Read(_, error) | Self::Write(_, error) => Some(error),
        }
    }
}

/// Copies bytes in both directions until the relay has ended. Each side comes with the bytes that were already read from it.
///
/// A tunnel is little more than this future. It is no `async fn`, which would have its arguments twice.
pub fn relay<C: RelayEnd + Copy, S: RelayEnd + Copy>(
    core: &LoopCore,
    client: (C, Bytes),
    server: (S, Bytes),
    limits: RelayLimits,
) -> impl Future<Output = Relayed> {
    let (from_client, client_early) = client;
    let (from_server, server_early) = server;
    let (size, closes) = (limits.size, limits.ending == RelayEnding::Either);
    let up = DirectionLimits { size, patience: limits.server, rate: limits.client_rate, closes };
    let down = DirectionLimits { size, patience: limits.client, rate: limits.server_rate, closes };
    let mut up = Direction::new(RelaySide::Client, from_client, client_early, from_server, up);
    let mut down = Direction::new(RelaySide::Server, from_server, server_early, from_client, down);
    let mut deadline = Deadline::new();
    let mut first_byte = None;
    let (idle, ending) = (limits.idle, limits.ending);
    deadline.set(idle);
    async move {
        let result = poll_fn(|cx| {
            let moved = [up.drive(core, cx), down.drive(core, cx)];
            if down.received > 0 {
                first_byte.get_or_insert_with(tw_rt::clock::now);
            }
            for moved in moved {
                match moved {
                    Ok(Progress::Something) => deadline.set(idle),
                    Ok(Progress::Nothing) => {}
                    Err(failure) => return Poll::Ready(Err(failure)),
                }
            }
            // DIFF(nginx): a client that has closed its side may still want what the server has to say.
            if let Some(side) = ended_by(ending, up.stage, down.stage) {
                return Poll::Ready(Ok(side));
            }
            if up.has_paused() | down.has_paused() {
                deadline.set(idle);
            }
            match deadline.poll_elapsed(cx) {
                Poll::Ready(()) => Poll::Ready(Err(RelayFailure::Timeout)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        Relayed {
            from_client: up.received,
            to_server: up.passed,
            from_server: down.received,
            to_client: down.passed,
            first_byte,
            result,
        }
    }
}

/// Side whose end has ended the relay; `None` as long as it goes on. `up` is the direction from the client.
fn ended_by(ending: RelayEnding, up: DirectionStage, down: DirectionStage) -> Option<RelaySide> {
    use DirectionStage::{Closed, Ended};
    match (ending, up, down) {
        (RelayEnding::Server, _, Closed) => Some(RelaySide::Server),
        (RelayEnding::Both | RelayEnding::Either, Closed, Closed) => Some(RelaySide::Server),
        // DIFF(nginx): when both have closed, what came before is delivered to both.
        (RelayEnding::Either, Closed, Ended) | (RelayEnding::Either, Ended, Closed) => None,
        (RelayEnding::Either, Closed, _) => Some(RelaySide::Client),
        (RelayEnding::Either, _, Closed) => Some(RelaySide::Server),
        _ => None,
    }
}

/// One direction of a relay.
struct Direction<F, T> {
    /// Side that is read.
    source: RelaySide,
    from: F,
    to: T,
    /// Bytes read and not written yet.
    kept: Bytes,
    stage: DirectionStage,
    /// Bytes that were read.
    received: u64,
    /// Bytes that went in this direction.
    passed: u64,
    size: ReadSize,
    /// Position among the large transfers of the loop, once this is one.
    turn: Option<Box<BulkTurn>>,
    /// True if the end of this direction closes both connections.
    closes: bool,
    /// Milliseconds for which the receiver may take nothing; [`u32::MAX`] is no limit.
    patience_ms: u32,
    /// End of that time, while something is kept. Boxed, as the rate is: an idle relay has neither.
    stall: Option<Box<Deadline>>,
    rate: Option<Box<ReadRate>>,
}

/// Limits of one direction.
struct DirectionLimits {
    size: usize,
    patience: Duration,
    rate: Option<u64>,
    closes: bool,
}

/// Bytes that are read at once: more while a transfer is large and its receiver fast, so that system calls cost little; few
/// for a slow receiver, for which they have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadSize {
    least: u32,
    now: u32,
}

impl ReadSize {
    fn new(least: usize) -> Self {
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        Self { least, now: least }
    }

    fn get(self) -> usize {
        self.now as usize
    }

    /// Returns true if more is read at once than usual.
    fn is_bulk(self) -> bool {
        self.now > self.least
    }

    /// Notes that so many bytes were read, all of which the receiver has taken at once.
    fn grow(&mut self, read: usize) {
        if read >= self.get() {
            self.now = self.now.saturating_mul(4).min(self.least.max(BULK_READ_SIZE as u32));
        }
    }

    /// Notes that the receiver does not take all at once.
    fn reset(&mut self) {
        self.now = self.least;
    }
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

impl RelaySide {
    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl<F: RelayEnd, T: RelayEnd> Direction<F, T> {
    fn new(source: RelaySide, from: F, early: Bytes, to: T, limits: DirectionLimits) -> Self {
        let DirectionLimits { size, patience, rate, closes } = limits;
        // Bytes read before the relay began count for the rate, too.
        let rate = rate.map(|rate| Box::new(ReadRate::new(rate, early.len())));
        Self {
            source,
            from,
            to,
            kept: early,
            stage: DirectionStage::Open,
            received: 0,
            passed: 0,
            size: ReadSize::new(size),
            turn: None,
            closes,
            patience_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            stall: None,
            rate,
        }
    }

    /// Returns true if the rate has kept bytes back since the last call.
    fn has_paused(&mut self) -> bool {
        self.rate.as_mut().is_some_and(|rate| rate.has_paused())
    }

    /// Bytes that may be read now.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        match &mut self.rate {
            None => Poll::Ready(self.size.get()),
            Some(rate) => rate.poll_room(cx).map(|room| room.min(self.size.get())),
        }
    }

    /// Moves what can be moved now, and sees to it that the receiver does not take for ever.
    fn drive(&mut self, core: &LoopCore, cx: &mut Context<'_>) -> Result<Progress, RelayFailure> {
        let moved = self.advance(core, cx)?;
        if self.kept.is_empty() || self.patience_ms == u32::MAX {
            self.stall = None;
            return Ok(moved);
        }
        let stall = self.stall.get_or_insert_default();
        if moved == Progress::Something || stall.at().is_none() {
            stall.set(Duration::from_millis(self.patience_ms.into()));
        }
        match stall.poll_elapsed(cx) {
            Poll::Ready(()) => Err(RelayFailure::Timeout),
            Poll::Pending => Ok(moved),
        }
    }

    /// Moves what can be moved now.
    fn advance(&mut self, core: &LoopCore, cx: &mut Context<'_>) -> Result<Progress, RelayFailure> {
        let mut moved = Progress::Nothing;
        loop {
            match self.deliver(cx)? {
                Delivery::Nothing => {}
                Delivery::Something => moved = Progress::Something,
                Delivery::Waits(progress) => {
                    return Ok(if progress == Progress::Something { progress } else { moved });
                }
            }
            match self.stage {
                DirectionStage::Open => {}
                DirectionStage::Ended => {
                    if !self.closes || self.to.tells_end() {
                        // An error means that this side is gone already.
                        let _ = self.to.shutdown_write();
                    }
                    self.stage = DirectionStage::Closed;
                    return Ok(Progress::Something);
                }
                DirectionStage::Closed => return Ok(moved),
            }
            if self.size.is_bulk() {
                // Small messages on the same loop do not wait for many large transfers.
                let turn = self.turn.get_or_insert_default();
                if core.budget.poll_bulk(turn, cx).is_pending() {
                    return Ok(moved);
                }
            } else if moved == Progress::Something && !core.budget.may_copy(0) {
                cx.waker().wake_by_ref();
                return Ok(moved);
            }
            let Poll::Ready(room) = self.poll_room(cx) else { return Ok(moved) };
            let read = match self.from.read(&core.buffers, room) {
                // The protocol inside the tunnel knows whether the data is complete.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    (ReadOutcome::Closed, Bytes::new())
                }
                read => read.map_err(|error| RelayFailure::Read(self.source, error))?,
            };
            match read {
                (ReadOutcome::Some, bytes) => {
                    core.budget.spent(bytes.len());
                    self.take(bytes);
                    moved = Progress::Something;
                }
                (ReadOutcome::Closed, _) => self.stage = DirectionStage::Ended,
                (ReadOutcome::Nothing, _) => match self.from.poll_readable(cx) {
                    Poll::Ready(ready) => ready.map_err(|error| RelayFailure::Read(self.source, error))?,
                    Poll::Pending => return Ok(moved),
                },
            }
        }
    }

    /// Takes bytes that were read.
    fn take(&mut self, bytes: Bytes) {
        self.received += bytes.len() as u64;
        if let Some(rate) = &mut self.rate {
            rate.count(bytes.len());
        }
        self.kept = bytes;
    }

    /// Writes what is kept, as far as the receiver takes it.
    fn deliver(&mut self, cx: &mut Context<'_>) -> Result<Delivery, RelayFailure> {
        let failure = |error| RelayFailure::Write(self.source.other(), error);
        let mut progress = Progress::Nothing;
        let read = self.kept.len();
        while !self.kept.is_empty() {
            match self.to.try_write(&self.kept) {
                Ok(n) => {
                    if n == read {
                        self.size.grow(read);
                    }
                    self.kept.advance(n);
                    self.passed += n as u64;
                    progress = Progress::Something;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.to.poll_writable(cx) {
                    Poll::Ready(ready) => ready.map_err(failure)?,
                    Poll::Pending => {
                        self.size.reset();
                        return Ok(Delivery::Waits(progress));
                    }
                },
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(if progress == Progress::Something { Delivery::Something } else { Delivery::Nothing })
    }
}

/// Result of writing what is kept.
enum Delivery {
    /// Nothing was there.
    Nothing,
    /// All of it was written.
    Something,
    /// A part of it is left, until the receiver takes more.
    Waits(Progress),
}

#[cfg(test)]
mod tests {
    use super::DirectionStage::{Closed, Ended, Open};
    use super::*;

    #[test]
    fn reads_grow_while_all_is_taken_at_once() {
        let mut size = ReadSize::new(16 << 10);
        for (read, expected) in [(100, 16), (16 << 10, 64), (20 << 10, 64), (64 << 10, 256), (256 << 10, 256)]
        {
            size.grow(read);
            assert_eq!(size.get(), expected << 10, "{read}");
        }
        size.reset();
        assert_eq!(size.get(), 16 << 10);
        let mut large = ReadSize::new(1 << 20);
        large.grow(1 << 20);
        assert_eq!(large.get(), 1 << 20, "what the configuration says is the least");
    }

    type End = (&'static Transport, Bytes);

    fn size_of_future<F>(_: impl Fn(&'static LoopCore, End, End, RelayLimits) -> F) -> usize {
        size_of::<F>()
    }

    /// Most of what a tunnel costs in addition to its two connections and its request.
    #[test]
    fn future_of_a_relay_has_everything_once() {
        let size = size_of_future(relay);
        // A deadline holds its timer; there is none on the heap.
        assert!(size <= 2 * size_of::<Direction<&Transport, &Transport>>() + 152, "{size}");
    }

    #[test]
    fn relay_ends_with_the_sides_that_its_kind_names() {
        let (client, server) = (Some(RelaySide::Client), Some(RelaySide::Server));
        for (up, down, by_server, by_either, by_both) in [
            (Open, Open, None, None, None),
            (Ended, Open, None, None, None),
            (Closed, Open, None, client, None),
            (Open, Closed, server, server, None),
            (Closed, Ended, None, None, None),
            (Ended, Closed, server, None, None),
            (Closed, Closed, server, server, server),
        ] {
            let ended = |ending| ended_by(ending, up, down);
            assert_eq!(ended(RelayEnding::Server), by_server);
            assert_eq!(ended(RelayEnding::Either), by_either);
            assert_eq!(ended(RelayEnding::Both), by_both);
        }
    }
}
