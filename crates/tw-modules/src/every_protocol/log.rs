//! `access_log`, `log_format`: one line per request (nginx: ngx_http_log_module, ngx_stream_log_module). Log handler,
//! in every protocol.
//!
//! A line is made in one buffer of the loop and copied into the ring of its file or syslog server, which has a thread
//! that writes it. A full ring drops lines and counts them; a session never waits for a log. A path with variables is
//! sent along with its line: the thread opens the file.
//!
//! A level with `access_log` replaces those of the outer level; `off` wins over other logs of its level. Formats may be
//! defined anywhere in `http`.

mod path;
mod raw;

use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, IF_IN_LOCATION, LIMIT_EXCEPT, LOCATION, MAIL, MAIL_SERVER,
    SERVER, STREAM, STREAM_SERVER, Setting, record,
};
use tw_core::load::Resolve;
use tw_core::log::{LogPlan, LoggedSession, SessionLogger, SinkRef};
use tw_core::module::{Protocol, Settings};
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_core::vars::{Template, Value};
use tw_log::escape::Escape;
use tw_log::{CacheConfig, Level, NamedFiles, PushResult, Sink, SyslogHead, Target};

use self::path::VarPath;
use self::raw::{Raw, RawFormat, RawLog, read_cache, read_format, read_log};

const SERVERS: Contexts = HTTP | SERVER | LOCATION | STREAM | STREAM_SERVER | MAIL | MAIL_SERVER;

/// The buffer of a line keeps at most this much memory between two sessions, bytes.
const LINE_KEEP: usize = 16 << 10;

/// Logs of one location.
pub(crate) struct AccessLog<S> {
    formats: Arc<[Format<S>]>,
    /// `None` only in the outermost block, when nothing is written there.
    logs: Option<Arc<[Log<S>]>>,
    /// `open_log_file_cache`
    cache: Option<CacheConfig>,
}

/// One `log_format`.
struct Format<S> {
    name: Box<[u8]>,
    escape: Escape,
    line: Template<S>,
}

/// One `access_log`.
struct Log<S> {
    sink: SinkRef,
    place: LogDestination<S>,
    format: Format<S>,
    condition: Option<Template<S>>,
}

/// Destination of the lines of a log.
enum LogDestination<S> {
    /// Into a file.
    File,
    /// To a syslog server.
    Syslog(Arc<SyslogHead>, Level),
    /// Into the file of this name.
    Named(Arc<VarPath<S>>),
}

impl<P: Protocol> Settings<P> for AccessLog<P::Session>
where
    P::Session: LoggedSession,
    P::Plan: LogPlan<P::Session>,
{
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("log_format", "name [escape=default|json|none] string …", HTTP | STREAM | MAIL, Args::at_least(2))
            .default("combined \"…\"")
            .doc("Defines a log format. escape= selects how variables are escaped: as \\x22, as in JSON strings, or not at all.")
            .set(|raw, node, _| {
                let format = read_format(node)?;
                let same = |raw_format: &RawFormat| raw_format.name == format.name;
                let is_known = raw.formats.get().is_some_and(|raw_formats| raw_formats.iter().any(same));
                let is_given = P::Session::FORMAT.is_some_and(|(name, _)| *format.name == *name.as_bytes());
                if is_known || is_given {
                    let name = node.arg(0)?;
                    return Err(node.fail(format!("duplicate \"log_format\" name \"{name}\"")));
                }
                raw.formats.push(node, format);
                Ok(())
            }),
        record::new(
            "access_log",
            "path [format [buffer=size] [gzip[=level]] [flush=time] [if=condition]] | syslog:server=address[,parameter=value] [format [if=condition]] | off",
            SERVERS | IF_IN_LOCATION | LIMIT_EXCEPT,
            Args::at_least(1),
        )
        .default("logs/access.log combined")
        .doc("Log file or syslog server for requests, with the format and the buffer. The path may contain variables. A block may contain several.")
        .set(|raw, node, _| {
            let path = node.arg(0)?;
            if path.is("off") {
                raw.off.replace(node, ());
                return node.args.get(1).map_or(Ok(()), |word| Err(node.invalid_parameter(word)));
            }
            let log = read_log(node, path)?;
            raw.logs.push(node, log);
            Ok(())
        }),
        record::new(
            "open_log_file_cache",
            "max=N [inactive=time] [min_uses=N] [valid=time] | off",
            SERVERS,
            Args::range(1, 4),
        )
        .default("off")
        .doc("Keeps log files open whose names contain variables; the numbers apply to each log.")
        .set(|raw, node, _| raw.cache.set_with(node, read_cache)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let formats = match outer {
            Some(outer) => outer.formats.clone(),
            None => resolve_formats(raw.formats, cx)?,
        };
        let cache = raw.cache.or_else(|| outer.map(|outer| outer.cache), || None);
        let written_logs: Option<Vec<Log<_>>> = match raw.logs.take() {
            Some(logs) => {
                Some(logs.iter().map(|log| resolve_log(log, &formats, cache, cx)).collect::<Result<_, _>>()?)
            }
            None => None,
        };
        let logs = match (raw.off.is_set(), written_logs, outer) {
            (true, ..) => Some([].into()),
            (false, Some(logs), _) => Some(logs.into()),
            (false, None, Some(AccessLog { logs: Some(logs), cache: outer_cache, .. })) => {
                Some(if *outer_cache == cache { logs.clone() } else { with_cache(logs, cache, cx) })
            }
            (false, None, Some(_)) => {
                let log = P::Session::FILE.zip(formats.first()).map(|(path, format)| Log {
                    sink: cx.sink(&full_path(path.as_bytes(), cx)),
                    place: LogDestination::File,
                    format: format.clone(),
                    condition: None,
                });
                Some(log.into_iter().collect())
            }
            (false, None, None) => None,
        };
        Ok(Self { formats, logs, cache })
    }

    fn are_shared(&self) -> bool {
        self.logs.is_some()
    }

    fn install(self: &Arc<Self>, plan: &mut P::Plan) {
        if self.logs.as_ref().is_some_and(|logs| !logs.is_empty()) {
            plan.add_session_logger(self.clone());
        }
    }

    fn reach(&self, _core: &P::Core, reach: &mut Reach) {
        for log in self.logs.iter().flat_map(|logs| logs.iter()) {
            if let LogDestination::Named(path) = &log.place {
                reach.appends(&path.path, Some(path.at));
            }
        }
    }
}

impl<S: LoggedSession> SessionLogger<S> for AccessLog<S> {
    fn record(&self, s: &S) {
        thread_local! {
            static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let mut line = LINE.take();
        for log in self.logs.iter().flat_map(|logs| logs.iter()) {
            if let Some(sink) = log.sink.sink()
                && log.is_wanted(s, &mut line)
            {
                // DIFF(nginx): a line that finds the ring full is dropped. Its sink counts it.
                let _ = log.push(sink, s, &mut line);
            }
        }
        if line.capacity() <= LINE_KEEP {
            LINE.set(line);
        }
    }
}

impl<S: LoggedSession> Log<S> {
    /// Evaluates `if=` for `s`; `buf` is scratch.
    fn is_wanted(&self, s: &S, buf: &mut Vec<u8>) -> bool {
        self.condition.as_ref().is_none_or(|condition| {
            buf.clear();
            condition.eval(s, buf);
            !matches!(buf.as_slice(), b"" | b"0")
        })
    }

    /// Makes the line of `s` in `line` and queues it.
    fn push(&self, sink: &Sink, s: &S, line: &mut Vec<u8>) -> Option<PushResult> {
        line.clear();
        if let LogDestination::Syslog(head, severity) = &self.place {
            head.push(line, *severity, tw_rt::clock::unix().secs);
            self.format.write(s, line);
            return Some(sink.push(line));
        }
        self.format.write(s, line);
        line.push(b'\n');
        match &self.place {
            LogDestination::File | LogDestination::Syslog(..) => Some(sink.push(line)),
            LogDestination::Named(path) => {
                let mut buf = s.scratch().take();
                let pushed = match path.eval(s, &mut buf) {
                    Ok(path) => Some(s.push_to(sink, path, line)),
                    Err(why) => {
                        let path = tw_log::Text(&buf);
                        s.log(Level::Error, format_args!("access_log \"{path}\" is refused: {why}"));
                        None
                    }
                };
                s.scratch().set(buf);
                pushed
            }
        }
    }
}

impl<S: Session> Format<S> {
    /// Appends the line of `s`.
    fn write(&self, s: &S, line: &mut Vec<u8>) {
        self.line.eval_each(s, line, |line, start, value| match value {
            Value::Found => self.escape.escape(line, start),
            Value::Missing => self.escape.push_missing(line),
        });
    }
}

/// All formats; the first one is that of logs that name none, if there is such a format.
fn resolve_formats<P: Protocol<Session: LoggedSession>>(
    raw: Setting<Vec<RawFormat>>,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<[Format<P::Session>]>, ConfError> {
    let mut formats = Vec::new();
    if let Some((name, line)) = P::Session::FORMAT {
        let line = cx.template_text(line.as_bytes(), None)?;
        formats.push(Format { name: name.as_bytes().into(), escape: Escape::Default, line });
    }
    for RawFormat { name, escape, strings } in raw.take().unwrap_or_default() {
        let strings: Vec<_> = strings.iter().map(|word| cx.template(word)).collect::<Result<_, _>>()?;
        formats.push(Format { name, escape, line: Template::joined(strings) });
    }
    Ok(formats.into())
}

fn resolve_log<P: Protocol<Session: LoggedSession>>(
    log: &RawLog,
    formats: &[Format<P::Session>],
    cache: Option<CacheConfig>,
    cx: &mut Resolve<'_, P>,
) -> Result<Log<P::Session>, ConfError> {
    let format = match &log.format {
        None => P::Session::FORMAT
            .and(formats.first())
            .ok_or_else(|| ConfError::new("log format is not specified").at(log.path.span))?,
        Some(word) => {
            // DIFF(nginx): it may stand behind the log that names it.
            let found_format = formats.iter().find(|format| format.name.eq_ignore_ascii_case(&word.bytes));
            found_format
                .ok_or_else(|| ConfError::new(format!("unknown log format \"{word}\"")).at(word.span))?
        }
    };
    let path = full_path(&log.path.bytes, cx);
    let (sink, place) = match (&log.syslog, log.batch) {
        (Some(syslog), _) => {
            let sink = cx.sink_of(&Target::Syslog(syslog.server.clone()));
            (sink, LogDestination::Syslog(Arc::new(syslog.head.clone()), syslog.severity))
        }
        (None, _) if log.has_variables() => {
            let sink = cx.sink_of(&variable_files(log.path.lossy().into(), cache));
            (sink, LogDestination::Named(Arc::new(VarPath::compile(&log.path, cx)?)))
        }
        (None, None) => (cx.sink(&path), LogDestination::File),
        (None, Some(batch)) => {
            let sink = cx.batched_sink(&path, batch).map_err(|_| {
                let path = &log.path;
                let message = format!("access_log \"{path}\" already defined with conflicting parameters");
                ConfError::new(message).at(path.span)
            })?;
            (sink, LogDestination::File)
        }
    };
    let condition = log.condition.as_ref().map(|word| cx.template(word)).transpose()?;
    Ok(Log { sink, place, format: format.clone(), condition })
}

/// Files whose names contain variables. Two logs with the same text share one thread.
fn variable_files(path: String, cache: Option<CacheConfig>) -> Target {
    Target::Files(NamedFiles { name: path, cache, opener: tw_core::log::OPENER })
}

/// Logs of an outer level, with another cache of their files.
fn with_cache<P: Protocol>(
    logs: &[Log<P::Session>],
    cache: Option<CacheConfig>,
    cx: &mut Resolve<'_, P>,
) -> Arc<[Log<P::Session>]> {
    let change = |log: &Log<P::Session>| match (&log.place, log.sink.target()) {
        (LogDestination::Named(_), Target::Files(files)) => {
            Log { sink: cx.sink_of(&variable_files(files.name.clone(), cache)), ..log.clone() }
        }
        _ => log.clone(),
    };
    logs.iter().map(change).collect()
}

fn full_path<P: Protocol>(name: &[u8], cx: &Resolve<'_, P>) -> PathBuf {
    OsString::from_vec(cx.full_path(name)).into()
}

// `#[derive(Clone)]` would require `S: Clone`, although no field holds a session.

impl<S> Clone for Format<S> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), escape: self.escape, line: self.line.clone() }
    }
}

impl<S> Clone for Log<S> {
    fn clone(&self) -> Self {
        Self {
            sink: self.sink.clone(),
            place: self.place.clone(),
            format: self.format.clone(),
            condition: self.condition.clone(),
        }
    }
}

impl<S> Clone for LogDestination<S> {
    fn clone(&self) -> Self {
        match self {
            Self::File => Self::File,
            Self::Syslog(head, severity) => Self::Syslog(head.clone(), *severity),
            Self::Named(path) => Self::Named(path.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_conf::{Diagnostics, MemoryFiles, Reader, Tree};
    use tw_core::load::Prefixes;
    use tw_request::generation::Config;
    use tw_server::load::load;

    /// Loads `http { CONF }`; the error is a line as in the error log, without its file.
    fn config(conf: &str) -> Result<Config, String> {
        let mut tree = Tree::default();
        let text = format!("events {{ }} http {{ {conf} }}");
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"conf", text.as_bytes()).unwrap();
        let prefixes = Prefixes {
            prefix: b"/p/".to_vec(),
            conf: b"/p/".to_vec(),
            error_log: b"error.log".to_vec(),
            hostname: b"host.example".to_vec(),
        };
        load(
            &mut tree,
            &MemoryFiles::default(),
            &prefixes,
            crate::MODULES,
            &tw_core::shared_objects::SharedObjects::default(),
            &mut Diagnostics::default(),
        )
        .map_err(|error| error.line(&tree.sources).trim_end_matches(" in conf:1").to_owned())
    }

    #[test]
    fn errors_are_those_of_nginx() {
        for (conf, expected) in [
            ("log_format a;", "invalid number of arguments in \"log_format\" directive"),
            ("log_format combined x;", "duplicate \"log_format\" name \"combined\""),
            ("log_format a x; log_format a y;", "duplicate \"log_format\" name \"a\""),
            ("log_format a escape=xml x;", "unknown log format escaping \"xml\""),
            ("log_format a 'x$';", "invalid parameter \"$\""),
            ("log_format a 'x${';", "invalid parameter \"${\""),
            ("log_format a '$-x';", "invalid parameter \"$-x\""),
            ("log_format a '${x';", "the closing bracket in \"x\" variable is missing"),
            ("log_format a $nothing;", "unknown \"nothing\" variable"),
            ("access_log x y;", "unknown log format \"y\""),
            ("access_log x buffer=1k;", "unknown log format \"buffer=1k\""),
            ("access_log x combined buffer=0;", "invalid buffer size \"0\""),
            ("access_log x combined buffer=1g;", "invalid buffer size \"1g\""),
            ("access_log x combined buffer=1 flush=0;", "invalid flush time \"0\""),
            ("access_log x combined buffer=1 flush=1x;", "invalid flush time \"1x\""),
            ("access_log x combined flush=1s;", "no buffer is defined for access_log \"x\""),
            ("access_log x combined what;", "invalid parameter \"what\""),
            ("access_log x combined if=$x;", "unknown \"x\" variable"),
            ("access_log off on;", "invalid parameter \"on\""),
            ("access_log;", "invalid number of arguments in \"access_log\" directive"),
            (
                "access_log x combined buffer=1k; access_log x combined buffer=2k;",
                "access_log \"x\" already defined with conflicting parameters",
            ),
            ("open_log_file_cache max=0;", "\"open_log_file_cache\" must have \"max\" parameter"),
            ("open_log_file_cache max=x;", "invalid \"open_log_file_cache\" parameter \"max=x\""),
            (
                "open_log_file_cache off; open_log_file_cache off;",
                "\"open_log_file_cache\" directive is duplicate",
            ),
            ("access_log x combined gzip=0;", "invalid compression level \"0\""),
            ("access_log x combined gzip=10;", "invalid compression level \"10\""),
            ("access_log x combined gzip=;", "invalid compression level \"\""),
            ("access_log x combined gzipped;", "invalid parameter \"gzipped\""),
            (
                "access_log x combined gzip; access_log x combined buffer=64k;",
                "access_log \"x\" already defined with conflicting parameters",
            ),
            ("access_log $host.log combined buffer=1k;", "buffered logs cannot have variables in name"),
            ("access_log $host.log combined gzip;", "buffered logs cannot have variables in name"),
            ("access_log $nothing.log;", "unknown \"nothing\" variable"),
            ("access_log x$;", "invalid variable name in \"x$\""),
            ("access_log syslog:server=127.0.0.1 combined buffer=1k;", "logs to syslog cannot be buffered"),
            ("access_log syslog:server=127.0.0.1 what;", "unknown log format \"what\""),
            ("access_log syslog:tag=a;", "no syslog server specified"),
            ("error_log syslog:tag=a;", "no syslog server specified"),
            ("error_log memory:1;", "invalid buffer size \"1\""),
            ("error_log memory:x;", "invalid buffer size \"x\""),
            ("error_log x what;", "invalid log level \"what\""),
            ("error_log x warn info;", "duplicate log level \"info\""),
            ("error_log x debug_http info;", "duplicate log level \"info\""),
            ("error_log x info debug_http;", "invalid log level \"debug_http\""),
        ] {
            assert_eq!(config(conf).err().as_deref(), Some(expected), "{conf}");
        }
        for conf in [
            "log_format a escape=json;",
            "access_log x COMBINED;",
            "access_log x late; log_format late x;",
            "access_log x combined buffer=1k; access_log x combined; access_log x combined buffer=1k;",
            "open_log_file_cache max=10 inactive=20s valid=1m min_uses=2;",
            "open_log_file_cache off; access_log $host/a.log;",
            "access_log x combined gzip; access_log x combined gzip=1 buffer=64k;",
            "access_log x combined gzip flush=1s buffer=1k;",
            "access_log syslog:server=127.0.0.1:1,facility=user,tag=a,nohostname combined if=$arg_a;",
            "error_log syslog:server=[::1]:1 debug_http debug_event; error_log memory:1m debug; error_log stderr;",
        ] {
            assert_eq!(config(conf).err(), None, "{conf}");
        }
    }
}
