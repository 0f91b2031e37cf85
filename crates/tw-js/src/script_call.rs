//! One call of a script function: it is sent, its messages are taken one by one, and it is sent again to another process if the first one
//! has ended before the call began.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tw_request::plan::LocalFuture;
use tw_script::{
    ByteBuf, Call, CallId, CallKind, ContextId, Effect, Event, HostMessage, Operation, OperationError,
    Outcome, Overrun, Reply, Snapshot, Token,
};

use crate::call_state::{CallMessage, CallState};
use crate::connection::Connection;
use crate::loop_scripts::LoopScripts;
use crate::script_set::ScriptSet;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Script processes that a call is sent to, one after another, because they have ended before it began.
    const ATTEMPTS_MAX: u32 = 4, count, "the call ends with an error";
}

/// Call of a function.
#[derive(Debug, Clone)]
pub(crate) struct CallOrder {
    pub(crate) set: Arc<ScriptSet>,
    pub(crate) function: Arc<str>,
    pub(crate) kind: CallKind,
    pub(crate) snapshot: Snapshot,
}

/// Contexts of one request: its calls share global variables.
#[derive(Clone)]
pub(crate) struct Contexts {
    pub(crate) connection: Rc<Connection>,
    pub(crate) context: ContextId,
}

/// Next step of a call.
#[derive(Debug)]
pub(crate) enum CallStep {
    Operation(Token, Operation),
    Effect(Effect),
    Handled,
    Done(Outcome),
}

/// Reason why a call ends without a result.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// No process could be had in time.
    NoProcess,
    /// The process was ended by this call, or while it ran.
    Lost(Option<Box<Overrun>>),
    /// The script has sent more than fits.
    Flooded,
    /// Nothing could be sent.
    Send(io::Error),
}

/// A call that runs. Dropping it cancels the call.
pub(crate) struct ScriptCall {
    scripts: Rc<LoopScripts>,
    order: CallOrder,
    contexts: Contexts,
    call: CallId,
    state: Rc<CallState>,
    attempts_left: u32,
    /// Wait for another process, because the first one has ended before the call began.
    restart: Option<LocalFuture<'static, Result<Contexts, CallFailure>>>,
    /// Pieces that were sent before the call began. Another process gets them, too.
    early_events: Vec<Event>,
    is_over: bool,
}

impl ScriptCall {
    /// Sends a call. Without `contexts` it gets those of a new connection.
    pub(crate) async fn start(
        scripts: Rc<LoopScripts>,
        order: CallOrder,
        contexts: Option<Contexts>,
    ) -> Result<Self, CallFailure> {
        let contexts = match contexts.filter(|contexts| !contexts.connection.is_closed()) {
            Some(contexts) => contexts,
            None => Self::new_contexts(scripts.clone()).await?,
        };
        let (call, state) = contexts.connection.begin_call();
        let attempts_left = ATTEMPTS_MAX - 1;
        let started = Self {
            scripts,
            order,
            contexts,
            call,
            state,
            attempts_left,
            restart: None,
            early_events: Vec::new(),
            is_over: false,
        };
        started.send()?;
        Ok(started)
    }

    async fn new_contexts(scripts: Rc<LoopScripts>) -> Result<Contexts, CallFailure> {
        let connection = scripts.connection().await.map_err(|_| CallFailure::NoProcess)?;
        let context = connection.new_context();
        Ok(Contexts { connection, context })
    }

    fn send(&self) -> Result<(), CallFailure> {
        let Contexts { connection, context } = &self.contexts;
        let CallOrder { set, function, kind, snapshot } = &self.order;
        connection.load(set).map_err(CallFailure::Send)?;
        let call = Call {
            call: self.call,
            script: set.id,
            context: *context,
            function: (**function).to_owned(),
            kind: *kind,
            snapshot: snapshot.clone(),
        };
        match connection.send(&HostMessage::Call(Box::new(call))) {
            // The end of the connection is the next message of the call.
            Err(_) if connection.is_closed() => Ok(()),
            sent => sent.map_err(CallFailure::Send),
        }
    }

    /// Connection and context of the call.
    pub(crate) fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Set of scripts of the call.
    pub(crate) fn set(&self) -> &Arc<ScriptSet> {
        &self.order.set
    }

    /// Function that is called.
    pub(crate) fn function(&self) -> &str {
        &self.order.function
    }

    /// Returns true if the next step is there.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.has_message()
    }

    /// Waits for the next step. A dropped future loses none.
    ///
    /// # Errors
    /// The call has ended without a result.
    pub(crate) async fn next(&mut self) -> Result<CallStep, CallFailure> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next step.
    ///
    /// # Errors
    /// The call has ended without a result.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<CallStep, CallFailure>> {
        loop {
            if let Some(restart) = &mut self.restart {
                let contexts = ready!(restart.as_mut().poll(cx)).inspect_err(|_| self.is_over = true);
                self.restart = None;
                self.start_again(contexts?)?;
            }
            match ready!(self.state.poll_next(cx)) {
                CallMessage::Operation(token, operation) => {
                    return Poll::Ready(Ok(CallStep::Operation(token, operation)));
                }
                CallMessage::Effect(effect) => return Poll::Ready(Ok(CallStep::Effect(effect))),
                CallMessage::Handled => return Poll::Ready(Ok(CallStep::Handled)),
                CallMessage::Done(outcome) => {
                    self.is_over = true;
                    return Poll::Ready(Ok(CallStep::Done(outcome)));
                }
                CallMessage::Flooded => {
                    self.is_over = true;
                    return Poll::Ready(Err(CallFailure::Flooded));
                }
                CallMessage::Lost(overrun) => {
                    let is_innocent = overrun.is_none() && !self.state.has_begun.get();
                    if !is_innocent || self.attempts_left == 0 {
                        self.is_over = true;
                        return Poll::Ready(Err(CallFailure::Lost(overrun)));
                    }
                    self.attempts_left -= 1;
                    self.restart = Some(Box::pin(Self::new_contexts(self.scripts.clone())));
                }
            }
        }
    }

    /// Returns true if the last message that has arrived is an operation of this kind. The task is woken when another one arrives.
    pub(crate) fn poll_last(&self, cx: &mut Context<'_>, is_wanted: impl Fn(&Operation) -> bool) -> bool {
        self.state.poll_last(cx, is_wanted)
    }

    /// Takes the last message if it is an operation of this kind.
    pub(crate) fn take_last(&self, is_wanted: impl Fn(&Operation) -> bool) -> Option<(Token, Operation)> {
        self.state.take_last(is_wanted)
    }

    /// Sends the call to another process.
    fn start_again(&mut self, contexts: Contexts) -> Result<(), CallFailure> {
        self.contexts = contexts;
        (self.call, self.state) = self.contexts.connection.begin_call();
        self.send()?;
        for event in std::mem::take(&mut self.early_events) {
            self.send_piece(Event { call: self.call, ..event })?;
        }
        Ok(())
    }

    /// Answers an operation. An error is that of the connection, whose end is the next message.
    pub(crate) fn reply(&self, token: Token, result: Result<Reply, OperationError>) {
        let _ = self.contexts.connection.reply(self.call, token, result);
    }

    /// Sends the next piece of a body or stream.
    pub(crate) fn send_event(
        &mut self,
        data: &[u8],
        is_last: bool,
        from_client: bool,
    ) -> Result<(), CallFailure> {
        self.send_piece(Event { call: self.call, data: ByteBuf::from(data), is_last, from_client })
    }

    fn send_piece(&mut self, event: Event) -> Result<(), CallFailure> {
        let has_begun = self.state.has_begun.get();
        let message = HostMessage::Event(event);
        let sent = self.contexts.connection.send(&message);
        match message {
            HostMessage::Event(event) if !has_begun => self.early_events.push(event),
            _ => self.early_events.clear(),
        }
        match sent {
            Err(_) if self.contexts.connection.is_closed() => Ok(()),
            sent => sent.map_err(CallFailure::Send),
        }
    }
}

impl Drop for ScriptCall {
    fn drop(&mut self) {
        if !self.is_over {
            let connection = &self.contexts.connection;
            connection.end_call(self.call);
            // The process may be gone.
            let _ = connection.send(&HostMessage::Cancel { call: self.call });
        }
    }
}
