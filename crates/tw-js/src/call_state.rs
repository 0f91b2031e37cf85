//! A call on a connection to a script process: the messages about it that the server has not handled.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use tw_script::{Effect, FileCommand, Operation, Outcome, Overrun, Token};

/// Cost of a message in a queue beside its bytes.
const MESSAGE_COST: usize = 128;

/// Message of a process about one call.
#[derive(Debug)]
pub(crate) enum CallMessage {
    Operation(Token, Operation),
    Effect(Effect),
    Handled,
    Done(Outcome),
    /// The process has ended. With its last words, if they are about this call.
    Lost(Option<Box<Overrun>>),
    /// The queue was full.
    Flooded,
}

/// A call on a connection.
#[derive(Default)]
pub(crate) struct CallState {
    queue: RefCell<VecDeque<CallMessage>>,
    pub(crate) queued_size: Cell<usize>,
    waker: Cell<Option<Waker>>,
    /// Operations that the server has not answered.
    pub(crate) unanswered_count: Cell<usize>,
    /// True once a message of it has arrived.
    pub(crate) has_begun: Cell<bool>,
}

impl CallState {
    /// Adds a message that has arrived.
    pub(crate) fn push(&self, message: CallMessage) {
        let size = MESSAGE_COST + size_of_message(&message);
        self.queued_size.set(self.queued_size.get() + size);
        self.queue.borrow_mut().push_back(message);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Returns true if a message has arrived that was not taken.
    pub(crate) fn has_message(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Returns true if the last message is an operation of this kind: the process waits for its answer if no other message can follow it.
    pub(crate) fn poll_last(&self, cx: &mut Context<'_>, is_wanted: impl Fn(&Operation) -> bool) -> bool {
        self.waker.set(Some(cx.waker().clone()));
        matches!(self.queue.borrow().back(), Some(CallMessage::Operation(_, operation)) if is_wanted(operation))
    }

    /// Takes the last message if it is an operation of this kind.
    pub(crate) fn take_last(&self, is_wanted: impl Fn(&Operation) -> bool) -> Option<(Token, Operation)> {
        let mut queue = self.queue.borrow_mut();
        let is_operation =
            matches!(queue.back(), Some(CallMessage::Operation(_, operation)) if is_wanted(operation));
        if !is_operation {
            return None;
        }
        let message = queue.pop_back()?;
        self.note_taken(&message);
        match message {
            CallMessage::Operation(token, operation) => Some((token, operation)),
            _ => None,
        }
    }

    fn note_taken(&self, message: &CallMessage) {
        let size = MESSAGE_COST + size_of_message(message);
        self.queued_size.set(self.queued_size.get().saturating_sub(size));
    }

    /// The next message.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<CallMessage> {
        match self.queue.borrow_mut().pop_front() {
            Some(message) => {
                self.note_taken(&message);
                Poll::Ready(message)
            }
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// Bytes of the parts of a message that may be large.
fn size_of_message(message: &CallMessage) -> usize {
    match message {
        CallMessage::Effect(
            Effect::Send { data } | Effect::SendBuffer { data, .. } | Effect::StreamSend { data, .. },
        ) => data.len(),
        CallMessage::Effect(Effect::Log { message, .. }) => message.len(),
        CallMessage::Effect(Effect::Return { text, .. }) => text.as_ref().map_or(0, |text| text.len()),
        CallMessage::Operation(_, operation) => match operation {
            Operation::SetVariable { value, .. } => value.len(),
            Operation::Fetch(request) => request.body.as_ref().map_or(0, |body| body.len()),
            Operation::Subrequest { body, .. } => body.as_ref().map_or(0, |body| body.len()),
            Operation::File(FileCommand::Write { data, .. } | FileCommand::WriteAt { data, .. }) => {
                data.len()
            }
            _ => 0,
        },
        CallMessage::Effect(_)
        | CallMessage::Handled
        | CallMessage::Done(_)
        | CallMessage::Lost(_)
        | CallMessage::Flooded => 0,
    }
}
