//! A context: modules, and the calls of the request that it serves.

mod callback;
mod modules;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::{Context, Ctx, Error, IntoJs, Persistent, Promise, Runtime, Value};
use tw_script::{
    Call, CallId, CallKind, Event, Exception, Load, LoadError, OperationError, Outcome, Reply, Token,
};

use self::modules::{MAIN, ModuleLoader, ModuleResolver};
use crate::exception::{self, parse_frame};
use crate::link::Link;
use crate::native;
use crate::native::bytes;
use crate::state::State;
use crate::watch::Watch;

tw_base::limits! {
    /// Limits of contexts.
    pub(crate) const LIMITS;

    /// Stack of one context.
    const STACK_SIZE: usize = 256 << 10, bytes, "the script gets an exception";
    /// CPU time of the modules of a context, if `js_timeout` is not longer.
    const LOAD_TIME_MAX: Duration = Duration::from_secs(1), time, "the modules cannot be used";
    /// CPU time of a callback.
    directive "js_timeout", "the call ends with an exception";
    /// Memory of a context.
    directive "js_memory", "the script gets an exception";
}

/// Memory in front of the first collection of unreachable objects, in bytes.
const COLLECT_SIZE: usize = 1 << 20;

/// A context and the calls in it.
pub(crate) struct Realm {
    state: Rc<State>,
    context: Context,
    calls: HashMap<CallId, RunningCall>,
    /// Places of the definitions of functions, by their words in the configuration.
    places: HashMap<String, (String, u32)>,
    finished: Vec<(CallId, Outcome)>,
    /// Set if a limit was reached: the context is not used again.
    is_spoiled: bool,
}

/// A call that has not ended.
struct RunningCall {
    kind: CallKind,
    /// Word of the configuration for its function.
    function: String,
}

/// Result of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventResult {
    /// The call has ended before.
    NotRunning,
    /// The callback has thrown an exception, and the call has ended.
    Failed,
    /// The callback of a body filter has returned.
    Handled,
    /// The callback of a session of stream has returned.
    HandledOfSession,
}

/// Outcome of one callback: the value of the function, if the call is one for a value.
type CallbackResult = Result<Option<Vec<u8>>, Box<Exception>>;

impl Realm {
    /// Makes a context and runs the modules of a script in it.
    pub(crate) fn new(load: &Rc<Load>, link: &Rc<dyn Link>, watch: &Rc<Watch>) -> Result<Self, LoadError> {
        let realm = Self::empty(load, link, watch)?;
        realm.load()?;
        realm.check_main()?;
        Ok(realm)
    }

    /// Makes a context and runs the modules of a script in it as a call, so that they may wait: for a script that is run by hand.
    pub(crate) fn run_modules(
        load: &Rc<Load>,
        link: &Rc<dyn Link>,
        watch: &Rc<Watch>,
        id: CallId,
    ) -> Result<Self, LoadError> {
        let mut realm = Self::empty(load, link, watch)?;
        realm.calls.insert(id, RunningCall { kind: CallKind::Periodic, function: String::new() });
        realm.state.enter(id, Some(CallKind::Periodic));
        realm.load()?;
        realm.settle(id, Ok(None), false);
        Ok(realm)
    }

    /// A context in which nothing has run.
    fn empty(load: &Rc<Load>, link: &Rc<dyn Link>, watch: &Rc<Watch>) -> Result<Self, LoadError> {
        let state = Rc::new(State::new(Rc::clone(link), Rc::clone(load), Rc::clone(watch)));
        let context = new_context(&state).map_err(|error| load_failure(&error.to_string()))?;
        Ok(Self {
            state,
            context,
            calls: HashMap::new(),
            places: HashMap::new(),
            finished: Vec::new(),
            is_spoiled: false,
        })
    }

    /// Evaluates the API and the modules.
    fn load(&self) -> Result<(), LoadError> {
        let limit = self.timeout().max(LOAD_TIME_MAX);
        self.watch(0, limit);
        let result = self.context.with(|ctx| {
            let evaluated = self.evaluate(&ctx);
            evaluated.map_err(|error| exception::caught(&ctx, error))
        });
        let drained = self.drain();
        self.state.watch.stop();
        let result = result.and(drained).and_then(|()| self.rejection());
        let Err(exception) = result else { return Ok(()) };
        if let Some((referrer, specifier)) = self.state.missing_import.take() {
            return Err(LoadError::MissingImport { referrer, specifier });
        }
        Err(load_error(&exception))
    }

    fn evaluate(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        let host = native::host(ctx, &self.state)?;
        let core: rquickjs::Object<'_> = native::evaluate_part(ctx, "core")?.call((host,))?;
        *self.state.core.borrow_mut() = Some(Persistent::save(ctx, core));
        let source = modules::main_source(&self.state.load.modules);
        let (_, promise) = rquickjs::Module::declare(ctx.clone(), MAIN, source)?.eval()?;
        *self.state.main.borrow_mut() = Some(Persistent::save(ctx, promise));
        Ok(())
    }

    /// Checks that the modules are at their end: `await` outside of functions may not wait for the host.
    pub(crate) fn check_main(&self) -> Result<(), LoadError> {
        let main = self.state.main.take();
        self.context.with(|ctx| {
            let promise: Option<Promise<'_>> = main.and_then(|main| main.restore(&ctx).ok());
            match promise.and_then(|promise| promise.result::<Value<'_>>()) {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(load_error(&exception::caught(&ctx, error))),
                None => Err(load_failure("a module waits for something that does not happen")),
            }
        })
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.state.load.settings.timeout_ms.into())
    }

    fn kind(&self, id: CallId) -> Option<CallKind> {
        self.calls.get(&id).map(|call| call.kind)
    }

    /// Starts a call.
    pub(crate) fn start(&mut self, call: Call) {
        let Call { call: id, kind, function, snapshot, .. } = call;
        self.calls.insert(id, RunningCall { kind, function: function.clone() });
        self.find_place(&function);
        self.state.begin(id, kind, snapshot);
        let is_filter = matches!(kind, CallKind::BodyFilter | CallKind::BodyBufferFilter);
        let result = self.run(id, |ctx, state| {
            if kind == CallKind::Exit {
                state.has_exit_callbacks.set(false);
                return state.core_function(ctx, "exit")?.call(());
            }
            let Some(found) = state.find_function(ctx, &function)? else {
                let message = format!("js function \"{function}\" not found");
                return Err(rquickjs::Exception::throw_reference(ctx, &message));
            };
            state.core_function(ctx, "start")?.call((id as f64, found, is_filter))
        });
        self.settle(id, result, is_filter);
    }

    /// Runs the callback of an event.
    pub(crate) fn handle_event(&mut self, event: &Event) -> EventResult {
        let id = event.call;
        let Some(kind) = self.kind(id) else { return EventResult::NotRunning };
        let result = self.run(id, |ctx, state| {
            let data = bytes::array(ctx, &event.data)?;
            let arguments = (id as f64, data, event.is_last, event.from_client);
            state.core_function(ctx, "event")?.call(arguments)
        });
        let is_filter = matches!(kind, CallKind::BodyFilter | CallKind::BodyBufferFilter);
        let has_failed = result.is_err();
        self.settle(id, result, is_filter && !event.is_last);
        match kind {
            _ if has_failed => EventResult::Failed,
            CallKind::StreamAccess | CallKind::StreamPreread | CallKind::StreamFilter => {
                EventResult::HandledOfSession
            }
            _ => EventResult::Handled,
        }
    }

    /// Settles the promise of an operation.
    pub(crate) fn deliver(&mut self, token: Token, result: Result<Reply, OperationError>) {
        let Some(id) = self.state.pending.borrow_mut().remove(&token) else { return };
        let result = self.run(id, |ctx, state| {
            let (is_done, value) = match result {
                Ok(reply) => (true, state.reply_value(ctx, token, reply)?),
                Err(error) => (false, state.error_value(ctx, error)?),
            };
            state.core_function(ctx, "deliver")?.call((token as f64, is_done, value))
        });
        self.settle(id, result, false);
    }

    /// Runs the callbacks of timers that are due.
    pub(crate) fn fire_timers(&mut self, now: Instant) {
        loop {
            let due = self.state.timers.borrow().first_key_value().map(|(key, call)| (*key, *call));
            let Some((key, id)) = due.filter(|(key, _)| key.0 <= now) else { return };
            self.state.timers.borrow_mut().remove(&key);
            let result = self.run(id, |ctx, state| state.core_function(ctx, "timer")?.call((key.1 as f64,)));
            self.settle(id, result, false);
        }
    }

    /// Time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.state.timers.borrow().first_key_value().map(|(key, _)| key.0)
    }

    /// Ends a call whose last callback has this result, unless something of it is pending.
    fn settle(&mut self, id: CallId, result: CallbackResult, waits_for_events: bool) {
        let Some(kind) = self.kind(id) else { return };
        let value = match result {
            Ok(value) => value,
            Err(exception) => {
                self.finish(id, Outcome::Exception(*exception));
                if self.is_spoiled {
                    self.finish_all();
                }
                return;
            }
        };
        let pending_count = self.state.pending_count(id);
        match kind {
            CallKind::Set | CallKind::HeaderFilter if pending_count > 0 => self.refuse_to_wait(id, kind),
            CallKind::BodyFilter | CallKind::BodyBufferFilter if pending_count > 0 => {
                self.refuse_to_wait(id, kind);
            }
            CallKind::Set => {
                let value = self.state.return_value.take().unwrap_or(value);
                self.finish(id, Outcome::Value(value.map(Into::into)));
            }
            CallKind::HeaderFilter | CallKind::Exit => self.finish(id, Outcome::Value(None)),
            CallKind::StreamAccess | CallKind::StreamPreread
                if pending_count == 0
                    && (self.state.stream_code.get().is_some() || !self.state.is_subscribed(id)) =>
            {
                self.finish(id, Outcome::Value(None));
            }
            CallKind::StreamAccess | CallKind::StreamPreread => {}
            CallKind::StreamFilter if self.state.is_subscribed(id) => {}
            _ if pending_count == 0 && !waits_for_events => self.finish(id, Outcome::Value(None)),
            _ => {}
        }
    }

    /// Ends a call that waits for something, although its place lets it not.
    fn refuse_to_wait(&mut self, id: CallId, kind: CallKind) {
        let place = match kind {
            CallKind::Set => "variable handler",
            CallKind::HeaderFilter => "header filter",
            _ => "body filter",
        };
        let function = self.calls.get(&id).map(|call| call.function.clone()).unwrap_or_default();
        let message =
            format!("async operation inside \"{function}\" {place}, its pending events are dropped");
        self.finish(id, Outcome::Exception(*exception::with_message(&message)));
    }

    fn finish(&mut self, id: CallId, outcome: Outcome) {
        self.cancel(id);
        self.finished.push((id, outcome));
    }

    /// Ends all calls, because their context cannot go on.
    fn finish_all(&mut self) {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let exception = exception::with_message("Error: another call of the request has reached a limit");
            self.finish(id, Outcome::Exception(*exception));
        }
    }

    /// Ends a call without a result.
    pub(crate) fn cancel(&mut self, id: CallId) {
        let Some(call) = self.calls.remove(&id) else { return };
        self.state.forget(id);
        if !self.state.may_have_events(call.kind) {
            return;
        }
        self.context.with(|ctx| {
            let ended: rquickjs::Result<()> =
                self.state.core_function(&ctx, "end").and_then(|end| end.call((id as f64,)));
            if ended.is_err() {
                let _ = ctx.catch();
            }
        });
    }

    /// Calls that have ended since the last time.
    pub(crate) fn take_finished(&mut self) -> Vec<(CallId, Outcome)> {
        std::mem::take(&mut self.finished)
    }

    /// Call that goes on, and whose callbacks have sent a part of its response since the last time.
    pub(crate) fn take_sending(&mut self) -> Option<CallId> {
        let id = self.state.sending_call.take();
        self.kind(id).filter(|kind| *kind == CallKind::Content).map(|_| id)
    }

    /// Calls that are running.
    pub(crate) fn running(&self) -> impl Iterator<Item = CallId> {
        self.calls.keys().copied()
    }

    /// Makes the context ready for another request. Returns false if it is not used again.
    pub(crate) fn reset(&mut self) -> bool {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            self.cancel(id);
        }
        self.finished.clear();
        if self.is_spoiled {
            return false;
        }
        if self.state.has_exit_callbacks.replace(false) {
            // An exception reaches nobody: the request has ended, and its context is not used again.
            let result = self.run(0, |ctx, state| state.core_function(ctx, "exit")?.call(()));
            if result.is_err() {
                return false;
            }
        }
        let result: rquickjs::Result<()> =
            self.context.with(|ctx| self.state.core_function(&ctx, "reset")?.call(()));
        self.state.reset();
        result.is_ok()
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        // Values of a context may not outlive it.
        self.state.drop_values();
    }
}

/// An exception while modules ran, with its place.
fn load_error(exception: &Exception) -> LoadError {
    match exception.stack.lines().find_map(parse_frame) {
        Some(frame) => LoadError::Exception {
            file: frame.file,
            line: frame.line,
            column: frame.column,
            message: exception.message.clone(),
        },
        None => load_failure(&exception.message),
    }
}

fn load_failure(message: &str) -> LoadError {
    LoadError::Exception { file: String::new(), line: 0, column: 0, message: message.to_owned() }
}

/// A context with its limits and its loader, before anything is evaluated.
fn new_context(state: &Rc<State>) -> rquickjs::Result<Context> {
    let runtime = Runtime::new()?;
    let memory_size = usize::try_from(state.load.settings.memory_size).unwrap_or(usize::MAX);
    runtime.set_memory_limit(memory_size);
    runtime.set_max_stack_size(STACK_SIZE);
    runtime.set_gc_threshold(COLLECT_SIZE.min(memory_size / 4));
    let watch = Rc::clone(&state.watch);
    runtime.set_interrupt_handler(Some(Box::new(move || watch.interrupts())));
    let owner = Rc::downgrade(state);
    runtime.set_host_promise_rejection_tracker(Some(Box::new(move |ctx, promise, reason, is_handled| {
        if let Some(state) = owner.upgrade() {
            track_rejection(&ctx, &state, promise, reason, is_handled);
        }
    })));
    runtime.set_loader(ModuleResolver(Rc::clone(state)), ModuleLoader(Rc::clone(&state.load)));
    Context::full(&runtime)
}

/// Remembers a rejected promise until somebody handles it.
fn track_rejection<'js>(
    ctx: &Ctx<'js>,
    state: &State,
    promise: Value<'js>,
    reason: Value<'js>,
    is_handled: bool,
) {
    state.rejection_count.set(state.rejection_count.get() + 1);
    let tracked: rquickjs::Result<()> = state
        .core_function(ctx, "rejected")
        .and_then(|rejected| rejected.call((promise, reason, is_handled.into_js(ctx)?)));
    if matches!(tracked, Err(Error::Exception)) {
        let _ = ctx.catch();
    }
}
