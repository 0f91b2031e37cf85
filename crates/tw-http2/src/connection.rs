//! One end of a connection, as its owner drives it: bytes come and go, streams begin, and it ends.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::Waker;

use crate::ErrorCode;
use crate::config::Config;
use crate::entry::Half;
use crate::error::{ConnectionError, StreamError};
use crate::field_section::{FieldSection, FieldWriter};
use crate::settings::End;
use crate::state::{Going, PendingEvent, State};
use crate::stream::{self, Stream};

/// One end of a connection.
///
/// Whoever owns it gives it what has come ([`receive`](Self::receive)), has what is to be written taken ([`write`](Self::write)), and is
/// called by its streams in between ([`set_driver`](Self::set_driver)).
pub struct Connection(Rc<Shared>);

/// State that a connection shares with its streams.
pub(crate) struct Shared {
    pub(crate) state: RefCell<State>,
    driver: RefCell<Option<Waker>>,
}

/// Events that concern the whole connection or a new stream.
pub enum Event {
    /// A stream begins with a request, which may be malformed ([`FieldSection::malformed`]) or not complete ([`FieldSection::is_truncated`]).
    Request(Stream, FieldSection),
    /// A request was taken back before anybody has looked at it.
    RequestCanceled,
    /// A stream's new priority (RFC 9218 section 7.1), as in the field `Priority`.
    Priority {
        /// The stream, be it that it has not begun.
        stream: u32,
        /// At most 64 bytes.
        value: Box<[u8]>,
    },
}

impl Shared {
    /// Changes the connection, for somebody who does not drive it. Who does is woken if there is something to do.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let before = (state.out.len(), state.streams.len());
        let changed = change(&mut state);
        let has_changed = before != (state.out.len(), state.streams.len());
        drop(state);
        if has_changed && let Some(driver) = self.driver.take() {
            driver.wake();
        }
        changed
    }
}

impl Connection {
    /// The end of a server, whose client has said nothing yet. What it says first is there to be written.
    pub fn server(config: Config) -> Self {
        Self::new(End::Server, config)
    }

    /// The end of a client. What it says first is there to be written.
    pub fn client(config: Config) -> Self {
        Self::new(End::Client, config)
    }

    fn new(end: End, config: Config) -> Self {
        let state = RefCell::new(State::new(end, config));
        Self(Rc::new(Shared { state, driver: RefCell::default() }))
    }

    /// Takes bytes of the peer, however they are cut.
    ///
    /// # Errors
    /// The connection is broken: its streams know, and the peer is told if something is to be [written](Self::write) still.
    pub fn receive(&self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut state = self.0.state.borrow_mut();
        if let Some(connection_error) = state.connection_error {
            return Err(connection_error);
        }
        let received = state.receive(bytes);
        received.inspect_err(|connection_error| state.break_off(*connection_error))
    }

    /// The connection has failed, or its peer has closed it: its streams learn it.
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

    /// Begins a request, with the fields that `write` says; it ends with them or does not.
    ///
    /// # Errors
    /// No more can be begun, or not now.
    pub fn send_request(
        &self,
        write: impl FnOnce(&mut FieldWriter<'_>),
        ends: bool,
    ) -> Result<Stream, StreamError> {
        stream::packed(write, |block| {
            self.0.change(|state| {
                let id = state.next_id()?;
                let entry = state.begin(id);
                entry.outgoing.set(Half::Body);
                state.send_block(&entry, block, ends);
                Ok(entry)
            })
        })
        .map(|entry| Stream::new(&self.0, entry))
    }

    /// Streams that the peer lets this end have at once.
    pub fn streams_max(&self) -> usize {
        self.0.state.borrow().peer.streams_max as usize
    }

    /// Streams that are open in one direction at least.
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

    /// Why the peer leaves, if it has said that it does.
    pub fn received_goaway(&self) -> Option<ErrorCode> {
        self.0.state.borrow().left
    }

    /// Tells the peer to begin no more streams. What it has begun goes on; a client is told twice, so that nothing is lost that was on
    /// its way (RFC 9113 section 6.8).
    pub fn send_goaway(&self) {
        self.0.change(State::leave);
    }

    /// Ends it now, and all its streams.
    pub fn close(&self, reason: ErrorCode) {
        self.0.change(|state| {
            state.going = Going::Settled;
            state.break_off(ConnectionError::Local(reason, ""));
        });
    }

    /// Bytes of heads and data that came so far, as they were packed and without what frames take.
    pub fn payload_bytes(&self) -> u64 {
        self.0.state.borrow().payload_bytes
    }

    /// Bytes that are to be written.
    pub fn out_len(&self) -> usize {
        self.0.state.borrow().out.len()
    }

    /// Has `write` take the beginning of what is to be written, and says how much that took. It must not use the connection.
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

    /// Gives back the memory that nothing is in: for a connection that rests.
    pub fn shrink(&self) {
        self.0.state.borrow_mut().shrink();
    }

    /// Whom streams wake when there may be something to be written, or one has ended: once. Nobody need be woken while it is driven.
    pub fn set_driver(&self, driver: Option<&Waker>) {
        let mut place = self.0.driver.borrow_mut();
        match (&mut *place, driver) {
            (Some(old), Some(driver)) => old.clone_from(driver),
            (place, driver) => *place = driver.cloned(),
        }
    }
}

impl Drop for Connection {
    /// Streams that are left know that nobody drives it any more.
    fn drop(&mut self) {
        self.fail(ConnectionError::Closed);
    }
}
