//! One connection of HTTP/3: its transport, its frames (`tw-http3`), and the cost that its client has caused so far.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_base::memory;
use tw_http::Priority;
use tw_http3::{Connection, ConnectionError, ErrorCode, LocalStream, Signal};
use tw_log::Level;
use tw_net::Addr;
use tw_quic::{StreamError, StreamId};

use super::transport_priority::transport_priority;
use super::write_order::WriteOrder;
use crate::streams::{Abuse, ClientCost, ConnectionSettings, PriorityUpdates};
use tw_request::client::Client;

/// Bytes of one read of a stream.
pub(super) const READ_MAX: usize = 16 << 10;

/// Bytes of all responses of a connection that are made and that its transport has not taken, while its streams make large pieces.
pub(super) const WAITING_MAX: usize = 256 << 10;
/// Limit of these bytes while little memory is left.
const WAITING_LOW: usize = 16 << 10;
/// Bytes of a piece that a stream makes whatever the others have made: it may be the only one that the client reads.
pub(super) const PIECE_MIN: usize = 4 << 10;

/// A connection of HTTP/3.
pub(crate) struct Http3Connection {
    /// Client of the connection.
    pub(crate) client: Rc<Client>,
    /// Transport.
    pub(super) quic: tw_quic::Connection,
    /// Frames in both directions.
    pub(super) frames: Connection,
    /// Settings of the server.
    pub(super) settings: ConnectionSettings,
    /// Order in which streams write to the transport.
    pub(super) write_order: WriteOrder,
    /// Bytes of all streams that the transport has not taken.
    unsent: Cell<usize>,
    /// Priorities of PRIORITY_UPDATE frames.
    updates: PriorityUpdates,
    /// Streams whose responses were written and perhaps not acknowledged.
    finished: RefCell<VecDeque<StreamId>>,
    /// Cost of the client; QUIC bounds the cost of its own frames.
    pub(super) cost: ClientCost,
}

/// Result of reading a stream.
pub(super) enum ReadOutcome {
    /// The frames have got bytes.
    Some,
    /// The stream has ended or failed, and the frames know it.
    End,
}

impl Http3Connection {
    /// The connection of a client.
    pub(super) fn new(
        client: Rc<Client>,
        quic: tw_quic::Connection,
        settings: ConnectionSettings,
    ) -> Rc<Self> {
        let config = tw_http3::Config { list_max: settings.list_max };
        let frames =
            if client.speaks_hq() { Connection::hq_server(config) } else { Connection::server(config) };
        Rc::new(Self {
            client,
            quic,
            frames,
            settings,
            write_order: WriteOrder::default(),
            unsent: Cell::new(0),
            updates: PriorityUpdates::default(),
            finished: RefCell::default(),
            cost: ClientCost::default(),
        })
    }

    /// Writes a line about the connection into the main error log, with the client's validated address.
    pub(super) fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let peer = Addr::Inet(self.quic.peer());
        self.client.log_as(&peer.client_text(), level, message);
    }

    /// Returns the abuse of the client, if its limit is passed.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.cost.abuse(self.frames.payload_bytes())
    }

    /// Moves the next bytes of a stream to the frames.
    pub(super) fn poll_read(&self, stream: StreamId, cx: &mut Context<'_>) -> Poll<ReadOutcome> {
        let id = stream.value();
        // Errors of the frames end the connection, which finds them itself.
        let outcome = match self.quic.poll_read(stream, cx, READ_MAX) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(Some(bytes))) => {
                self.cost.count_received(bytes.len());
                let _ = self.frames.receive(id, bytes, false);
                ReadOutcome::Some
            }
            Poll::Ready(Ok(None)) => {
                let _ = self.frames.receive(id, Bytes::new(), true);
                ReadOutcome::End
            }
            Poll::Ready(Err(StreamError::Reset(code))) => {
                let _ = self.frames.receive_reset(id, code.into());
                ReadOutcome::End
            }
            // Stopped here, or the connection is gone, which its own task finds.
            Poll::Ready(Err(_)) => ReadOutcome::End,
        };
        Poll::Ready(outcome)
    }

    /// Carries out resets and stops.
    pub(super) fn send_signals(&self) {
        while let Some(signal) = self.frames.next_signal() {
            match signal {
                Signal::Reset { stream, code } => self.quic.reset(stream_id(stream), code.into()),
                Signal::StopSending { stream, code } => {
                    self.quic.stop_sending(stream_id(stream), code.into())
                }
            }
        }
    }

    /// Writes bytes of a stream of this end, which is opened first.
    pub(super) fn write_local(&self, which: LocalStream, id: &mut Option<StreamId>, cx: &mut Context<'_>) {
        while self.frames.out_len(which) > 0 {
            let stream = match *id {
                Some(stream) => stream,
                None => match self.quic.poll_open_uni(cx) {
                    Poll::Ready(Ok(stream)) => {
                        // A few bytes, and more urgent than every response.
                        self.quic.set_priority(stream, i32::MAX);
                        *id.insert(stream)
                    }
                    // The task of the connection finds that it is gone.
                    Poll::Ready(Err(_)) | Poll::Pending => return,
                },
            };
            let mut poll = Poll::Pending;
            self.frames.write(which, |bytes| {
                poll = self.quic.poll_write(stream, cx, &mut [Bytes::copy_from_slice(bytes)]);
                match poll {
                    Poll::Ready(Ok(count)) => count,
                    Poll::Ready(Err(_)) | Poll::Pending => 0,
                }
            });
            match poll {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(StreamError::Stopped(_))) => {
                    let _ = self.frames.local_stream_stopped();
                    return;
                }
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    /// Takes over a PRIORITY_UPDATE frame, also for a stream that has not begun (RFC 9218 section 7).
    pub(super) fn update_priority(&self, id: u64, value: &[u8]) {
        let priority = self.updates.insert(id, value);
        self.quic.set_priority(stream_id(id), transport_priority(priority, id));
    }

    /// Priority of a stream in the transport: `priority`, unless the client has changed it.
    pub(super) fn transport_priority(&self, stream: StreamId, priority: Priority) -> i32 {
        let id = stream.value();
        transport_priority(self.updates.get(id).unwrap_or(priority), id)
    }

    /// Notes that the transport has not taken `now` bytes of a stream, instead of `before`.
    pub(super) fn count_unsent(&self, before: usize, now: usize) {
        self.unsent.set(self.unsent.get() + now - before);
    }

    /// Bytes of the largest piece that a stream makes now.
    pub(super) fn piece_max(&self) -> usize {
        let waiting_max = if memory::is_low() { WAITING_LOW } else { WAITING_MAX };
        waiting_max.saturating_sub(self.unsent.get()).max(PIECE_MIN)
    }

    /// Notes that all of a response was written.
    pub(super) fn note_finished(&self, stream: StreamId) {
        let mut finished = self.finished.borrow_mut();
        while finished.front().is_some_and(|oldest| self.quic.is_finished(*oldest)) {
            finished.pop_front();
        }
        finished.push_back(stream);
    }

    /// Ready when the client has acknowledged all responses.
    pub(super) fn poll_delivered(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut finished = self.finished.borrow_mut();
        while let Some(oldest) = finished.front() {
            if self.quic.poll_finished(*oldest, cx).is_pending() {
                return Poll::Pending;
            }
            finished.pop_front();
        }
        Poll::Ready(())
    }

    /// Forgets a stream that has ended.
    pub(super) fn forget(&self, id: u64) {
        self.updates.forget(id);
    }
}

/// Number of a stream in the transport.
pub(super) fn stream_id(id: u64) -> StreamId {
    StreamId::from_value(id)
}

/// Error of the frames' connection for an end of the transport.
pub(super) fn closed(error: &tw_quic::ConnectionError) -> ConnectionError {
    match error {
        tw_quic::ConnectionError::ClosedByPeer { code, .. } => ConnectionError::Peer(ErrorCode::from(*code)),
        tw_quic::ConnectionError::TimedOut => ConnectionError::TimedOut,
        _ => ConnectionError::Closed,
    }
}
