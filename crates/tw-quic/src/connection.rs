//! Handle of a connection, for the tasks of one loop.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use engine::Dir;
use quinn_proto as engine;

use crate::config::varint;
use crate::error::{ConnectionError, StreamError};
use crate::shared::{Closing, Shared};
use crate::stream_id::StreamId;
use crate::tls::TlsFacts;
use crate::waiters::remember;

/// Chunks of one write at most.
const CHUNKS_MAX: usize = 16;

/// Handle of a QUIC connection of a client. Clones are handles of the same connection, for other tasks of the same loop; when the last
/// one is dropped, the connection is closed with the code of [`Connection::set_drop_code`].
///
/// Nothing here does I/O: what is written is queued, and leaves after the tasks that are ready now have had their turn, so several
/// small writes share a packet. Every `poll_…` returns at once, and if it is pending wakes the task of `cx` when it is worth to be called
/// again. **Each kind of wait of a stream remembers one task**: reading, writing, and the rest ([`Connection::poll_stopped`],
/// [`Connection::poll_finished`]); so does each kind of wait of the connection, except [`Connection::poll_closed`], for which any number of
/// tasks may wait.
///
/// # Serving requests
/// ```text
/// let stream = poll_fn(|cx| connection.poll_accept_bidi(cx)).await?;          // a stream that the client has opened
/// while let Some(bytes) = poll_fn(|cx| connection.poll_read(stream, cx, 16 << 10)).await? { … }  // until it ends
/// let mut chunks = [head, body];
/// while !chunks.iter().all(Bytes::is_empty) {
///     poll_fn(|cx| connection.poll_write(stream, cx, &mut chunks)).await?;    // waits while windows are full: back-pressure
/// }
/// connection.finish(stream)?;                                                 // FIN
/// ```
/// A stream that is not needed has to be told so in both directions: [`Connection::stop_sending`] for its input (unless its end or a reset
/// was read), [`Connection::finish`] or [`Connection::reset`] for its output. Until then it counts as open.
///
/// # End
/// After the last response, wait for [`Connection::poll_finished`] of each stream before [`Connection::close`]: closing drops all data
/// that the client has not acknowledged.
pub struct Connection(Rc<Shared>);

/// Statistics of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionStatistics {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    /// Size of packets on the current path.
    pub mtu: u16,
    /// Datagrams that were sent.
    pub sent_datagrams: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Datagrams that were received.
    pub received_datagrams: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets that were sent and lost.
    pub lost_packets: u64,
}

impl Clone for Connection {
    fn clone(&self) -> Self {
        self.0.handles.set(self.0.handles.get() + 1);
        Self(self.0.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let shared = &self.0;
        shared.handles.set(shared.handles.get() - 1);
        if shared.handles.get() == 0 {
            shared.close(shared.drop_code.get(), Bytes::new());
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connection").field(&self.peer()).finish()
    }
}

impl Connection {
    pub(crate) fn new(shared: Rc<Shared>) -> Self {
        shared.handles.set(shared.handles.get() + 1);
        Self(shared)
    }

    /// Waits for the next stream that the client has opened in both directions.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn poll_accept_bidi(&self, cx: &mut Context<'_>) -> Poll<Result<StreamId, ConnectionError>> {
        self.0.poll_accept(Dir::Bi, cx)
    }

    /// Waits for the next stream that the client has opened in its direction.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn poll_accept_uni(&self, cx: &mut Context<'_>) -> Poll<Result<StreamId, ConnectionError>> {
        self.0.poll_accept(Dir::Uni, cx)
    }

    /// Opens a stream in the server's direction, once the client allows one more.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn poll_open_uni(&self, cx: &mut Context<'_>) -> Poll<Result<StreamId, ConnectionError>> {
        let shared = &self.0;
        match shared.with(|engine| engine.streams().open(Dir::Uni)) {
            Ok(Some(id)) => Poll::Ready(Ok(id.into())),
            Ok(None) => {
                remember(&mut shared.waiters.borrow_mut().open_uni, cx);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Reads up to `max` bytes, which must not be zero; `None` at the end of the stream. The client may send as much again.
    ///
    /// # Errors
    /// [`StreamError::Reset`], once; the stream is not open; the connection is closed, in which case data that had arrived is lost.
    pub fn poll_read(
        &self,
        stream: StreamId,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, StreamError>> {
        let shared = &self.0;
        if !stream.can_be_read() {
            return Poll::Ready(Err(StreamError::NotOpen));
        }
        let outcome = shared.with(|engine| read(engine, stream, max))?;
        let outcome = match outcome {
            Read::Data(bytes, sends) => {
                // The client gets more credit, if that is worth a packet.
                if sends {
                    shared.queue();
                }
                Ok(Some(bytes))
            }
            Read::End => {
                shared.queue();
                Ok(None)
            }
            Read::Blocked => {
                shared.waiters.borrow_mut().remember_read(stream, cx);
                return Poll::Pending;
            }
            Read::Failed(error) => {
                shared.queue();
                Err(error)
            }
        };
        Poll::Ready(outcome)
    }

    /// Queues bytes of `chunks`, which are taken off their front, and returns their number: as many as the windows of the client and
    /// the send window of the connection have room for, at least one. Copies nothing. Waits while there is no room.
    ///
    /// # Errors
    /// [`StreamError::Stopped`]; the stream is not open, because it was finished or reset; the connection is closed.
    pub fn poll_write(
        &self,
        stream: StreamId,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>> {
        let shared = &self.0;
        if !stream.can_be_written() {
            return Poll::Ready(Err(StreamError::NotOpen));
        }
        // The engine takes an empty chunk for the end of the data.
        let first = chunks.iter().position(|chunk| !chunk.is_empty()).unwrap_or(chunks.len());
        let last = chunks.len().min(first + CHUNKS_MAX);
        let chunks = chunks.get_mut(first..last).unwrap_or_default();
        if chunks.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let outcome = shared.with(|engine| engine.send_stream(stream.engine()).write_chunks(chunks))?;
        Poll::Ready(match outcome {
            Ok(progress) => {
                shared.queue();
                Ok(progress.bytes)
            }
            Err(engine::WriteError::Blocked) => {
                remember(&mut shared.waiters.borrow_mut().streams.entry(stream).or_default().write, cx);
                // The engine sends a frame that says that it is blocked.
                shared.queue();
                return Poll::Pending;
            }
            Err(engine::WriteError::Stopped(code)) => Err(StreamError::Stopped(code.into_inner())),
            Err(engine::WriteError::ClosedStream) => Err(StreamError::NotOpen),
        })
    }

    /// Ends the output of a stream. What was written is delivered.
    ///
    /// # Errors
    /// [`StreamError::Stopped`]; the stream is not open; the connection is closed.
    pub fn finish(&self, stream: StreamId) -> Result<(), StreamError> {
        if !stream.can_be_written() {
            return Err(StreamError::NotOpen);
        }
        let outcome = self.0.with(|engine| engine.send_stream(stream.engine()).finish())?;
        self.0.queue();
        outcome.map_err(|error| match error {
            engine::FinishError::Stopped(code) => StreamError::Stopped(code.into_inner()),
            engine::FinishError::ClosedStream => StreamError::NotOpen,
        })
    }

    /// Cuts the output of a stream with an error code of the application. What was written may be lost. Does nothing if all of it
    /// has arrived.
    pub fn reset(&self, stream: StreamId, code: u64) {
        if stream.can_be_written() {
            // A stream or connection that is gone needs no reset.
            let _ = self.0.with(|engine| engine.send_stream(stream.engine()).reset(varint(code)));
            self.0.waiters.borrow_mut().wake(stream, |waiters| (waiters.write, waiters.end) = (None, None));
            self.0.queue();
        }
    }

    /// Reads no more of a stream, and asks the client to stop sending it. Does nothing if its end has arrived.
    pub fn stop_sending(&self, stream: StreamId, code: u64) {
        if stream.can_be_read() {
            // A stream or connection that is gone needs no stop.
            let _ = self.0.with(|engine| engine.recv_stream(stream.engine()).stop(varint(code)));
            self.0.waiters.borrow_mut().forget_reads(stream);
            self.0.queue();
        }
    }

    /// Sets the priority of a stream's output: streams of a higher one go first, streams of the same one share what can be sent.
    /// 0 at first.
    pub fn set_priority(&self, stream: StreamId, priority: i32) {
        if stream.can_be_written() {
            // A stream or connection that is gone has none.
            let _ = self.0.with(|engine| engine.send_stream(stream.engine()).set_priority(priority));
        }
    }

    /// Waits until the client takes no more data of a stream: it has sent STOP_SENDING, or the connection is closed. Pending for
    /// good on a stream whose output was delivered. A request that waits for an upstream server learns here that its client is
    /// gone.
    pub fn poll_stopped(&self, stream: StreamId, cx: &mut Context<'_>) -> Poll<StreamError> {
        let shared = &self.0;
        if !stream.can_be_written() {
            return Poll::Ready(StreamError::NotOpen);
        }
        match shared.with(|engine| engine.send_stream(stream.engine()).stopped()) {
            Err(error) => Poll::Ready(error.into()),
            Ok(Ok(Some(code))) => Poll::Ready(StreamError::Stopped(code.into_inner())),
            Ok(Ok(None) | Err(_)) => {
                remember(&mut shared.waiters.borrow_mut().streams.entry(stream).or_default().end, cx);
                Poll::Pending
            }
        }
    }

    /// Waits until the client has reset a stream, without reading it; data that was not read is lost. Returns the error code, once:
    /// the stream is not open for reading any more. Pending for good on a stream whose end was read, and on one of a connection
    /// that is closed.
    pub fn poll_reset(&self, stream: StreamId, cx: &mut Context<'_>) -> Poll<u64> {
        let shared = &self.0;
        if !stream.can_be_read() {
            return Poll::Pending;
        }
        match shared.with(|engine| engine.recv_stream(stream.engine()).received_reset()) {
            Ok(Ok(Some(code))) => {
                // The client may open one more.
                shared.queue();
                Poll::Ready(code.into_inner())
            }
            Ok(Ok(None)) => {
                remember(&mut shared.waiters.borrow_mut().streams.entry(stream).or_default().reset, cx);
                Poll::Pending
            }
            Ok(Err(_)) | Err(_) => Poll::Pending,
        }
    }

    /// Waits until the client has acknowledged all of a stream's output, after [`Connection::finish`]. Not for a stream
    /// that was reset.
    ///
    /// # Errors
    /// [`StreamError::Stopped`]; the connection is closed.
    pub fn poll_finished(&self, stream: StreamId, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let shared = &self.0;
        if !stream.can_be_written() {
            return Poll::Ready(Err(StreamError::NotOpen));
        }
        match shared.with(|engine| engine.send_stream(stream.engine()).stopped()) {
            Err(error) => Poll::Ready(Err(error.into())),
            Ok(Ok(Some(code))) => Poll::Ready(Err(StreamError::Stopped(code.into_inner()))),
            // The engine has forgotten the stream.
            Ok(Err(_)) => Poll::Ready(Ok(())),
            Ok(Ok(None)) => {
                remember(&mut shared.waiters.borrow_mut().streams.entry(stream).or_default().end, cx);
                Poll::Pending
            }
        }
    }

    /// Returns true if the client has acknowledged all of a stream's output, or takes no more of it: what
    /// [`poll_finished`](Self::poll_finished) waits for.
    pub fn is_finished(&self, stream: StreamId) -> bool {
        let stopped = |engine: &mut engine::Connection| engine.send_stream(stream.engine()).stopped();
        !stream.can_be_written() || !matches!(self.0.with(stopped), Ok(Ok(None)))
    }

    /// Closes the connection at once with an error code of the application. Streams end with [`ConnectionError::Closed`].
    pub fn close(&self, code: u64, reason: &[u8]) {
        self.0.close(code, Bytes::copy_from_slice(reason));
    }

    /// Waits until the packets that tell the client of [`Connection::close`] were handed to the socket: until the endpoint fills the batch
    /// behind them. Ready at once if this side has not closed the connection.
    pub fn poll_close_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &self.0;
        if shared.closing.get() == Closing::Done || shared.endpoint.strong_count() == 0 {
            return Poll::Ready(());
        }
        remember(&mut shared.waiters.borrow_mut().close_sent, cx);
        Poll::Pending
    }

    /// Sets the error code that clients see if all handles are dropped before [`Connection::close`]. 0 at first.
    pub fn set_drop_code(&self, code: u64) {
        self.0.drop_code.set(code);
    }

    /// Waits until the connection is closed, whichever side has done it.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        match self.close_reason() {
            Some(reason) => Poll::Ready(reason),
            None => {
                let closed = &mut self.0.waiters.borrow_mut().closed;
                if !closed.iter().any(|waker| waker.will_wake(cx.waker())) {
                    closed.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Reason of the end, if the connection is closed.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.0.end.borrow().clone()
    }

    /// Waits until the handshake is complete, which proves the client's address and that nothing was replayed.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn poll_established(&self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        if let Some(reason) = self.close_reason() {
            return Poll::Ready(Err(reason));
        }
        if self.0.is_established() {
            return Poll::Ready(Ok(()));
        }
        remember(&mut self.0.waiters.borrow_mut().established, cx);
        Poll::Pending
    }

    /// True until the handshake is complete. Whatever is read meanwhile is early data (0-RTT), which may be replayed.
    pub fn is_handshaking(&self) -> bool {
        self.0.is_handshaking.get()
    }

    /// Flag of [`Connection::is_handshaking`], which changes by itself.
    pub fn handshaking(&self) -> Rc<Cell<bool>> {
        self.0.is_handshaking.clone()
    }

    /// True if the client has sent early data that is accepted.
    pub fn has_early_data(&self) -> bool {
        self.0.with(|engine| engine.has_0rtt()).unwrap_or(false)
    }

    /// Address of the client. Changes when the client has moved and the new path is validated.
    pub fn peer(&self) -> SocketAddr {
        self.0.peer.borrow().validated()
    }

    /// Address of this side, as the first datagram named it; `None` if the socket does not tell.
    pub fn local(&self) -> Option<IpAddr> {
        self.0.local
    }

    /// Takes the facts of TLS, which are not kept: all of them once the handshake is complete, until then those of the client hello. `None` on a
    /// closed connection.
    pub fn take_tls_facts(&self) -> Option<TlsFacts> {
        let facts = self.0.with(|engine| engine.crypto_session().handshake_data()).ok()??;
        facts.downcast::<TlsFacts>().ok().map(|facts| *facts)
    }

    /// Statistics; those of a closed connection are zeros.
    pub fn statistics(&self) -> ConnectionStatistics {
        let Ok(all) = self.0.with(|engine| engine.stats()) else { return ConnectionStatistics::default() };
        ConnectionStatistics {
            rtt: all.path.rtt,
            congestion_window: all.path.cwnd,
            mtu: all.path.current_mtu,
            sent_datagrams: all.udp_tx.datagrams,
            sent_bytes: all.udp_tx.bytes,
            received_datagrams: all.udp_rx.datagrams,
            received_bytes: all.udp_rx.bytes,
            lost_packets: all.path.lost_packets,
        }
    }

    /// Number of streams that the client has opened in both directions and that are not over.
    pub fn open_bidi_streams(&self) -> u64 {
        self.0.with(|engine| engine.streams().remote_open_streams(Dir::Bi)).unwrap_or(0)
    }

    /// Sends a packet that the client has to acknowledge, so that neither side takes the connection for idle.
    pub fn ping(&self) {
        // A connection that is gone is idle for good.
        let _ = self.0.with(|engine| engine.ping());
        self.0.queue();
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&self) {
        self.0.shrink();
    }

    /// Closes the connection with the code of [`Connection::set_drop_code`] and [`ConnectionError::TimedOut`] once nothing has arrived for
    /// ten seconds, or nine round trips if they are longer, although the client has something to acknowledge: it has vanished. For a process
    /// that only waits for the end of its connections.
    pub fn close_when_silent(&self) {
        self.0.watch_silence();
    }

    /// Encrypts with new keys from the next packet on (RFC 9001, section 6).
    pub fn update_keys(&self) {
        // A connection that is gone has none.
        let _ = self.0.with(|engine| engine.force_key_update());
        self.0.queue();
    }
}

/// Result of a read.
enum Read {
    /// Data, and true if a packet is due.
    Data(Bytes, bool),
    End,
    Blocked,
    Failed(StreamError),
}

fn read(engine: &mut engine::Connection, stream: StreamId, max: usize) -> Read {
    let mut recv = engine.recv_stream(stream.engine());
    let Ok(mut chunks) = recv.read(true) else { return Read::Failed(StreamError::NotOpen) };
    let outcome = chunks.next(max.max(1));
    let sends = chunks.finalize().should_transmit();
    match outcome {
        Ok(Some(chunk)) => Read::Data(chunk.bytes, sends),
        Ok(None) => Read::End,
        Err(engine::ReadError::Blocked) => Read::Blocked,
        Err(engine::ReadError::Reset(code)) => Read::Failed(StreamError::Reset(code.into_inner())),
    }
}
