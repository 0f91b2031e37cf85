//! A call on behalf of a session of stream, or of nobody (`js_periodic`): its operations are answered here, its effects are the caller's.
//!
//! A script gets nothing but what its own session may have, as with requests ([`request_call`](crate::request_call)).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tw_request::plan::LocalFuture;
use tw_script::{CallKind, Effect, FetchRequest, Operation, OperationError, Snapshot, Subject, Token};

use crate::call_report::{self, Failed, fail};
use crate::counters::Counters;
use crate::loop_scripts::LoopScripts;
use crate::operations::fetch::{self, FetchSettings};
use crate::operations::file::CallFiles;
use crate::operations::{Answer, dictionary, variable};
use crate::request_call::{Progress, RUNNING_MAX, ScriptFunction, too_many};
use crate::script_call::{CallOrder, CallStep, ScriptCall};
use crate::script_session::ScriptSession;

/// Call on behalf of a session.
pub(crate) struct SessionCall {
    call: ScriptCall,
    /// Operations that need nothing of the session any more.
    running: Vec<(Token, LocalFuture<'static, Answer>)>,
    files: CallFiles,
    counters: Arc<Counters>,
    fetch: Arc<FetchSettings>,
}

impl SessionCall {
    /// Calls a function for `s`.
    pub(crate) async fn start<S: ScriptSession>(
        s: &mut S,
        function: &ScriptFunction,
        kind: CallKind,
        snapshot: Snapshot,
    ) -> Result<Self, Failed> {
        let ScriptFunction { set, name, counters, fetch } = function;
        let scripts = LoopScripts::of_loop(s.loop_index());
        let contexts = s.held_contexts();
        let order = CallOrder { set: set.clone(), function: name.clone(), kind, snapshot };
        counters.calls.add(1);
        set.use_disk(s.files_disk());
        let files = CallFiles::new(set);
        let call = ScriptCall::start(scripts, order, contexts.contexts()).await;
        let call = call.map_err(|failure| fail(s, name, counters, &failure))?;
        contexts.keep(call.contexts());
        Ok(Self { call, running: Vec::new(), files, counters: counters.clone(), fetch: fetch.clone() })
    }

    /// Waits for the next effect or the end, and answers operations meanwhile. A dropped future loses nothing.
    pub(crate) async fn next<S: ScriptSession>(&mut self, s: &mut S) -> Result<Progress, Failed> {
        poll_fn(|cx| self.poll_next(s, cx)).await
    }

    /// Polls for the next effect or the end, and answers operations meanwhile.
    pub(crate) fn poll_next<S: ScriptSession>(
        &mut self,
        s: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Progress, Failed>> {
        loop {
            if let Poll::Ready(step) = self.call.poll_next(cx) {
                let step = step.map_err(|failure| fail(s, self.call.function(), &self.counters, &failure))?;
                match step {
                    CallStep::Operation(token, operation) => self.operate(s, token, operation),
                    CallStep::Effect(Effect::Log { level, message }) => call_report::log(s, level, &message),
                    CallStep::Effect(effect) => return Poll::Ready(Ok(Progress::Effect(effect))),
                    CallStep::Handled => return Poll::Ready(Ok(Progress::Handled)),
                    CallStep::Done(outcome) => {
                        // The call may have moved to another process.
                        s.held_contexts().keep(self.call.contexts());
                        let outcome = call_report::outcome(s, &self.call, &self.counters, outcome);
                        return Poll::Ready(outcome.map(Progress::Done));
                    }
                }
                continue;
            }
            let answered = (0..self.running.len()).find_map(|at| {
                let (token, operation) = self.running.get_mut(at)?;
                match operation.as_mut().poll(cx) {
                    Poll::Ready(answer) => Some((at, *token, answer)),
                    Poll::Pending => None,
                }
            });
            let Some((at, token, answer)) = answered else { return Poll::Pending };
            drop(self.running.remove(at));
            self.call.reply(token, answer);
        }
    }

    /// Sends the next piece of the session to the function.
    pub(crate) fn send_event<S: ScriptSession>(
        &mut self,
        s: &S,
        data: &[u8],
        is_last: bool,
        from_client: bool,
    ) -> Result<(), Failed> {
        let sent = self.call.send_event(data, is_last, from_client);
        sent.map_err(|failure| fail(s, self.call.function(), &self.counters, &failure))
    }

    /// Answers an operation, or begins it.
    fn operate<S: ScriptSession>(&mut self, s: &mut S, token: Token, operation: Operation) {
        let answer = match operation {
            Operation::Variable { subject: Subject::Main, name } => variable::read(s, &name),
            Operation::VariableValue { variable, value, subject: Subject::Main, name } => {
                variable::store_and_read(s, variable, value, &name)
            }
            Operation::SetVariable { subject: Subject::Main, name, value } => variable::set(s, &name, &value),
            Operation::VariableNames => variable::names(s),
            Operation::Dictionary { name, command } => dictionary::run(self.call.set(), &name, command),
            Operation::Fetch(_) | Operation::File(_) if self.running.len() >= RUNNING_MAX => Err(too_many()),
            Operation::Fetch(request) => match self.begin_fetch(s, *request) {
                Ok(running) => return self.running.push((token, running)),
                Err(error) => Err(error),
            },
            Operation::File(command) => return self.running.push((token, self.files.begin(command))),
            Operation::Variable { .. }
            | Operation::VariableValue { .. }
            | Operation::SetVariable { .. }
            | Operation::ResponseHead
            | Operation::RequestBody
            | Operation::ReadRequestBody
            | Operation::Subrequest { .. } => {
                Err(OperationError::Type("not available without a request".to_owned()))
            }
        };
        self.call.reply(token, answer);
    }

    fn begin_fetch<S: ScriptSession>(
        &self,
        s: &S,
        request: FetchRequest,
    ) -> Result<LocalFuture<'static, Answer>, OperationError> {
        let http = s.http().ok_or_else(|| OperationError::Error("the loop ends".to_owned()))?;
        fetch::begin(s, http, s.resolving(), &self.fetch, request)
    }
}
