//! One end of a connection, driven by its owner.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use bytes::Bytes;
use tw_fields::{FieldSection, FieldWriter, TaskWaker, encode_section};

use crate::ErrorCode;
use crate::config::Config;
use crate::entry::ReceiveState;
use crate::error::{ConnectionError, StreamError};
use crate::qpack::FIELD_CODING;
use crate::settings::End;
use crate::state::{PendingEvent, Protocol, State};
use crate::stream::Stream;
use crate::transport::{LocalStream, Signal};

/// One end of a connection.
///
/// The owner passes received bytes of QUIC streams to [`receive`](Self::receive), writes the bytes of this end's unidirectional
/// streams ([`write`](Self::write)) and of request streams ([`Stream::output`]), and carries out [signals](Self::next_signal).
/// Streams wake it in between ([`set_driver`](Self::set_driver)).
pub struct Connection(Rc<Shared>);

/// State that a connection shares with its streams.
pub(crate) struct Shared {
    state: RefCell<State>,
    driver: TaskWaker,
}

/// Events that concern the whole connection or a new stream.
pub enum Event {
    /// A stream begins with a request, which may be malformed ([`FieldSection::malformed`]) or not complete ([`FieldSection::is_truncated`]).
    Request(Stream, FieldSection),
    /// A stream of HTTP/0.9 begins with this request line, its end included unless it is too long.
    RequestLine(Stream, Bytes),
    /// The client canceled a request before [`Connection::next`] returned it.
    RequestCanceled,
    /// A stream's new priority (RFC 9218 section 7.2), as in the field `Priority`.
    Priority {
        /// Number of the stream, which need not be open yet.
        stream: u64,
        /// At most 64 bytes.
        value: Box<[u8]>,
    },
}

impl Shared {
    /// Changes the connection on behalf of a stream, and wakes the driver if there is something to do.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let size = |state: &State| {
            let out = state.out_len(LocalStream::Control) + state.out_len(LocalStream::QpackDecoder);
            (state.signals.len(), state.streams.len(), out, state.connection_error.is_some())
        };
        let before = size(&state);
        let changed = change(&mut state);
        let has_changed = before != size(&state);
        drop(state);
        if has_changed {
            self.driver.wake();
        }
        changed
    }

    pub(crate) fn connection_error(&self) -> Option<ConnectionError> {
        self.state.borrow().connection_error
    }
}

impl Connection {
    /// Creates the server's end. Its first bytes are ready to be written.
    #[must_use]
    pub fn server(config: Config) -> Self {
        Self::new(End::Server, Protocol::Http3, config)
    }

    /// Creates the server's end of a connection of HTTP/0.9 (ALPN `hq-interop`), whose request lines are at most
    /// [`Config::list_max`] bytes long. It writes to request streams only: the heads of responses are left out, and bodies are
    /// sent as they are.
    #[must_use]
    pub fn hq_server(config: Config) -> Self {
        Self::new(End::Server, Protocol::Hq, config)
    }

    /// Creates the client's end. Its first bytes are ready to be written.
    #[must_use]
    pub fn client(config: Config) -> Self {
        Self::new(End::Client, Protocol::Http3, config)
    }

    fn new(end: End, protocol: Protocol, config: Config) -> Self {
        let state = RefCell::new(State::new(end, protocol, config));
        Self(Rc::new(Shared { state, driver: TaskWaker::default() }))
    }

    /// Changes the state unless the connection has failed; an error fails it. Streams call this too, so the driver is woken.
    fn process(
        &self,
        change: impl FnOnce(&mut State) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        self.0.change(|state| {
            if let Some(connection_error) = state.connection_error {
                return Err(connection_error);
            }
            let changed = change(state);
            changed.inspect_err(|connection_error| state.break_off(*connection_error))
        })
    }

    /// Processes received bytes of a stream, split at any position; `fin` tells that the stream ends with them.
    ///
    /// Of a request stream, the owner reads until the request is an [event](Self::next), and then whenever the stream
    /// [wants bytes](Stream::wants_bytes).
    ///
    /// # Errors
    /// The connection has failed: its streams get the error, and the owner closes the transport with the error's code.
    pub fn receive(&self, stream: u64, bytes: Bytes, fin: bool) -> Result<(), ConnectionError> {
        self.process(|state| state.receive(stream, bytes, fin))
    }

    /// Returns true if bytes of a stream are needed on which no request is an [event](Self::next) yet.
    pub fn wants_bytes(&self, stream: u64) -> bool {
        let state = self.0.state.borrow();
        state.connection_error.is_none()
            && state.streams.get(&stream).is_none_or(|entry| {
                entry.incoming.get() == ReceiveState::Head && !entry.has_fin.get() && !entry.is_blocked()
            })
    }

    /// Returns true if a header section of the stream waits for insertions into the dynamic table.
    pub fn is_blocked(&self, stream: u64) -> bool {
        self.0.state.borrow().streams.get(&stream).is_some_and(|entry| entry.is_blocked())
    }

    /// Processes `RESET_STREAM` of the peer.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_reset(&self, stream: u64, code: ErrorCode) -> Result<(), ConnectionError> {
        self.process(|state| state.receive_reset(stream, code))
    }

    /// Processes `STOP_SENDING` of the peer for a request stream.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_stop_sending(&self, stream: u64, code: ErrorCode) -> Result<(), ConnectionError> {
        self.process(|state| state.on_reset(stream, code, true))
    }

    /// Processes `STOP_SENDING` of the peer for a stream of this end, which the connection cannot go on without.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn local_stream_stopped(&self) -> Result<(), ConnectionError> {
        self.process(|_| {
            Err(ConnectionError::Local(ErrorCode::CLOSED_CRITICAL_STREAM, "stopped critical stream"))
        })
    }

    /// Resets a stream on which no request has become an [event](Self::next).
    pub fn reset_stream(&self, stream: u64, code: ErrorCode) {
        self.0.change(|state| {
            if let Some(entry) = state.streams.get(&stream).cloned() {
                state.reset(&entry, code);
            }
        });
    }

    /// Fails the connection, which has ended or cannot go on. Its streams get the error.
    pub fn fail(&self, connection_error: ConnectionError) {
        self.0.state.borrow_mut().break_off(connection_error);
    }

    /// Returns the next event of the connection.
    pub fn next(&self) -> Option<Event> {
        let mut state = self.0.state.borrow_mut();
        Some(match state.events.pop_front()? {
            PendingEvent::Priority { stream, value } => Event::Priority { stream, value },
            PendingEvent::Canceled => Event::RequestCanceled,
            PendingEvent::Request(entry, _) | PendingEvent::RequestLine(entry, _)
                if entry.error.get().is_some() =>
            {
                Event::RequestCanceled
            }
            PendingEvent::RequestLine(entry, line) => {
                state.unseen = 0;
                drop(state);
                Event::RequestLine(Stream::new(&self.0, entry), line)
            }
            PendingEvent::Request(entry, mut list) => {
                state.unseen = 0;
                // The end of a stream often arrives right behind the head.
                if entry.has_ended() && !list.ends() {
                    list.set_ends();
                    entry.message.set_length(None);
                    entry.close_incoming();
                    state.settle(&entry);
                }
                drop(state);
                Event::Request(Stream::new(&self.0, entry), list)
            }
        })
    }

    /// Returns the next frame of QUIC that the transport has to send. The transport may have forgotten the stream.
    pub fn next_signal(&self) -> Option<Signal> {
        self.0.state.borrow_mut().signals.pop_front()
    }

    /// Calls `write` with the next bytes of a stream of this end, if there are any, and removes the number of bytes that it
    /// returns. `write` must not use the connection.
    pub fn write(&self, stream: LocalStream, write: impl FnOnce(&[u8]) -> usize) {
        self.0.state.borrow_mut().write(stream, write);
    }

    /// Number of bytes of a stream of this end that are to be written.
    pub fn out_len(&self, stream: LocalStream) -> usize {
        self.0.state.borrow().out_len(stream)
    }

    /// Begins a request on a stream that the owner has opened. `write` appends the fields; `ends` tells that no body follows.
    ///
    /// # Errors
    /// No request can be sent.
    pub fn send_request(
        &self,
        stream: u64,
        write: impl FnOnce(&mut FieldWriter<'_>),
        ends: bool,
    ) -> Result<Stream, StreamError> {
        let sent = encode_section(&FIELD_CODING, write, |block| {
            self.0.change(|state| {
                state.check_open()?;
                let entry = state.begin(stream);
                state.send_block(&entry, block, ends);
                Ok(entry)
            })
        });
        sent.map(|entry| Stream::new(&self.0, entry))
    }

    /// Returns true if the peer has announced the extended CONNECT method (RFC 9220).
    pub fn has_connect_protocol(&self) -> bool {
        self.0.state.borrow().peer.is_some_and(|peer| peer.has_connect_protocol)
    }

    /// Largest field section that the peer accepts, in bytes, once it has said so.
    pub fn peer_list_max(&self) -> Option<u64> {
        self.0.state.borrow().peer.map(|peer| peer.list_max)
    }

    /// Number of request streams that are open in at least one direction.
    pub fn streams(&self) -> usize {
        self.0.state.borrow().streams.len()
    }

    /// Returns true while requests may begin: no `GOAWAY` was sent, and a client has received none.
    pub fn is_open(&self) -> bool {
        self.0.state.borrow().is_open()
    }

    /// Returns true if no request is left and none can begin, or if the connection has failed.
    pub fn is_over(&self) -> bool {
        self.0.state.borrow().is_over()
    }

    /// Error that has ended the connection.
    pub fn error(&self) -> Option<ConnectionError> {
        self.0.connection_error()
    }

    /// Sends a first `GOAWAY`: the client begins no more requests, and those in transit are still processed (RFC 9114 section
    /// 5.2).
    pub fn send_goaway(&self) {
        self.0.change(|state| state.send_goaway(false));
    }

    /// Sends the last `GOAWAY`: requests that have not arrived by now are rejected.
    pub fn settle_goaway(&self) {
        self.0.change(|state| state.send_goaway(true));
    }

    /// Number of received bytes of field sections and content, without what frames take.
    pub fn payload_bytes(&self) -> u64 {
        self.0.state.borrow().payload_bytes
    }

    /// Frees unused memory of an idle connection.
    pub fn shrink(&self) {
        self.0.state.borrow_mut().shrink();
    }

    /// Sets the waker that streams wake, once, when there may be bytes or signals, or a stream has ended. `None` while the
    /// connection is being driven.
    pub fn set_driver(&self, driver: Option<&Waker>) {
        self.0.driver.set(driver);
    }
}

impl Drop for Connection {
    /// Fails the remaining streams.
    fn drop(&mut self) {
        self.fail(ConnectionError::Closed);
    }
}
