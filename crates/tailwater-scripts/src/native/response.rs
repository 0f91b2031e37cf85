//! Native functions that change the response, the session or the log.

use std::rc::Rc;

use rquickjs::{Ctx, Exception, Object, Value};
use tw_script::{Effect, Field, LogLevel};

use super::function::natives;
use crate::state::{LOG_SIZE_MAX, State};

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        log(level: f64, message: Value<'js>);
        set_status(status: f64);
        set_field(name: String, values: Vec<String>);
        respond(status: u16, text: rquickjs::function::Opt<Value<'js>>);
        send_header();
        send(data: Value<'js>);
        finish();
        internal_redirect(uri: Value<'js>);
        decline();
        set_return_value(value: Value<'js>);
        send_buffer(data: Value<'js>, is_last: Option<bool>, is_flushed: Option<bool>);
        filter_done();
        stream_send(data: Value<'js>, from_client: bool, is_last: Option<bool>, is_flushed: Option<bool>);
        subscribe(from_client: bool, from_upstream: bool);
        stream_done(code: i32);
    }
    Ok(())
}

impl State {
    fn log<'js>(&self, ctx: &Ctx<'js>, level: f64, message: Value<'js>) -> rquickjs::Result<()> {
        let level = match level as i64 {
            0 => LogLevel::Debug,
            1 => LogLevel::Info,
            2 => LogLevel::Warn,
            _ => LogLevel::Error,
        };
        let mut message = self.log_text(ctx, &message)?;
        message.truncate(LOG_SIZE_MAX);
        self.effect(ctx, Effect::Log { level, message: message.into() })
    }

    /// Text of a value in the log, where `undefined` and `null` have their names.
    fn log_text<'js>(&self, ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Vec<u8>> {
        if value.is_undefined() || value.is_null() {
            return self.string(ctx, value).map(String::into_bytes);
        }
        self.bytes(ctx, value)
    }

    fn set_status(&self, ctx: &Ctx<'_>, status: f64) -> rquickjs::Result<()> {
        if !(0.0..=f64::from(u16::MAX)).contains(&status) {
            return Err(Exception::throw_range(ctx, "status is out of range"));
        }
        let status = status as u16;
        if let Some(response) = self.response.borrow_mut().as_mut() {
            response.status = status;
        }
        self.effect(ctx, Effect::SetStatus { status })
    }

    fn set_field(&self, ctx: &Ctx<'_>, name: String, values: Vec<String>) -> rquickjs::Result<()> {
        if let Some(response) = self.response.borrow_mut().as_mut() {
            response.fields.retain(|field| !field.name.eq_ignore_ascii_case(name.as_bytes()));
            let added = values.iter().map(|value| Field::new(name.as_str(), value.as_str()));
            response.fields.extend(added);
        }
        let values = values.into_iter().map(|value| value.into_bytes().into()).collect();
        self.effect(ctx, Effect::SetResponseField { name: name.into_bytes().into(), values })
    }

    fn respond<'js>(
        &self,
        ctx: &Ctx<'js>,
        status: u16,
        text: rquickjs::function::Opt<Value<'js>>,
    ) -> rquickjs::Result<()> {
        let text = text.0.map(|text| self.bytes(ctx, &text)).transpose()?.map(Into::into);
        self.effect(ctx, Effect::Return { status, text })
    }

    fn send_header(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        self.effect(ctx, Effect::SendHeader)?;
        self.sending_call.set(self.call.get());
        Ok(())
    }

    fn send<'js>(&self, ctx: &Ctx<'js>, data: Value<'js>) -> rquickjs::Result<()> {
        let data = self.bytes(ctx, &data)?;
        if data.is_empty() {
            return Ok(());
        }
        self.effect(ctx, Effect::Send { data: data.into() })?;
        self.sending_call.set(self.call.get());
        Ok(())
    }

    fn finish(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        self.effect(ctx, Effect::Finish)
    }

    fn internal_redirect<'js>(&self, ctx: &Ctx<'js>, uri: Value<'js>) -> rquickjs::Result<()> {
        let uri = self.bytes(ctx, &uri)?.into();
        self.effect(ctx, Effect::InternalRedirect { uri })
    }

    fn decline(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        self.effect(ctx, Effect::Decline)
    }

    fn set_return_value<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<()> {
        let value = self.optional_bytes(ctx, &value)?;
        *self.return_value.borrow_mut() = Some(value);
        Ok(())
    }

    fn send_buffer<'js>(
        &self,
        ctx: &Ctx<'js>,
        data: Value<'js>,
        is_last: Option<bool>,
        is_flushed: Option<bool>,
    ) -> rquickjs::Result<()> {
        let data = self.bytes(ctx, &data)?.into();
        self.effect(ctx, Effect::SendBuffer { data, is_last, is_flushed })
    }

    fn filter_done(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        self.effect(ctx, Effect::FilterDone)
    }

    fn stream_send<'js>(
        &self,
        ctx: &Ctx<'js>,
        data: Value<'js>,
        from_client: bool,
        is_last: Option<bool>,
        is_flushed: Option<bool>,
    ) -> rquickjs::Result<()> {
        let data = self.bytes(ctx, &data)?.into();
        self.effect(ctx, Effect::StreamSend { data, from_client, is_last, is_flushed })
    }

    fn subscribe(&self, ctx: &Ctx<'_>, from_client: bool, from_upstream: bool) -> rquickjs::Result<()> {
        self.subscriptions.borrow_mut().insert(self.call.get(), (from_client, from_upstream));
        self.effect(ctx, Effect::Subscribe { from_client, from_upstream })
    }

    fn stream_done(&self, ctx: &Ctx<'_>, code: i32) -> rquickjs::Result<()> {
        self.stream_code.set(Some(code));
        self.effect(ctx, Effect::StreamDone { code })
    }
}
