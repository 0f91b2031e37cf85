//! One callback: its clock, the jobs that follow from it, and the promises that it leaves rejected.

use std::time::Duration;

use rquickjs::{Ctx, Persistent, Value};
use tw_script::{CallId, CallKind, Exception, Overrun, ProcessMessage, encode};

use super::{CallbackResult, Realm};
use crate::exception;
use crate::state::State;

impl Realm {
    /// Starts the clock of a callback, with last words for the case that it cannot be interrupted.
    pub(super) fn watch(&self, id: CallId, limit: Duration) {
        if !self.state.watch.has_timer() {
            return self.state.watch.start(limit, None);
        }
        let function = self.calls.get(&id).map(|call| call.function.clone()).unwrap_or_default();
        let (file, line) = self.places.get(&function).cloned().unwrap_or_default();
        let overrun = Overrun { call: id, script: self.state.load.script, function, file, line };
        let mut words = Vec::new();
        // A message without its place is better than none, and a name in a configuration is short.
        let _ = encode(&ProcessMessage::Overrun(overrun), &mut words);
        let socket = self.state.link.overrun_socket();
        self.state.watch.start(limit, socket.map(|socket| (socket, words.as_slice())));
    }

    /// Remembers the place of the definition of a function.
    pub(super) fn find_place(&mut self, function: &str) {
        if !self.state.watch.has_timer() || self.places.contains_key(function) {
            return;
        }
        let place: rquickjs::Result<Option<String>> = self.context.with(|ctx| {
            let place = self.state.core_function(&ctx, "place")?.call((function,));
            if place.is_err() {
                let _ = ctx.catch();
            }
            place
        });
        let place = place.ok().flatten();
        if let Some((line, file)) = place.as_deref().and_then(|place| place.split_once(':')) {
            self.places.insert(function.to_owned(), (file.to_owned(), line.parse().unwrap_or(0)));
        }
    }

    /// Runs one callback of a call and all jobs that follow from it.
    pub(super) fn run<F>(&mut self, id: CallId, callback: F) -> CallbackResult
    where
        F: for<'js> FnOnce(&Ctx<'js>, &State) -> rquickjs::Result<Value<'js>>,
    {
        let kind = self.kind(id);
        self.state.enter(id, kind);
        self.watch(id, self.timeout());
        let state = &self.state;
        let result = self.context.with(|ctx| {
            let value = callback(&ctx, state).map(|value| match kind {
                Some(CallKind::Set) => Some(Persistent::save(&ctx, value)),
                _ => None,
            });
            value.map_err(|error| exception::caught(&ctx, error))
        });
        let drained = if result.is_ok() { self.drain() } else { Ok(()) };
        let result = result.and_then(|value| drained.map(|()| value));
        let result = result.and_then(|value| value.map_or(Ok(None), |value| self.variable_value(value)));
        // A promise may find somebody who handles it as long as the call waits for something.
        let is_due = !(self.state.watch.is_expired() || is_patient(kind) && self.state.pending_count(id) > 0);
        let rejected = if is_due { self.rejection() } else { Ok(()) };
        self.state.watch.stop();
        let mut result = result.and_then(|value| rejected.map(|()| value));
        if let Err(exception) = &mut result {
            self.name_limit(exception);
        }
        result
    }

    /// Value of a variable: that of a promise is its result.
    fn variable_value(&self, value: Persistent<Value<'static>>) -> CallbackResult {
        let state = &self.state;
        self.context.with(|ctx| {
            let read = || {
                let value = value.restore(&ctx)?;
                match value.as_promise().and_then(|promise| promise.result::<Value<'_>>()) {
                    Some(result) => state.optional_bytes(&ctx, &result?),
                    // A promise that nothing settles has no result.
                    None if value.is_promise() => Ok(None),
                    None => state.optional_bytes(&ctx, &value),
                }
            };
            read().map_err(|error| exception::caught(&ctx, error))
        })
    }

    /// Runs jobs until none is left.
    pub(super) fn drain(&self) -> Result<(), Box<Exception>> {
        let runtime = self.context.runtime();
        while runtime.is_job_pending() {
            if runtime.execute_pending_job().is_err() && self.state.watch.is_expired() {
                return Err(exception::with_message("interrupted"));
            }
        }
        Ok(())
    }

    /// Takes a promise that was rejected and that nobody handles.
    pub(super) fn rejection(&self) -> Result<(), Box<Exception>> {
        if self.state.rejection_count.replace(0) == 0 {
            return Ok(());
        }
        self.context.with(|ctx| {
            let taken = self.state.core_function(&ctx, "takeRejection").and_then(|take| take.call(()));
            let reason: Option<Vec<Value<'_>>> = taken.map_err(|error| exception::caught(&ctx, error))?;
            match reason.as_deref() {
                Some([reason]) => {
                    let exception = exception::from_value(reason);
                    Err(Box::new(Exception { is_rejection: true, ..*exception }))
                }
                _ => Ok(()),
            }
        })
    }

    /// Adds the name of the limit that was reached to an exception.
    fn name_limit(&mut self, exception: &mut Exception) {
        if self.state.watch.is_expired() {
            "js_timeout".clone_into(&mut exception.limit);
            let limit_ms = self.state.load.settings.timeout_ms;
            exception.message = format!("the script has used more than {limit_ms} ms of CPU time");
            self.is_spoiled = true;
        } else if exception.message == "null" || exception.message.ends_with("out of memory") {
            // The engine throws `null` if it has no memory even for an exception.
            if exception.message == "null" {
                "null: js_memory is used up, or the script has thrown null"
                    .clone_into(&mut exception.message);
            }
            "js_memory".clone_into(&mut exception.limit);
            self.is_spoiled = true;
        }
    }
}

/// Returns whether rejected promises of a call are reported at its end, and not as soon as one of its callbacks has returned.
const fn is_patient(kind: Option<CallKind>) -> bool {
    matches!(kind, Some(CallKind::Content | CallKind::Access | CallKind::Periodic))
}
