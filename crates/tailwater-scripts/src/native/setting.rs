//! Native functions for timers, parts of the API and values of the configuration.

use std::rc::Rc;
use std::time::Instant;

use rquickjs::context::EvalOptions;
use rquickjs::{Ctx, Exception, Function, IntoJs, Object, Value};
use tw_script::{DictionaryType, Effect};

use super::bytes;
use super::function::natives;
use crate::exception::BUILTIN_PREFIX;
use crate::state::State;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        part(name: String);
        environment();
        set_timer(delay_ms: f64);
        clear_timer(id: f64);
        now();
        set_exit_callbacks();
    }
    Ok(())
}

/// Sources of the API, by the names of its parts.
const PARTS: &[(&str, &str)] = &[
    ("buffer", include_str!("../builtin/buffer.js")),
    ("canonical", include_str!("../builtin/canonical.js")),
    ("console", include_str!("../builtin/console.js")),
    ("core", include_str!("../builtin/core.js")),
    ("crypto", include_str!("../builtin/crypto.js")),
    ("encoding", include_str!("../builtin/encoding.js")),
    ("fetch", include_str!("../builtin/fetch.js")),
    ("form", include_str!("../builtin/form.js")),
    ("fs", include_str!("../builtin/fs.js")),
    ("keys", include_str!("../builtin/keys.js")),
    ("ngx", include_str!("../builtin/ngx.js")),
    ("njs", include_str!("../builtin/njs.js")),
    ("process", include_str!("../builtin/process.js")),
    ("querystring", include_str!("../builtin/querystring.js")),
    ("request", include_str!("../builtin/request.js")),
    ("stream", include_str!("../builtin/stream.js")),
    ("webcrypto", include_str!("../builtin/webcrypto.js")),
    ("xml", include_str!("../builtin/xml.js")),
    ("zlib", include_str!("../builtin/zlib.js")),
];

/// Modules that scripts import by a name without a path.
pub(crate) const MODULES: &[&str] = &["buffer", "crypto", "fs", "querystring", "xml", "zlib"];

/// Evaluates a part of the API: a function of `host` and `core`.
pub(crate) fn evaluate_part<'js>(ctx: &Ctx<'js>, name: &str) -> rquickjs::Result<Function<'js>> {
    let Some((_, source)) = PARTS.iter().find(|part| part.0 == name) else {
        return Err(Exception::throw_reference(ctx, &format!("{name} is not available")));
    };
    let mut options = EvalOptions::default();
    options.filename = Some(format!("{BUILTIN_PREFIX}{name}"));
    ctx.eval_with_options(*source, options)
}

impl State {
    fn part<'js>(&self, ctx: &Ctx<'js>, name: String) -> rquickjs::Result<Function<'js>> {
        evaluate_part(ctx, &name)
    }

    fn environment<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
        let environment = &self.load.environment;
        let object = Object::new(ctx.clone())?;
        object.set("version", environment.version.as_str())?;
        object.set("versionNumber", environment.version_number)?;
        object.set("build", environment.build.as_str())?;
        object.set("confFilePath", environment.conf_file_path.as_str())?;
        object.set("confPrefix", environment.conf_prefix.as_str())?;
        object.set("prefix", environment.prefix.as_str())?;
        object.set("errorLogPath", environment.error_log_path.as_str())?;
        object.set("engineId", self.load.script as f64)?;
        object.set("workerId", environment.worker_id)?;
        object.set("pid", environment.pid)?;
        object.set("ppid", environment.ppid)?;
        let argv: Vec<_> = environment.argv.iter().map(|value| bytes::text(value).into_owned()).collect();
        object.set("argv", argv)?;
        let env = environment.env.iter().map(|variable| {
            vec![bytes::text(&variable.name).into_owned(), bytes::text(&variable.value).into_owned()]
        });
        object.set("env", env.collect::<Vec<_>>())?;
        object.set("dictionaries", self.dictionaries(ctx)?)?;
        Ok(object)
    }

    fn dictionaries<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Vec<Value<'js>>> {
        let describe = |dictionary: &tw_script::Dictionary| {
            let object = Object::new(ctx.clone())?;
            object.set("name", dictionary.name.as_str())?;
            object.set("capacity", dictionary.capacity as f64)?;
            object.set("hasTimeout", dictionary.has_timeout)?;
            object.set(
                "type",
                match dictionary.kind {
                    DictionaryType::String => "string",
                    DictionaryType::Number => "number",
                },
            )?;
            object.into_js(ctx)
        };
        self.load.environment.dictionaries.iter().map(describe).collect()
    }

    fn set_timer(&self, ctx: &Ctx<'_>, delay_ms: f64) -> rquickjs::Result<f64> {
        self.start_timer(ctx, delay_ms)
    }

    #[expect(clippy::unnecessary_wraps, reason = "all native functions have one form")]
    fn clear_timer(&self, _: &Ctx<'_>, id: f64) -> rquickjs::Result<()> {
        self.stop_timer(id);
        Ok(())
    }

    fn set_exit_callbacks(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        if self.has_exit_callbacks.replace(true) || self.call.get() == 0 {
            return Ok(());
        }
        self.effect(ctx, Effect::ExitHook)
    }

    /// Milliseconds since the context was made.
    #[expect(clippy::unnecessary_wraps, reason = "all native functions have one form")]
    fn now(&self, _: &Ctx<'_>) -> rquickjs::Result<f64> {
        Ok(Instant::now().duration_since(self.created).as_secs_f64() * 1000.0)
    }
}
