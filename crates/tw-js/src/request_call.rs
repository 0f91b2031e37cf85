//! A call on behalf of a request: its operations are answered here, its effects are the caller's.
//!
//! **A script gets nothing but what its own request may have.** Each operation names the call, and is answered with the rights of the
//! request of that call.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tw_log::{Level, Text};
use tw_request::plan::LocalFuture;
use tw_request::request::Request;
use tw_script::{
    ByteBuf, CallKind, Effect, Operation, OperationError, Outcome, Reply, Snapshot, Subject, Token,
};

use crate::call_report::{self, fail};
use crate::counters::Counters;
use crate::loop_scripts::LoopScripts;
use crate::operations::Answer;
use crate::operations::dictionary;
use crate::operations::fetch::{self, FetchSettings};
use crate::operations::file::CallFiles;
use crate::operations::request_body;
use crate::operations::subrequest::{Order, Subrequests};
use crate::operations::variable;
use crate::request_scripts::RequestScripts;
use crate::response_fields::{self, SetField};
use crate::script_call::{CallFailure, CallOrder, CallStep, ScriptCall};
use crate::script_set::ScriptSet;
use crate::snapshot;

pub(crate) use crate::call_report::Failed;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Requests of `ngx.fetch()` and commands of `fs` of one script call that run at once.
    pub(crate) const RUNNING_MAX: usize = 64, count, "the promise of the next one is rejected";
}

/// Name of functions of `njs.on('exit')` in the error log.
pub(crate) const EXIT_HOOK: &str = "njs.on('exit')";

/// Next thing that a call says to its caller.
#[derive(Debug)]
pub(crate) enum Progress {
    /// An effect that only the caller can apply.
    Effect(Effect),
    /// The function has returned for an event.
    Handled,
    /// The call has ended with this result.
    Done(Option<ByteBuf>),
}

/// Function of a configuration, and the scripts with it.
#[derive(Clone)]
pub(crate) struct ScriptFunction {
    pub(crate) set: Arc<ScriptSet>,
    pub(crate) name: Arc<str>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) fetch: Arc<FetchSettings>,
}

/// Call on behalf of a request.
pub(crate) struct RequestCall {
    call: ScriptCall,
    subrequests: Subrequests,
    /// Operations that need nothing of the request any more.
    running: Vec<(Token, LocalFuture<'static, Answer>)>,
    files: CallFiles,
    counters: Arc<Counters>,
    fetch: Arc<FetchSettings>,
    /// Set if it has ended with an exception of the script's own.
    has_thrown: bool,
}

/// Source of the next step of a call.
enum Ready {
    Step(Result<CallStep, CallFailure>),
    Answer(Token, Answer),
}

impl RequestCall {
    /// Calls a function for `r`. `response` is the head of the response, for filters.
    pub(crate) async fn start(
        r: &mut Request,
        function: &ScriptFunction,
        kind: CallKind,
        snapshot: Snapshot,
    ) -> Result<Self, Failed> {
        let ScriptFunction { set, name, counters, fetch } = function;
        let scripts = LoopScripts::of_loop(r.client().event_loop.index);
        let contexts = RequestScripts::of(r).contexts();
        let order = CallOrder { set: set.clone(), function: name.clone(), kind, snapshot };
        counters.calls.add(1);
        set.use_disk(r.generation().disks.default_disk());
        let call = ScriptCall::start(scripts, order, contexts).await;
        let call = call.map_err(|failure| fail(r, name, counters, &failure))?;
        RequestScripts::of(r).keep(call.contexts());
        Ok(Self {
            call,
            subrequests: Subrequests::default(),
            running: Vec::new(),
            files: CallFiles::new(set),
            counters: counters.clone(),
            fetch: fetch.clone(),
            has_thrown: false,
        })
    }

    /// Returns true if the call has ended with an exception of the script's own, and not because of a limit.
    pub(crate) fn has_thrown(&self) -> bool {
        self.has_thrown
    }

    /// Returns true if a message of the script process is there.
    pub(crate) fn is_ready(&self) -> bool {
        self.call.is_ready()
    }

    /// Waits for the next effect or the end, and answers operations meanwhile. A dropped future loses nothing.
    pub(crate) async fn next(&mut self, r: &mut Request) -> Result<Progress, Failed> {
        loop {
            if let Some(progress) = self.step(r).await? {
                return Ok(progress);
            }
        }
    }

    /// Waits for one message, or for an operation that runs beside the script; `None` if it is no matter of the caller.
    pub(crate) async fn step(&mut self, r: &mut Request) -> Result<Option<Progress>, Failed> {
        let step = match self.ready().await {
            Ready::Answer(token, answer) => {
                self.subrequests.settle(r);
                self.call.reply(token, answer);
                return Ok(None);
            }
            Ready::Step(step) => step,
        };
        let name = self.call.function().to_owned();
        match step.map_err(|failure| fail(r, &name, &self.counters, &failure))? {
            CallStep::Operation(token, operation) => {
                self.operate(r, token, operation).await?;
                Ok(None)
            }
            CallStep::Effect(effect) => Ok(self.apply(r, effect).map(Progress::Effect)),
            CallStep::Handled => Ok(Some(Progress::Handled)),
            CallStep::Done(outcome) => {
                // The call may have moved to another process.
                RequestScripts::of(r).keep(self.call.contexts());
                self.subrequests.end(r);
                self.outcome(r, outcome).map(Some)
            }
        }
    }

    /// Returns true if the process waits for an answer that needs the request, which is with its client meanwhile. Dictionaries need none.
    pub(crate) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> bool {
        let is_dictionary = |operation: &Operation| matches!(operation, Operation::Dictionary { .. });
        if let Some((token, Operation::Dictionary { name, command })) = self.call.take_last(is_dictionary) {
            let answer = dictionary::run(self.call.set(), &name, command);
            self.call.reply(token, answer);
        }
        self.call.poll_last(cx, may_hold_process)
    }

    /// Answers the operation that the process waits for with an exception.
    pub(crate) fn refuse_waiting(&mut self, reason: &str) {
        if let Some((token, _)) = self.call.take_last(may_hold_process) {
            self.call.reply(token, Err(OperationError::Error(reason.to_owned())));
        }
    }

    /// Sends the next piece of a body to the function.
    pub(crate) fn send_event(&mut self, r: &Request, data: &[u8], is_last: bool) -> Result<(), Failed> {
        let sent = self.call.send_event(data, is_last, false);
        sent.map_err(|failure| fail(r, self.call.function(), &self.counters, &failure))
    }

    /// Waits for a message, or for an operation that runs beside the script.
    async fn ready(&mut self) -> Ready {
        let mut next = pin!(self.call.next());
        let subrequests = &mut self.subrequests;
        let running = &mut self.running;
        poll_fn(|cx: &mut Context<'_>| {
            if let Poll::Ready(step) = next.as_mut().poll(cx) {
                return Poll::Ready(Ready::Step(step));
            }
            for at in 0..running.len() {
                if let Some((token, operation)) = running.get_mut(at)
                    && let Poll::Ready(answer) = operation.as_mut().poll(cx)
                {
                    let token = *token;
                    drop(running.remove(at));
                    return Poll::Ready(Ready::Answer(token, answer));
                }
            }
            subrequests.poll(cx).map(|(token, answer)| Ready::Answer(token, answer))
        })
        .await
    }

    /// Answers an operation, or begins it.
    async fn operate(&mut self, r: &mut Request, token: Token, operation: Operation) -> Result<(), Failed> {
        // A client or a disk that fails is no matter of the script.
        let failed = |status| Failed { status };
        let answer = match operation {
            Operation::Variable { subject: Subject::Main, name } => variable::read(r, &name),
            Operation::VariableValue { variable, value, subject: Subject::Main, name } => {
                variable::store_and_read(r, variable, value, &name)
            }
            Operation::Variable { subject: Subject::Subrequest(part), name }
            // Values of `js_set` are those of the request of the call.
            | Operation::VariableValue { subject: Subject::Subrequest(part), name, .. } => {
                let gone = || Err(OperationError::Error("the subrequest is gone".to_owned()));
                self.subrequests.evaluate(part, |part| variable::read_finished(part, &name)).unwrap_or_else(gone)
            }
            Operation::SetVariable { subject: Subject::Main, name, value } => variable::set(r, &name, &value),
            Operation::SetVariable { .. } => {
                Err(OperationError::Type("variables of a finished subrequest cannot be set".to_owned()))
            }
            Operation::VariableNames => variable::names(r),
            Operation::ResponseHead => Ok(Reply::ResponseHead(snapshot::response_head(r, 0))),
            Operation::RequestBody => request_body::loaded(r).await.map_err(failed)?,
            Operation::ReadRequestBody => request_body::read(r).await.map_err(failed)?,
            Operation::Subrequest { uri, args, method, body, is_detached } => {
                let order = Order { uri, args, method, body, is_detached };
                match self.subrequests.begin(r, token, order) {
                    Ok(None) => return Ok(()),
                    Ok(Some(reply)) => Ok(reply),
                    Err(error) => Err(error),
                }
            }
            Operation::Dictionary { name, command } => dictionary::run(self.call.set(), &name, command),
            Operation::Fetch(_) | Operation::File(_) if self.running.len() >= RUNNING_MAX => Err(too_many()),
            Operation::Fetch(request) => {
                let event_loop = r.client().event_loop.clone();
                let resolving = r.plan().core.resolving.clone();
                match fetch::begin(r, event_loop, resolving, &self.fetch, *request) {
                    Ok(running) => {
                        self.running.push((token, running));
                        return Ok(());
                    }
                    Err(error) => Err(error),
                }
            }
            Operation::File(command) => {
                self.running.push((token, self.files.begin(command)));
                return Ok(());
            }
        };
        self.call.reply(token, answer);
        Ok(())
    }

    /// Applies an effect that every kind of call may have; returns the others.
    fn apply(&self, r: &mut Request, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::Log { level, message } => {
                call_report::log(r, level, &message);
                None
            }
            Effect::ExitHook => {
                RequestScripts::of(r).add_exit_hook(&ScriptFunction {
                    set: self.call.set().clone(),
                    name: EXIT_HOOK.into(),
                    counters: self.counters.clone(),
                    fetch: self.fetch.clone(),
                });
                None
            }
            Effect::SetStatus { status } => {
                if r.costs.sent.head == 0 {
                    r.response.set_status(status);
                    r.state.error_status = None;
                }
                None
            }
            Effect::SetResponseField { name, values } => {
                if r.costs.sent.head == 0 && response_fields::set(r, &name, &values) == SetField::Refused {
                    let name = Text(&name);
                    r.log(
                        Level::Warn,
                        format_args!("js: the field \"{name}\" of the response is left to the server"),
                    );
                }
                None
            }
            other => Some(other),
        }
    }

    fn outcome(&mut self, r: &Request, outcome: Outcome) -> Result<Progress, Failed> {
        self.has_thrown = matches!(&outcome, Outcome::Exception(exception) if exception.limit.is_empty());
        call_report::outcome(r, &self.call, &self.counters, outcome).map(Progress::Done)
    }
}

/// Returns true for an operation whose answer the process may wait for while it serves nobody.
fn may_hold_process(operation: &Operation) -> bool {
    match operation {
        Operation::Variable { .. }
        | Operation::VariableValue { .. }
        | Operation::SetVariable { .. }
        | Operation::VariableNames
        | Operation::ResponseHead
        | Operation::RequestBody
        | Operation::File(_) => true,
        Operation::ReadRequestBody
        | Operation::Subrequest { .. }
        | Operation::Fetch(_)
        | Operation::Dictionary { .. } => false,
    }
}

/// Exception for one more request or command than may run at once.
pub(crate) fn too_many() -> OperationError {
    let what = "requests of ngx.fetch() and commands of fs";
    OperationError::Error(format!("more than {RUNNING_MAX} {what} at once"))
}
