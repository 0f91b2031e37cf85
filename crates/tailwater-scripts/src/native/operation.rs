//! Native functions that ask the host for work: subrequests, other servers, dictionaries and files.

use std::rc::Rc;

use rquickjs::{Ctx, Exception, Object, Value};
use tw_script::{ByteBuf, DictionaryCommand, DictionaryValue, FetchRequest, Field, Operation, Reply};

use super::function::natives;
use super::value;
use crate::state::State;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        subrequest(uri: Value<'js>, args: Value<'js>, method: Value<'js>, body: Value<'js>, is_detached: bool);
        fetch(request: Object<'js>);
        dictionary(name: String, command: String, key: Value<'js>, value: Value<'js>, init: Option<f64>, timeout_ms: Option<f64>);
        file(command: Object<'js>, is_awaited: bool);
    }
    Ok(())
}

impl State {
    /// Returns the token of the subrequest; its promise gets the body.
    fn subrequest<'js>(
        &self,
        ctx: &Ctx<'js>,
        uri: Value<'js>,
        args: Value<'js>,
        method: Value<'js>,
        body: Value<'js>,
        is_detached: bool,
    ) -> rquickjs::Result<f64> {
        let operation = Operation::Subrequest {
            uri: self.bytes(ctx, &uri)?.into(),
            args: self.bytes(ctx, &args)?.into(),
            method: self.bytes(ctx, &method)?.into(),
            body: self.optional_bytes(ctx, &body)?.map(Into::into),
            is_detached,
        };
        if is_detached {
            self.ask(ctx, operation)?;
            return Ok(0.0);
        }
        self.start(ctx, operation)
    }

    fn fetch<'js>(&self, ctx: &Ctx<'js>, request: Object<'js>) -> rquickjs::Result<f64> {
        let text = |name: &str| self.bytes(ctx, &request.get(name)?).map(ByteBuf::from);
        let pairs: Vec<Vec<String>> = request.get("fields")?;
        let field = |pair: Vec<String>| match <[String; 2]>::try_from(pair) {
            Ok([name, value]) => Ok(Field::new(name, value)),
            Err(_) => Err(Exception::throw_type(ctx, "a header is no pair")),
        };
        let body: Value<'js> = request.get("body")?;
        let size = |name: &str| request.get::<_, Option<f64>>(name).map(|size| size.map(|size| size as u64));
        let operation = Operation::Fetch(Box::new(FetchRequest {
            url: text("url")?,
            method: text("method")?,
            fields: pairs.into_iter().map(field).collect::<Result<_, _>>()?,
            body: self.optional_bytes(ctx, &body)?.map(Into::into),
            buffer_size: size("bufferSize")?,
            response_size_max: size("responseSizeMax")?,
            is_verified: request.get("isVerified")?,
        }));
        self.start(ctx, operation)
    }

    /// Value of a command of a dictionary; `value` is a number of elements for `keys` and `items`.
    #[expect(clippy::too_many_arguments, reason = "one native function for all commands")]
    fn dictionary<'js>(
        &self,
        ctx: &Ctx<'js>,
        name: String,
        command: String,
        key: Value<'js>,
        value: Value<'js>,
        init: Option<f64>,
        timeout_ms: Option<f64>,
    ) -> rquickjs::Result<Value<'js>> {
        let key = self.bytes(ctx, &key)?.into();
        let timeout_ms = timeout_ms.map(|time| time as u64);
        let number = value.as_number().unwrap_or(0.0);
        let stored = || match value.as_number() {
            Some(number) => Ok(DictionaryValue::Number(number)),
            None => self.bytes(ctx, &value).map(|bytes| DictionaryValue::String(bytes.into())),
        };
        let command = match command.as_str() {
            "get" => DictionaryCommand::Get { key },
            "has" => DictionaryCommand::Has { key },
            "delete" => DictionaryCommand::Delete { key },
            "pop" => DictionaryCommand::Pop { key },
            "ttl" => DictionaryCommand::Ttl { key },
            "set" => DictionaryCommand::Set { key, value: stored()?, timeout_ms },
            "add" => DictionaryCommand::Add { key, value: stored()?, timeout_ms },
            "replace" => DictionaryCommand::Replace { key, value: stored()? },
            "incr" => DictionaryCommand::Incr { key, delta: number, init: init.unwrap_or(0.0), timeout_ms },
            "clear" => DictionaryCommand::Clear,
            "size" => DictionaryCommand::Size,
            "freeSpace" => DictionaryCommand::FreeSpace,
            "keys" => DictionaryCommand::Keys { count_max: number as u32 },
            "items" => DictionaryCommand::Items { count_max: number as u32 },
            _ => return Err(Exception::throw_type(ctx, "unknown command of a dictionary")),
        };
        match self.ask(ctx, Operation::Dictionary { name, command })? {
            Reply::Dictionary(result) => value::dictionary(ctx, result),
            _ => value::undefined(ctx),
        }
    }

    /// Value of a command of `fs`, or the token of its promise.
    fn file<'js>(
        &self,
        ctx: &Ctx<'js>,
        command: Object<'js>,
        is_awaited: bool,
    ) -> rquickjs::Result<Value<'js>> {
        let operation = Operation::File(self.file_command(ctx, &command)?);
        if !is_awaited {
            return value::number(ctx, self.start(ctx, operation)?);
        }
        match self.ask(ctx, operation)? {
            Reply::File(result) => value::file(ctx, result),
            _ => value::undefined(ctx),
        }
    }
}
