//! One end of a connection, driven by its owner.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::Waker;

use tw_fields::{FieldSection, FieldWriter, TaskWaker};

use crate::ErrorCode;
use crate::config::Config;
use crate::entry::ReceiveState;
use crate::error::{ConnectionError, StreamError};
use crate::settings::End;
use crate::state::{PendingEvent, Shutdown, State};
use crate::stream::{self, Stream};

/// One end of a connection.
///
/// The owner passes received bytes to [`receive`](Self::receive), writes output with [`write`](Self::write), and is
/// woken by streams in between ([`set_driver`](Self::set_driver)).
pub struct Connection(Rc<Shared>);

/// State that a connection shares with its streams.
pub(crate) struct Shared {
    pub(crate) state: RefCell<State>,
    driver: TaskWaker,
}

/// Events that concern the whole connection or a new stream.
pub enum Event {
    /// A stream begins with a request, which may be malformed ([`FieldSection::malformed`]) or not complete ([`FieldSection::is_truncated`]).
    Request(Stream, FieldSection),
    /// The client canceled a request (`RST_STREAM`) before [`Connection::next`] returned it.
    RequestCanceled,
    /// A stream's new priority (RFC 9218 section 7.1), as in the field `Priority`.
    Priority {
        /// Number of the stream, which need not be open yet.
        stream: u32,
        /// At most 64 bytes.
        value: Box<[u8]>,
    },
}

impl Shared {
    /// Changes the connection on behalf of a stream, and wakes the driver if there is something to do.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let sizes = |state: &State| (state.out.len(), state.streams.len(), state.unwanted.len());
        let before = sizes(&state);
        let changed = change(&mut state);
        let has_changed = before != sizes(&state);
        drop(state);
        if has_changed {
            self.driver.wake();
        }
        changed
    }
}

impl Connection {
    /// Creates the server's end. Its first frames are ready to be written.
    pub fn server(config: Config) -> Self {
        Self::new(End::Server, config)
    }

    /// Creates the client's end. Its first frames are ready to be written.
    pub fn client(config: Config) -> Self {
        Self::new(End::Client, config)
    }

    fn new(end: End, config: Config) -> Self {
        let state = RefCell::new(State::new(end, config));
        Self(Rc::new(Shared { state, driver: TaskWaker::default() }))
    }

    /// Processes received bytes, split at any position.
    ///
    /// # Errors
    /// The connection has failed: its streams get the error, and a `GOAWAY` for the peer may be left to be
    /// [written](Self::write).
    pub fn receive(&self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut state = self.0.state.borrow_mut();
        if let Some(connection_error) = state.connection_error {
            return Err(connection_error);
        }
        let received = state.receive(bytes);
        received.inspect_err(|connection_error| state.break_off(*connection_error))
    }

    /// Fails the connection after an error of the transport or the end of input. Its streams get the error.
    pub fn fail(&self, connection_error: ConnectionError) {
        self.0.state.borrow_mut().break_off(connection_error);
    }

    /// Returns the next event of the connection.
    pub fn next(&self) -> Option<Event> {
        let events = self.0.state.borrow_mut().events.pop_front()?;
        Some(match events {
            PendingEvent::Priority { stream, value } => Event::Priority { stream, value },
            PendingEvent::Request(entry, list) => match entry.error.get() {
                Some(StreamError::Reset(_)) => Event::RequestCanceled,
                _ => Event::Request(Stream::new(&self.0, entry), list),
            },
        })
    }

    /// Opens a stream with a request. `write` appends the fields; `ends` tells that no body follows.
    ///
    /// # Errors
    /// No stream can be opened, or not now.
    pub fn send_request(
        &self,
        write: impl FnOnce(&mut FieldWriter<'_>),
        ends: bool,
    ) -> Result<Stream, StreamError> {
        stream::packed(write, |block| {
            self.0.change(|state| {
                let id = state.next_id()?;
                let entry = state.begin(id);
                entry.outgoing.set(ReceiveState::Body);
                state.send_block(&entry, block, ends);
                Ok(entry)
            })
        })
        .map(|entry| Stream::new(&self.0, entry))
    }

    /// Largest number of streams that the peer allows at once.
    pub fn streams_max(&self) -> usize {
        self.0.state.borrow().peer.streams_max as usize
    }

    /// Number of streams that are open in at least one direction.
    pub fn streams(&self) -> usize {
        self.0.state.borrow().streams.len()
    }

    /// Returns true while the peer may begin streams: neither end has sent `GOAWAY`.
    pub fn is_open(&self) -> bool {
        self.0.state.borrow().is_open()
    }

    /// Returns true if nothing is left to do except to [write](Self::write) pending output.
    pub fn is_over(&self) -> bool {
        self.0.state.borrow().is_over()
    }

    /// Error code of the `GOAWAY` that the peer has sent.
    pub fn received_goaway(&self) -> Option<ErrorCode> {
        self.0.state.borrow().goaway_code
    }

    /// Sends `GOAWAY`. Open streams go on; a client gets two, so that no request in transit is lost (RFC 9113 section
    /// 6.8).
    pub fn send_goaway(&self) {
        self.0.change(State::leave);
    }

    /// Closes the connection and all its streams at once.
    pub fn close(&self, reason: ErrorCode) {
        self.0.change(|state| {
            state.shutdown = Shutdown::Settled;
            state.break_off(ConnectionError::Local(reason, ""));
        });
    }

    /// Number of received bytes of field blocks and data, without what frames take.
    pub fn payload_bytes(&self) -> u64 {
        self.0.state.borrow().payload_bytes
    }

    /// Number of bytes that are to be written.
    pub fn out_len(&self) -> usize {
        self.0.state.borrow().out.len()
    }

    /// Calls `write` with the next output, and removes the number of bytes that it returns. `write` must not use the
    /// connection.
    ///
    /// # Errors
    /// Fails with the errors of `write`.
    pub fn write(&self, write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<usize> {
        let mut state = self.0.state.borrow_mut();
        let was_full = state.out.len() >= state.config.out_max;
        let taken = state.out.write(write)?;
        if was_full && state.out.len() < state.config.out_max {
            state.feed();
        }
        Ok(taken)
    }

    /// Returns true if there are streams with a complete response whose requests have not ended.
    pub fn has_unwanted(&self) -> bool {
        !self.0.state.borrow().unwanted.is_empty()
    }

    /// Resets these streams if all output was written; those whose requests have ended meanwhile need none. Clients that receive a reset
    /// together with the response before it may discard that response.
    pub fn reset_unwanted(&self) {
        self.0.state.borrow_mut().reset_unwanted();
    }

    /// Frees unused memory of an idle connection.
    pub fn shrink(&self) {
        self.0.state.borrow_mut().shrink();
    }

    /// Sets the waker that streams wake, once, when there may be output or a stream has ended. `None` while the
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
