//! The socket of one loop, as scripts use it: messages out, and the wait for an answer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tw_script::{
    CallId, FrameError, FrameReader, HostMessage, OperationError, ProcessMessage, Reply, Token, encode,
};
use tw_sys::cpu_limit::{hold, while_writing};

/// Bytes that are collected before they are written although a callback still runs.
const FLUSH_SIZE: usize = 64 << 10;
/// Time after which messages leave although others could join them.
const HOLD_MAX: Duration = Duration::from_micros(100);
/// Bytes of one read.
const READ_SIZE: usize = 64 << 10;

/// The way of a context to its host.
pub(crate) trait Link {
    /// Sends a message, at the latest when the callback has returned.
    fn send(&self, message: &ProcessMessage) -> Result<(), FrameError>;
    /// Socket for the last words of the process.
    fn overrun_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Waits for the answer to an operation.
    fn wait(&self, call: CallId, token: Token) -> Result<Reply, OperationError>;
    /// A number for an operation that none has had.
    fn next_token(&self) -> Token;
}

/// The socket of one loop.
pub(crate) struct SocketLink {
    socket: OwnedFd,
    reader: RefCell<FrameReader>,
    /// Messages that arrived while a script was waiting for an answer.
    inbox: RefCell<VecDeque<HostMessage>>,
    outbox: RefCell<Vec<u8>>,
    /// Time of the first message that is held in the outbox.
    held_since: Cell<Option<Instant>>,
    buffer: RefCell<Vec<u8>>,
    next_token: Cell<Token>,
    is_closed: Cell<bool>,
}

impl SocketLink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            reader: RefCell::default(),
            inbox: RefCell::default(),
            outbox: RefCell::default(),
            held_since: Cell::new(None),
            buffer: RefCell::new(vec![0; READ_SIZE]),
            next_token: Cell::new(1),
            is_closed: Cell::new(false),
        }
    }

    /// Set if the host has closed its end, or has sent something that is no message.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the next message that has arrived.
    pub(crate) fn next_message(&self) -> Option<HostMessage> {
        self.inbox.borrow_mut().pop_front()
    }

    /// Reads what has arrived; waits if nothing has.
    pub(crate) fn receive(&self) {
        let mut bytes = self.buffer.borrow_mut();
        match rustix::net::recv(&self.socket, bytes.as_mut_slice(), RecvFlags::empty()) {
            Ok((0, _)) => self.is_closed.set(true),
            Ok((size, _)) => self.take(bytes.get(..size).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(_) => self.is_closed.set(true),
        }
    }

    fn take(&self, bytes: &[u8]) {
        let mut reader = self.reader.borrow_mut();
        reader.push(bytes);
        loop {
            match reader.next_message() {
                Ok(Some(message)) => self.inbox.borrow_mut().push_back(message),
                Ok(None) => return,
                Err(_) => return self.is_closed.set(true),
            }
        }
    }

    /// Writes everything that was sent.
    pub(crate) fn flush(&self) {
        let mut outbox = self.outbox.borrow_mut();
        if outbox.is_empty() {
            return;
        }
        while_writing(|sent| self.write(outbox.get(sent..).unwrap_or_default()));
        outbox.clear();
        outbox.shrink_to(FLUSH_SIZE);
        self.held_since.set(None);
    }

    /// Writes what was sent, unless another message waits to be served: then its answer may leave together with these. They leave
    /// earlier if that takes long, and also if it ends the process.
    pub(crate) fn flush_with_others(&self) {
        if self.inbox.borrow().is_empty() || self.outbox.borrow().is_empty() {
            return self.flush();
        }
        let now = Instant::now();
        let since = self.held_since.get().unwrap_or(now);
        self.held_since.set(Some(since));
        if now.saturating_duration_since(since) > HOLD_MAX || !hold(&self.outbox.borrow()) {
            self.flush();
        }
    }

    fn write(&self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_closed.get() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(size) => rest = rest.get(size..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(_) => self.is_closed.set(true),
            }
        }
    }

    /// Takes the answer to an operation out of the inbox.
    fn answer(&self, call: CallId, token: Token) -> Option<Result<Reply, OperationError>> {
        let mut inbox = self.inbox.borrow_mut();
        let place = inbox.iter().position(|message| match message {
            HostMessage::Reply { token: answered, .. } => *answered == token,
            HostMessage::Cancel { call: cancelled } => *cancelled == call,
            _ => false,
        })?;
        if matches!(inbox.get(place), Some(HostMessage::Cancel { .. })) {
            // The message stays, so that the call is ended afterwards.
            return Some(Err(OperationError::Error("the request has ended".to_owned())));
        }
        match inbox.remove(place) {
            Some(HostMessage::Reply { result, .. }) => Some(result),
            _ => None,
        }
    }
}

impl Link for SocketLink {
    fn overrun_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn send(&self, message: &ProcessMessage) -> Result<(), FrameError> {
        encode(message, &mut self.outbox.borrow_mut())?;
        if self.outbox.borrow().len() > FLUSH_SIZE {
            self.flush();
        }
        Ok(())
    }

    fn wait(&self, call: CallId, token: Token) -> Result<Reply, OperationError> {
        self.flush();
        loop {
            if let Some(result) = self.answer(call, token) {
                return result;
            }
            if self.is_closed.get() {
                return Err(OperationError::Error("the server has closed the connection".to_owned()));
            }
            self.receive();
        }
    }

    fn next_token(&self) -> Token {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        token
    }
}
