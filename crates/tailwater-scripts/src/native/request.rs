//! Native functions that read the request: no message is sent for them, except for variables and bodies.

use std::rc::Rc;

use rquickjs::promise::PromiseState;
use rquickjs::{Ctx, Exception, IntoJs, Object, Value};
use tw_script::{
    ByteBuf, CallKind, Effect, Field, HttpSnapshot, LogLevel, Operation, Reply, ResponseHead, Snapshot,
    Subject, Token,
};

use super::bytes;
use super::function::natives;
use crate::exception;
use crate::state::State;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        subject();
        call();
        is_filter();
        is_body_filter();
        is_text();
        text(which: u32, subject: f64);
        is_internal(subject: f64);
        fields(which: u32, subject: f64);
        field_values(which: u32, subject: f64, name: String);
        status(subject: f64);
        variable(subject: f64, name: Value<'js>);
        raw_variable(subject: f64, name: Value<'js>);
        set_variable(subject: f64, name: Value<'js>, value: Value<'js>);
        variable_names();
        request_body();
        read_request_body();
    }
    Ok(())
}

/// The request behind the number of an object in JavaScript.
fn operation_subject(subject: f64) -> Subject {
    if subject == 0.0 { Subject::Main } else { Subject::Subrequest(subject as Token) }
}

#[expect(clippy::unnecessary_wraps, reason = "all native functions have one form")]
impl State {
    /// Kind of the subject: `http`, `stream` or nothing.
    fn subject(&self, _: &Ctx<'_>) -> rquickjs::Result<&'static str> {
        Ok(match &*self.snapshot.borrow() {
            Snapshot::Http(_) => "http",
            Snapshot::Stream(_) => "stream",
            Snapshot::None => "",
        })
    }

    /// Number of the running call.
    fn call(&self, _: &Ctx<'_>) -> rquickjs::Result<f64> {
        Ok(self.call.get() as f64)
    }

    fn is_filter(&self, _: &Ctx<'_>) -> rquickjs::Result<bool> {
        use CallKind::{BodyBufferFilter, BodyFilter, HeaderFilter, StreamFilter};
        Ok(matches!(self.kind.get(), Some(HeaderFilter | BodyFilter | BodyBufferFilter | StreamFilter)))
    }

    fn is_body_filter(&self, _: &Ctx<'_>) -> rquickjs::Result<bool> {
        Ok(matches!(self.kind.get(), Some(CallKind::BodyFilter | CallKind::BodyBufferFilter)))
    }

    /// Returns whether a body filter gets strings.
    fn is_text(&self, _: &Ctx<'_>) -> rquickjs::Result<bool> {
        Ok(self.kind.get() == Some(CallKind::BodyFilter))
    }

    /// A text of the request: the numbers are those of `request.js`.
    fn text<'js>(&self, ctx: &Ctx<'js>, which: u32, subject: f64) -> rquickjs::Result<Value<'js>> {
        if let Snapshot::Stream(session) = &*self.snapshot.borrow() {
            return bytes::text(&session.remote_address).into_js(ctx);
        }
        let read = |request: &HttpSnapshot| {
            let value = match which {
                0 => &request.method,
                1 => &request.uri,
                2 => &request.args,
                3 => &request.request_line,
                4 => &request.http_version,
                _ => &request.remote_address,
            };
            bytes::text(value).into_js(ctx)
        };
        self.with_request(ctx, subject, read)
    }

    fn is_internal(&self, ctx: &Ctx<'_>, subject: f64) -> rquickjs::Result<bool> {
        self.with_request(ctx, subject, |request| Ok(request.is_internal))
    }

    /// Runs `read` with the fields of a request (0) or of its response (1).
    fn with_fields<'js, T>(
        &self,
        ctx: &Ctx<'js>,
        which: u32,
        subject: f64,
        read: impl FnOnce(&[Field]) -> rquickjs::Result<T>,
    ) -> rquickjs::Result<T> {
        if which == 0 {
            return self.with_request(ctx, subject, |request| read(&request.fields));
        }
        self.with_response(ctx, subject, |response| read(&response.fields))
    }

    /// Runs `read` with the head of a response; that of the main request is asked for once.
    fn with_response<'js, T>(
        &self,
        ctx: &Ctx<'js>,
        subject: f64,
        read: impl FnOnce(&ResponseHead) -> rquickjs::Result<T>,
    ) -> rquickjs::Result<T> {
        if subject != 0.0 {
            let none = ResponseHead::default();
            return self
                .with_request(ctx, subject, |request| read(request.response.as_ref().unwrap_or(&none)));
        }
        self.load_response(ctx)?;
        read(self.response.borrow().as_ref().unwrap_or(&ResponseHead::default()))
    }

    /// Asks for the head of the response if it is not known.
    pub(super) fn load_response(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        if self.response.borrow().is_none() {
            let head = match self.ask(ctx, Operation::ResponseHead)? {
                Reply::ResponseHead(head) => head,
                _ => ResponseHead::default(),
            };
            *self.response.borrow_mut() = Some(head);
        }
        Ok(())
    }

    /// Names and values in turn.
    fn fields<'js>(&self, ctx: &Ctx<'js>, which: u32, subject: f64) -> rquickjs::Result<Vec<String>> {
        self.with_fields(ctx, which, subject, |fields| {
            let texts = fields.iter().flat_map(|field| [&field.name, &field.value]);
            Ok(texts.map(|text| bytes::text(text).into_owned()).collect())
        })
    }

    /// Values of all fields with a name.
    fn field_values<'js>(
        &self,
        ctx: &Ctx<'js>,
        which: u32,
        subject: f64,
        name: String,
    ) -> rquickjs::Result<Vec<String>> {
        self.with_fields(ctx, which, subject, |fields| {
            let found = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes()));
            Ok(found.map(|field| bytes::text(&field.value).into_owned()).collect())
        })
    }

    fn status<'js>(&self, ctx: &Ctx<'js>, subject: f64) -> rquickjs::Result<u16> {
        if let Snapshot::Stream(session) = &*self.snapshot.borrow() {
            return Ok(session.status);
        }
        self.with_response(ctx, subject, |response| Ok(response.status))
    }

    fn variable_bytes<'js>(
        &self,
        ctx: &Ctx<'js>,
        subject: f64,
        name: &Value<'js>,
    ) -> rquickjs::Result<Option<Vec<u8>>> {
        let name: ByteBuf = self.bytes(ctx, name)?.into();
        let subject = operation_subject(subject);
        let mut reply = self.ask(ctx, Operation::Variable { subject, name: name.clone() })?;
        // The value depends on variables that functions of the script compute.
        while let Reply::Function { variable, function } = reply {
            let value = self.compute(ctx, &function)?.map(ByteBuf::from);
            reply =
                self.ask(ctx, Operation::VariableValue { variable, value, subject, name: name.clone() })?;
        }
        match reply {
            Reply::Value(value) => Ok(value.map(ByteBuf::into_vec)),
            _ => Ok(None),
        }
    }

    /// Value of a variable of `js_set` by its function, which gets the request of the running call; `None` after an exception, which is
    /// logged.
    fn compute(&self, ctx: &Ctx<'_>, function: &str) -> rquickjs::Result<Option<Vec<u8>>> {
        let call = || -> rquickjs::Result<Option<Vec<u8>>> {
            let Some(found) = self.find_function(ctx, function)? else {
                let message = format!("js function \"{function}\" not found");
                return Err(Exception::throw_reference(ctx, &message));
            };
            let value: Value<'_> =
                self.core_function(ctx, "start")?.call((self.call.get() as f64, found, false))?;
            match value.as_promise() {
                Some(promise) => {
                    // The value of an asynchronous function is its result.
                    while promise.state() == PromiseState::Pending
                        && !self.watch.is_expired()
                        && ctx.execute_pending_job()
                    {}
                    let result = promise.result::<Value<'_>>();
                    result.map_or(Ok(None), |result| self.optional_bytes(ctx, &result?))
                }
                None => self.optional_bytes(ctx, &value),
            }
        };
        match call() {
            Ok(value) => Ok(Some(value.unwrap_or_default())),
            // Nothing catches the end of the time.
            Err(error) if self.watch.is_expired() => Err(error),
            Err(error) => {
                let message = format!("exception: {}", exception::caught(ctx, error).message);
                self.effect(
                    ctx,
                    Effect::Log { level: LogLevel::Error, message: message.into_bytes().into() },
                )?;
                Ok(None)
            }
        }
    }

    fn variable<'js>(
        &self,
        ctx: &Ctx<'js>,
        subject: f64,
        name: Value<'js>,
    ) -> rquickjs::Result<Option<String>> {
        let value = self.variable_bytes(ctx, subject, &name)?;
        Ok(value.map(|value| bytes::text(&value).into_owned()))
    }

    fn raw_variable<'js>(
        &self,
        ctx: &Ctx<'js>,
        subject: f64,
        name: Value<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        let value = self.variable_bytes(ctx, subject, &name)?;
        bytes::optional_array(ctx, value.as_deref())
    }

    fn set_variable<'js>(
        &self,
        ctx: &Ctx<'js>,
        subject: f64,
        name: Value<'js>,
        value: Value<'js>,
    ) -> rquickjs::Result<()> {
        let name = self.bytes(ctx, &name)?.into();
        let value = self.bytes(ctx, &value)?.into();
        let subject = operation_subject(subject);
        self.ask(ctx, Operation::SetVariable { subject, name, value }).map(drop)
    }

    /// Names of the variables of `js_var`.
    fn variable_names(&self, ctx: &Ctx<'_>) -> rquickjs::Result<Vec<String>> {
        match self.ask(ctx, Operation::VariableNames)? {
            Reply::Names(names) => Ok(names.iter().map(|name| bytes::text(name).into_owned()).collect()),
            _ => Ok(Vec::new()),
        }
    }

    fn request_body<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Value<'js>> {
        match self.ask(ctx, Operation::RequestBody)? {
            Reply::Value(body) => bytes::optional_array(ctx, body.as_deref().map(Vec::as_slice)),
            _ => Err(Exception::throw_message(ctx, "failed to read request body")),
        }
    }

    fn read_request_body(&self, ctx: &Ctx<'_>) -> rquickjs::Result<f64> {
        self.start(ctx, Operation::ReadRequestBody)
    }
}
