//! Connection of a loop to a script process: messages out, messages in, and the calls that they belong to.
//!
//! ```text
//! ScriptCall ─ send ─► buffer ─► socket          socket ─► frames ─► queue of each call ─► ScriptCall
//! ```
//! The process may be under an attacker's control: a message that is none ends the connection, one that names no call is ignored, and the
//! queue of each call is bounded. When the connection ends, every call on it is told.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tw_rt::watch::Subject;
use tw_rt::{FirstBytes, Socket};
use tw_script::{
    CallId, ContextId, Effect, FrameReader, HostMessage, LoadError, Operation, OperationError, Overrun,
    PROTOCOL, ProcessMessage, Reply, ScriptId, Token,
};

use crate::call_report;
use crate::call_state::{CallMessage, CallState};
use crate::loaded_scripts::{LoadedScripts, ScriptOperation};
use crate::outgoing::Outgoing;
use crate::process_links::{self, ScriptLink};
use crate::script_set::ScriptSet;
use crate::silence::{Silence, Woken, probe_messages};

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Bytes of messages of one call that the server has not handled yet.
    pub(crate) const CALL_QUEUE_MAX: usize = 64 << 20, bytes, "the call ends with an error";
    /// Bytes of messages to a script process that it has not taken yet.
    pub(crate) const BACKLOG_MAX: usize = 128 << 20, bytes, "further calls end with an error";
    /// Operations outside of calls of one script process that run at once; it waits for each of them.
    const SCRIPT_OPERATIONS_MAX: usize = 16, count, "the process is killed, and another one is started";
}

/// Bytes of one read.
const READ_SIZE: usize = 64 << 10;
/// Bytes that are read before other tasks have their turn.
const TURN_SIZE: usize = 512 << 10;
/// Connection to one process.
pub(crate) struct Connection {
    /// Number of the set of processes.
    pub(crate) process_set: u64,
    pub(crate) pid: u32,
    worker: usize,
    socket: Socket,
    outgoing: RefCell<Outgoing>,
    calls: RefCell<HashMap<CallId, Rc<CallState>>>,
    scripts: LoadedScripts,
    last_call: Cell<CallId>,
    last_context: Cell<ContextId>,
    /// Operations of calls that the server has not answered. The process may wait for one of them.
    unanswered_count: Cell<usize>,
    /// Operations of scripts outside of calls that the server has not answered.
    script_operation_count: Cell<usize>,
    is_closed: Cell<bool>,
    /// True once another process is used for new calls.
    is_retired: Cell<bool>,
    /// Waker of the task that reads and writes.
    task: Cell<Option<Waker>>,
}

impl Connection {
    /// Connection of the loop `worker` over a link.
    pub(crate) fn new(link: ScriptLink, worker: usize) -> Rc<Self> {
        Rc::new(Self {
            process_set: link.set,
            pid: link.pid,
            worker,
            socket: Socket::unix(link.socket, FirstBytes::Later),
            outgoing: RefCell::default(),
            calls: RefCell::default(),
            scripts: LoadedScripts::default(),
            last_call: Cell::new(0),
            last_context: Cell::new(0),
            unanswered_count: Cell::new(0),
            script_operation_count: Cell::new(0),
            is_closed: Cell::new(false),
            is_retired: Cell::new(false),
            task: Cell::new(None),
        })
    }

    /// Number of calls that are running.
    pub(crate) fn call_count(&self) -> usize {
        self.calls.borrow().len()
    }

    /// Returns true once the process is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Returns true if the process has calls and waits for no answer of the server.
    fn owes_something(&self) -> bool {
        self.call_count() > 0 && self.script_operation_count.get() == 0 && self.unanswered_count.get() == 0
    }

    /// Closes the connection as soon as it has no call.
    pub(crate) fn retire(&self) {
        self.is_retired.set(true);
        self.wake_task();
    }

    /// Number for the contexts of one request.
    pub(crate) fn new_context(&self) -> ContextId {
        self.last_context.set(self.last_context.get() + 1);
        self.last_context.get()
    }

    /// Begins a call and returns its number.
    pub(crate) fn begin_call(&self) -> (CallId, Rc<CallState>) {
        self.last_call.set(self.last_call.get() + 1);
        let call = self.last_call.get();
        let state = Rc::new(CallState::default());
        let mut calls = self.calls.borrow_mut();
        calls.insert(call, state.clone());
        if calls.len() == 1 {
            // The task has to watch the process from now on.
            self.wake_task();
        }
        (call, state)
    }

    /// Forgets a call. Messages of it that still arrive are ignored.
    pub(crate) fn end_call(&self, call: CallId) {
        let mut calls = self.calls.borrow_mut();
        if let Some(state) = calls.remove(&call) {
            self.unanswered_count.set(self.unanswered_count.get() - state.unanswered_count.get());
        }
        if calls.is_empty() && self.is_retired.get() {
            self.wake_task();
        }
    }

    /// Loads a set of scripts, unless that was done, and frees those of configurations that are gone.
    pub(crate) fn load(&self, set: &Arc<ScriptSet>) -> io::Result<()> {
        for script in self.scripts.remove_unused() {
            self.send(&HostMessage::Unload { script })?;
        }
        if !self.scripts.insert(set) {
            return Ok(());
        }
        self.send(&HostMessage::Load(Box::new(set.load(self.worker))))
    }

    /// Reason why a set cannot be used, if that is known.
    pub(crate) fn load_error(&self, script: ScriptId) -> Option<LoadError> {
        self.scripts.load_error(script)
    }

    /// Sends a message. The task of the connection writes it together with those that other tasks send in the same turn.
    ///
    /// # Errors
    /// The connection is closed, or the message or the backlog is too large.
    pub(crate) fn send(&self, message: &HostMessage) -> io::Result<()> {
        self.enqueue(message)?;
        self.wake_task();
        Ok(())
    }

    /// Sends a message that is not urgent: it leaves with the next one if the process has a call to answer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_later(&self, message: &HostMessage) -> io::Result<()> {
        self.enqueue(message)?;
        // The task runs when an answer arrives, and before long when none does: it watches a process that owes one.
        if !self.owes_something() {
            self.wake_task();
        }
        Ok(())
    }

    fn enqueue(&self, message: &HostMessage) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut outgoing = self.outgoing.borrow_mut();
        if outgoing.size() > BACKLOG_MAX {
            return Err(io::Error::other("the script process is too slow"));
        }
        tw_script::encode(message, &mut outgoing.bytes).map_err(io::Error::other)
    }

    /// Answers an operation.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn reply(
        &self,
        call: CallId,
        token: Token,
        result: Result<Reply, OperationError>,
    ) -> io::Result<()> {
        if let Some(state) = self.calls.borrow().get(&call) {
            let own = &state.unanswered_count;
            if own.get() > 0 {
                own.set(own.get() - 1);
                self.unanswered_count.set(self.unanswered_count.get() - 1);
            }
        }
        let reply = HostMessage::Reply { call, token, result };
        match self.send(&reply) {
            // The script gets an error in place of an answer that is too large.
            Err(error) if !self.is_closed() => {
                let result = Err(OperationError::Error(error.to_string()));
                self.send(&HostMessage::Reply { call, token, result })
            }
            sent => sent,
        }
    }

    fn wake_task(&self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Reads and writes until the process is gone, or says something invalid.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut reader = FrameReader::default();
        let mut buffer = Vec::with_capacity(READ_SIZE);
        let mut silence = Silence::new();
        let mut overrun = None;
        let error = loop {
            match self.wait(&mut silence).await {
                Ok(Woken::ToRead) => {}
                Ok(Woken::ToProbe) => {
                    if let Err(error) = probe_messages().iter().try_for_each(|message| self.send(message)) {
                        break error;
                    }
                    continue;
                }
                Ok(Woken::Silent) => break io::ErrorKind::TimedOut.into(),
                Err(error) => break error,
            }
            let mut taken = 0;
            let read = loop {
                buffer.clear();
                match self.socket.try_read(&mut buffer) {
                    Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(size) => {
                        taken += size;
                        reader.push(&buffer);
                        if let Err(error) = self.take_messages(&mut reader, &mut overrun) {
                            break Err(error);
                        }
                        if taken >= TURN_SIZE {
                            break Ok(());
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            silence.end();
            match read {
                Ok(()) => tw_rt::yield_now().await,
                Err(error) => break error,
            }
        };
        // A process that has closed its socket ends by itself. Another one may be under the control of an attacker.
        if !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted) {
            process_links::report_silent(self.pid);
        }
        process_links::end_link(self.pid, self.is_retired.get());
        self.close(overrun);
    }

    /// Hands the messages that have arrived to their calls.
    fn take_messages(
        self: &Rc<Self>,
        reader: &mut FrameReader,
        overrun: &mut Option<Overrun>,
    ) -> io::Result<()> {
        while let Some(message) = reader.next_message::<ProcessMessage>().map_err(io::Error::other)? {
            match message {
                ProcessMessage::Hello { protocol } if protocol == PROTOCOL => {}
                ProcessMessage::Hello { .. } => {
                    return Err(io::Error::other("the script process is of another version"));
                }
                ProcessMessage::Loaded { script, result } => {
                    self.scripts.set_error(script, result.err());
                }
                ProcessMessage::Operation { call, token, operation } => {
                    self.push(call, CallMessage::Operation(token, operation));
                }
                ProcessMessage::ScriptOperation { script, token, operation } => {
                    self.operate(script, token, operation)?;
                }
                ProcessMessage::Effect { call: 0, effect: Effect::Log { level, message } } => {
                    // All sets of a configuration have the same log.
                    if let Some(set) = self.scripts.any_set() {
                        call_report::log_without_session(&set.resources.error_log, level, &message);
                    }
                }
                ProcessMessage::Effect { call, effect } => self.push(call, CallMessage::Effect(effect)),
                ProcessMessage::Handled { call } => self.push(call, CallMessage::Handled),
                ProcessMessage::Done { call, outcome } => {
                    self.push(call, CallMessage::Done(outcome));
                    self.end_call(call);
                }
                ProcessMessage::Overrun(last) => *overrun = Some(last),
            }
        }
        Ok(())
    }

    /// Answers an operation of a script outside of calls, with the rights of its set.
    fn operate(self: &Rc<Self>, script: ScriptId, token: Token, operation: Operation) -> io::Result<()> {
        if self.script_operation_count.get() == SCRIPT_OPERATIONS_MAX {
            return Err(io::Error::other("too many operations outside of calls"));
        }
        let running = match self.scripts.operate(script, operation) {
            ScriptOperation::Done(answer) => return self.reply(0, token, answer),
            ScriptOperation::Running(running) => running,
        };
        let connection = self.clone();
        self.script_operation_count.set(self.script_operation_count.get() + 1);
        let subject = Subject { kind: "file of a script", id: self.pid.into() };
        drop(tw_rt::spawn_local(subject, async move {
            let answer = running.await;
            let count = &connection.script_operation_count;
            count.set(count.get() - 1);
            // The process may have ended.
            let _ = connection.reply(0, token, answer);
        }));
        Ok(())
    }

    fn push(&self, call: CallId, message: CallMessage) {
        // A call that was cancelled may have said something before it heard of that.
        let Some(state) = self.calls.borrow().get(&call).cloned() else { return };
        if let CallMessage::Operation(..) = message {
            state.unanswered_count.set(state.unanswered_count.get() + 1);
            self.unanswered_count.set(self.unanswered_count.get() + 1);
        }
        state.has_begun.set(true);
        if state.queued_size.get() > CALL_QUEUE_MAX {
            self.end_call(call);
            // The process may be gone.
            let _ = self.send(&HostMessage::Cancel { call });
            return state.push(CallMessage::Flooded);
        }
        state.push(message);
    }

    /// Writes what the socket takes; the task is woken when it takes more.
    fn write_outgoing(&self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.outgoing.borrow().is_empty() {
            match self.socket.poll_writable(cx)? {
                Poll::Ready(()) => _ = self.outgoing.borrow_mut().flush(&self.socket)?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Waits until something is to be read, and writes meanwhile.
    async fn wait(&self, silence: &mut Silence) -> io::Result<Woken> {
        poll_fn(|cx| {
            self.task.set(Some(cx.waker().clone()));
            match self.write_outgoing(cx) {
                // The process has ended. Its last messages are still to be read, and then the end.
                Err(error) if is_peer_gone(&error) => drop(self.outgoing.take()),
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) => {}
            }
            if self.is_retired.get() && self.call_count() == 0 {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if let Poll::Ready(ready) = self.socket.poll_readable(cx) {
                return Poll::Ready(ready.map(|()| Woken::ToRead));
            }
            silence.poll(self.owes_something(), cx).map(Ok)
        })
        .await
    }

    /// Tells every call that the process is gone.
    fn close(&self, overrun: Option<Overrun>) {
        self.is_closed.set(true);
        let mut overrun = overrun.map(Box::new);
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        for (call, state) in calls {
            let own = overrun.take_if(|overrun| overrun.call == call);
            state.push(CallMessage::Lost(own));
        }
    }
}

/// Returns true if a write has failed because nobody reads any more.
fn is_peer_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
