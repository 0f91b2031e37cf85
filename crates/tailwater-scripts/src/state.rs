//! State of one context that native functions see: the running call, its subject, and what it waits for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::{Ctx, Error, Exception, Function, IntoJs, Object, Persistent, Promise, Value};
use tw_script::{
    CallId, CallKind, Effect, HttpSnapshot, Load, Operation, OperationError, ProcessMessage, Reply,
    ResponseHead, Snapshot, Subresponse, Token,
};

use crate::link::Link;
use crate::native::bytes;
use crate::watch::Watch;

tw_base::limits! {
    /// Limits of a context.
    pub(crate) const LIMITS;

    /// Operations of one context whose answers are awaited, such as `ngx.fetch()`.
    pub(crate) const PENDING_MAX: usize = 1024, count, "the script gets an exception";
    /// Timers of one context.
    pub(crate) const TIMERS_MAX: usize = 1024, count, "the script gets an exception";
    /// Bytes of a line that a script writes to the error log.
    pub(crate) const LOG_SIZE_MAX: usize = 16 << 10, bytes, "the line is cut";
    /// Longest time of `setTimeout()`.
    const TIMER_MAX: Duration = Duration::from_secs(24 * 60 * 60), time, "the timer fires at its end";
}

/// State of one context.
pub(crate) struct State {
    pub(crate) link: Rc<dyn Link>,
    pub(crate) load: Rc<Load>,
    pub(crate) watch: Rc<Watch>,
    /// Running call; 0 while modules are loaded.
    pub(crate) call: Cell<CallId>,
    pub(crate) kind: Cell<Option<CallKind>>,
    pub(crate) snapshot: RefCell<Snapshot>,
    /// Head of the response of the main request, if it is known.
    pub(crate) response: RefCell<Option<ResponseHead>>,
    /// Finished subrequests; their tokens are the subjects of their objects.
    pub(crate) subresponses: RefCell<HashMap<Token, Subresponse>>,
    /// Operations whose answers become settled promises.
    pub(crate) pending: RefCell<HashMap<Token, CallId>>,
    pub(crate) timers: RefCell<BTreeMap<(Instant, u64), CallId>>,
    next_timer: Cell<u64>,
    /// Value of `r.setReturnValue()`.
    pub(crate) return_value: RefCell<Option<Option<Vec<u8>>>>,
    /// Set by `s.done()` and its aliases in the running call.
    pub(crate) stream_code: Cell<Option<i32>>,
    /// Call whose callback has sent a part of its response since that was last asked; 0 if none has.
    pub(crate) sending_call: Cell<CallId>,
    /// Events that the running call wants.
    pub(crate) subscriptions: RefCell<HashMap<CallId, (bool, bool)>>,
    /// Object of `core.js`. It is taken out before the context is dropped.
    pub(crate) core: RefCell<Option<Persistent<Object<'static>>>>,
    /// Functions of that object that were called.
    core_functions: RefCell<Vec<(&'static str, Persistent<Function<'static>>)>>,
    /// Promise of the modules, while they are evaluated.
    pub(crate) main: RefCell<Option<Persistent<Promise<'static>>>>,
    /// An `import` statement without a source: its module and its word.
    pub(crate) missing_import: RefCell<Option<(String, String)>>,
    /// Changes of the list of rejected promises since it was looked at.
    pub(crate) rejection_count: Cell<u32>,
    /// Set if `njs.on('exit')` was called for the running request.
    pub(crate) has_exit_callbacks: Cell<bool>,
    pub(crate) created: Instant,
}

impl State {
    pub(crate) fn new(link: Rc<dyn Link>, load: Rc<Load>, watch: Rc<Watch>) -> Self {
        Self {
            link,
            load,
            watch,
            call: Cell::new(0),
            kind: Cell::new(None),
            snapshot: RefCell::new(Snapshot::None),
            response: RefCell::new(None),
            subresponses: RefCell::default(),
            pending: RefCell::default(),
            timers: RefCell::default(),
            next_timer: Cell::new(1),
            return_value: RefCell::new(None),
            stream_code: Cell::new(None),
            sending_call: Cell::new(0),
            subscriptions: RefCell::default(),
            core: RefCell::new(None),
            core_functions: RefCell::default(),
            main: RefCell::new(None),
            missing_import: RefCell::new(None),
            rejection_count: Cell::new(0),
            has_exit_callbacks: Cell::new(false),
            created: Instant::now(),
        }
    }

    /// Takes over the subject of a new call.
    pub(crate) fn begin(&self, call: CallId, kind: CallKind, mut snapshot: Snapshot) {
        self.enter(call, Some(kind));
        if let Snapshot::Http(request) = &mut snapshot {
            *self.response.borrow_mut() = request.response.take();
        }
        *self.snapshot.borrow_mut() = snapshot;
        *self.return_value.borrow_mut() = None;
        self.stream_code.set(None);
    }

    /// Names the call of the next callback.
    pub(crate) fn enter(&self, call: CallId, kind: Option<CallKind>) {
        self.call.set(call);
        self.kind.set(kind);
    }

    /// Returns whether a call waits for pieces of a stream.
    pub(crate) fn is_subscribed(&self, call: CallId) -> bool {
        self.subscriptions.borrow().get(&call).is_some_and(|events| events.0 || events.1)
    }

    /// Forgets the request that the context has served.
    pub(crate) fn reset(&self) {
        self.call.set(0);
        self.kind.set(None);
        *self.snapshot.borrow_mut() = Snapshot::None;
        *self.response.borrow_mut() = None;
        self.subresponses.borrow_mut().clear();
        self.pending.borrow_mut().clear();
        self.timers.borrow_mut().clear();
        *self.return_value.borrow_mut() = None;
        self.stream_code.set(None);
        self.sending_call.set(0);
        self.subscriptions.borrow_mut().clear();
    }

    /// The function of `core.js` with this name.
    pub(crate) fn core_function<'js>(
        &self,
        ctx: &Ctx<'js>,
        name: &'static str,
    ) -> rquickjs::Result<Function<'js>> {
        let used = self.core_functions.borrow().iter().find(|used| used.0 == name).map(|used| used.1.clone());
        if let Some(function) = used {
            return function.restore(ctx);
        }
        let core = self.core.borrow().clone().ok_or(Error::Unknown)?;
        let function: Function<'js> = core.restore(ctx)?.get(name)?;
        self.core_functions.borrow_mut().push((name, Persistent::save(ctx, function.clone())));
        Ok(function)
    }

    /// The function of the script that a configuration names, or `None`.
    pub(crate) fn find_function<'js>(
        &self,
        ctx: &Ctx<'js>,
        path: &str,
    ) -> rquickjs::Result<Option<Function<'js>>> {
        let mut value = ctx.globals().into_value();
        for name in path.split('.') {
            let Some(object) = value.as_object() else { return Ok(None) };
            value = object.get(name)?;
        }
        Ok(value.into_function())
    }

    /// Returns whether `core.js` may remember a call of this kind, because pieces of a body or stream arrive for it.
    pub(crate) fn may_have_events(&self, kind: CallKind) -> bool {
        match kind {
            CallKind::BodyFilter | CallKind::BodyBufferFilter => true,
            _ => matches!(&*self.snapshot.borrow(), Snapshot::Stream(_)),
        }
    }

    /// Drops values of the context, which may not outlive it.
    pub(crate) fn drop_values(&self) {
        self.core.take();
        self.core_functions.take();
        self.main.take();
    }

    /// Sends a change.
    pub(crate) fn effect(&self, ctx: &Ctx<'_>, effect: Effect) -> rquickjs::Result<()> {
        let call = self.call.get();
        if call == 0 && !matches!(effect, Effect::Log { .. }) {
            return Err(Exception::throw_type(ctx, "not available without a request"));
        }
        self.send_message(ctx, &ProcessMessage::Effect { call, effect })
    }

    fn send_message(&self, ctx: &Ctx<'_>, message: &ProcessMessage) -> rquickjs::Result<()> {
        self.link.send(message).map_err(|error| Exception::throw_range(ctx, &error.to_string()))
    }

    /// Asks the host and waits for its answer.
    pub(crate) fn ask(&self, ctx: &Ctx<'_>, operation: Operation) -> rquickjs::Result<Reply> {
        let (call, token) = self.send_operation(ctx, operation)?;
        self.link.wait(call, token).map_err(|error| self.throw(ctx, error))
    }

    /// Asks the host; the answer settles the promise of the token.
    pub(crate) fn start(&self, ctx: &Ctx<'_>, operation: Operation) -> rquickjs::Result<f64> {
        if self.call.get() == 0 {
            return Err(Exception::throw_type(ctx, "not available without a request"));
        }
        if self.pending.borrow().len() >= PENDING_MAX {
            return Err(Exception::throw_range(ctx, "too many pending operations"));
        }
        let (call, token) = self.send_operation(ctx, operation)?;
        self.pending.borrow_mut().insert(token, call);
        Ok(token as f64)
    }

    fn send_operation(&self, ctx: &Ctx<'_>, operation: Operation) -> rquickjs::Result<(CallId, Token)> {
        let call = self.call.get();
        let token = self.link.next_token();
        let message = match (call, &operation) {
            (0, Operation::Dictionary { .. } | Operation::File(_)) => {
                ProcessMessage::ScriptOperation { script: self.load.script, token, operation }
            }
            (0, _) => return Err(Exception::throw_type(ctx, "not available without a request")),
            _ => ProcessMessage::Operation { call, token, operation },
        };
        self.send_message(ctx, &message)?;
        Ok((call, token))
    }

    /// Throws the exception of a failed operation.
    pub(crate) fn throw(&self, ctx: &Ctx<'_>, error: OperationError) -> Error {
        match self.error_value(ctx, error) {
            Ok(value) => ctx.throw(value),
            Err(error) => error,
        }
    }

    /// The exception of a failed operation, as a value.
    pub(crate) fn error_value<'js>(
        &self,
        ctx: &Ctx<'js>,
        error: OperationError,
    ) -> rquickjs::Result<Value<'js>> {
        let (kind, message, file) = match error {
            OperationError::Error(message) => ("Error", message, None),
            OperationError::Type(message) => ("TypeError", message, None),
            OperationError::SharedMemory(message) => ("SharedMemoryError", message, None),
            OperationError::File(file) => ("Error", file.message.clone(), Some(file)),
        };
        let file = match file {
            None => rquickjs::Undefined.into_js(ctx)?,
            Some(file) => {
                let object = Object::new(ctx.clone())?;
                object.set("errno", file.errno)?;
                object.set("code", file.code)?;
                object.set("syscall", file.syscall)?;
                object.set("path", bytes::text(&file.path).as_ref())?;
                object.into_value()
            }
        };
        self.core_function(ctx, "error")?.call((kind, message, file))
    }

    /// Runs `read` with the request that an object stands for: the main one, or a finished subrequest.
    pub(crate) fn with_request<'js, T>(
        &self,
        ctx: &Ctx<'js>,
        subject: f64,
        read: impl FnOnce(&HttpSnapshot) -> rquickjs::Result<T>,
    ) -> rquickjs::Result<T> {
        if subject == 0.0 {
            match &*self.snapshot.borrow() {
                Snapshot::Http(snapshot) => return read(snapshot),
                Snapshot::Stream(_) | Snapshot::None => {}
            }
        } else if let Some(subresponse) = self.subresponses.borrow().get(&(subject as Token)) {
            return read(&subresponse.snapshot);
        }
        Err(Exception::throw_type(ctx, "the request has ended"))
    }

    /// Starts a timer of the running call; returns its number.
    pub(crate) fn start_timer(&self, ctx: &Ctx<'_>, delay_ms: f64) -> rquickjs::Result<f64> {
        let call = self.call.get();
        if call == 0 {
            return Err(Exception::throw_type(ctx, "not available without a request"));
        }
        if self.timers.borrow().len() >= TIMERS_MAX {
            return Err(Exception::throw_range(ctx, "too many timers"));
        }
        let longest_ms = TIMER_MAX.as_secs_f64() * 1000.0;
        let delay = Duration::from_secs_f64(delay_ms.clamp(0.0, longest_ms) / 1000.0);
        let id = self.next_timer.get();
        self.next_timer.set(id + 1);
        self.timers.borrow_mut().insert((Instant::now() + delay, id), call);
        Ok(id as f64)
    }

    pub(crate) fn stop_timer(&self, id: f64) {
        self.timers.borrow_mut().retain(|key, _| key.1 != id as u64);
    }

    /// Operations and timers that a call waits for.
    pub(crate) fn pending_count(&self, call: CallId) -> usize {
        let operations = self.pending.borrow().values().filter(|owner| **owner == call).count();
        operations + self.timers.borrow().values().filter(|owner| **owner == call).count()
    }

    /// Forgets everything that a call waits for.
    pub(crate) fn forget(&self, call: CallId) {
        self.pending.borrow_mut().retain(|_, owner| *owner != call);
        self.timers.borrow_mut().retain(|_, owner| *owner != call);
        self.subscriptions.borrow_mut().remove(&call);
    }
}
