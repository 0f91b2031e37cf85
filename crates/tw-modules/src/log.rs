//! `access_log`, `log_format`: one line per request (nginx: ngx_http_log_module). Log handler.
//!
//! A line is made in one buffer of the loop and copied into the ring of its file, whose own thread writes it. A full ring
//! drops lines and counts them; a request never waits for a log.
//!
//! A level with `access_log` replaces what the outer one has; `off` wins over other logs of its level. Formats are found
//! wherever they stand in `http`.

use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{
    Args, ConfError, Directive, HTTP, IF_IN_LOCATION, LIMIT_EXCEPT, LOCATION, Node, SERVER, Setting, Word,
    record, units,
};
use tw_log::Batch;
use tw_log::escape::Escape;
use tw_server::http::plan::{LogHandler, Plan};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::log::SinkRef;
use tw_server::module::Settings;
use tw_server::vars::{Template, Value};

/// The log of a server that names none.
const DEFAULT_PATH: &[u8] = b"logs/access.log";
/// The format of a log that names none.
const COMBINED: (&str, &str) = (
    "combined",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\"",
);
/// The buffer of a line keeps at most this much memory between two requests, bytes.
const LINE_KEEP: usize = 16 << 10;

/// Logs and formats as written.
#[derive(Default)]
pub(crate) struct Raw {
    formats: Setting<Vec<RawFormat>>,
    logs: Setting<Vec<RawLog>>,
    off: Setting<()>,
    open_log_file_cache: Setting<()>,
}

struct RawFormat {
    name: Box<[u8]>,
    escape: Escape,
    strings: Vec<Word>,
}

struct RawLog {
    path: Word,
    format: Option<Word>,
    batch: Option<Batch>,
    condition: Option<Word>,
}

/// Logs of one location.
pub(crate) struct AccessLog {
    formats: Arc<[Format]>,
    /// `None` only in `http`, when nothing is written there.
    logs: Option<Arc<[Log]>>,
}

/// One `log_format`.
#[derive(Clone)]
struct Format {
    name: Box<[u8]>,
    escape: Escape,
    line: Template,
}

/// One `access_log`.
struct Log {
    sink: SinkRef,
    format: Format,
    condition: Option<Template>,
}

impl Settings for AccessLog {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("log_format", "name [escape=default|json|none] string …", HTTP, Args::at_least(2))
            .default("combined \"…\"")
            .doc("Names a format of lines. How variables are escaped in it: as \\x22, as in JSON strings, or not at all.")
            .set(|raw, node, _| {
                let format = read_format(node)?;
                let same = |known: &RawFormat| known.name == format.name;
                let known = raw.formats.get().is_some_and(|known| known.iter().any(same));
                if known || *format.name == *COMBINED.0.as_bytes() {
                    let name = node.arg(0)?;
                    return Err(node.fail(format!("duplicate \"log_format\" name \"{name}\"")));
                }
                raw.formats.push(node, format);
                Ok(())
            }),
        record::new(
            "access_log",
            "path [format [buffer=size] [flush=time] [if=condition]] | off",
            HTTP | SERVER | LOCATION | IF_IN_LOCATION | LIMIT_EXCEPT,
            Args::at_least(1),
        )
        .default("logs/access.log combined")
        .doc("Where requests are logged, in which format, and whether lines wait for a full buffer. Several may stand in one block.")
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
            HTTP | SERVER | LOCATION,
            Args::range(1, 4),
        )
        .default("off")
        .doc("Accepted and without effect: it is for logs with variables in their path, which are not supported yet.")
        .set(|raw, node, _| raw.open_log_file_cache.set_with(node, check_cache)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let formats = match outer {
            Some(outer) => outer.formats.clone(),
            None => resolve_formats(raw.formats, cx)?,
        };
        let written: Option<Vec<Log>> = match raw.logs.take() {
            Some(logs) => {
                Some(logs.iter().map(|log| resolve_log(log, &formats, cx)).collect::<Result<_, _>>()?)
            }
            None => None,
        };
        let logs = match (raw.off.is_set(), written, outer) {
            (true, ..) => Some([].into()),
            (false, Some(logs), _) => Some(logs.into()),
            (false, None, Some(AccessLog { logs: Some(logs), .. })) => Some(logs.clone()),
            (false, None, Some(_)) => {
                let sink = cx.sink(&full_path(DEFAULT_PATH, cx));
                Some([Log { sink, format: formats[0].clone(), condition: None }].into())
            }
            (false, None, None) => None,
        };
        Ok(Self { formats, logs })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.logs.as_ref().is_some_and(|logs| !logs.is_empty()) {
            plan.add_log(self.clone());
        }
    }
}

impl LogHandler for AccessLog {
    fn log(&self, r: &Request) {
        thread_local! {
            static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let mut line = LINE.take();
        for log in self.logs.iter().flat_map(|logs| logs.iter()) {
            if let Some(sink) = log.sink.sink()
                && log.is_wanted(r, &mut line)
            {
                line.clear();
                log.format.write(r, &mut line);
                // DIFF(nginx): a line that finds the ring full is dropped. Its sink counts it; there is nobody else to tell.
                let _ = sink.push(&line);
            }
        }
        if line.capacity() <= LINE_KEEP {
            LINE.set(line);
        }
    }
}

impl Log {
    /// What `if=` says about `r`; `buf` is room for it.
    fn is_wanted(&self, r: &Request, buf: &mut Vec<u8>) -> bool {
        self.condition.as_ref().is_none_or(|condition| {
            buf.clear();
            condition.eval(r, buf);
            !matches!(buf.as_slice(), b"" | b"0")
        })
    }
}

impl Format {
    /// Appends the line of `r` with its line feed.
    fn write(&self, r: &Request, line: &mut Vec<u8>) {
        self.line.eval_each(r, line, |line, start, value| match value {
            Value::Found => self.escape.escape(line, start),
            Value::Missing => self.escape.push_missing(line),
        });
        line.push(b'\n');
    }
}

fn read_format(node: &Node) -> Result<RawFormat, ConfError> {
    let (name, mut strings) = (node.arg(0)?.bytes.clone(), &node.args[1..]);
    let mut escape = Escape::Default;
    if let [first, rest @ ..] = strings
        && let Some(word) = first.param("escape")
    {
        escape = Escape::parse(word).ok_or_else(|| {
            let word = String::from_utf8_lossy(word);
            ConfError::new(format!("unknown log format escaping \"{word}\"")).at(first.span)
        })?;
        strings = rest;
    }
    strings.iter().try_for_each(check_names)?;
    Ok(RawFormat { name, escape, strings: strings.to_vec() })
}

/// A `$` without a name has its own error in a format.
fn check_names(word: &Word) -> Result<(), ConfError> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    for (at, _) in word.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'$') {
        let rest = &word.bytes[at..];
        let name = rest[1..].strip_prefix(b"{").unwrap_or(&rest[1..]);
        if !name.first().is_some_and(is_name) {
            let rest = String::from_utf8_lossy(rest);
            return Err(ConfError::new(format!("invalid parameter \"{rest}\"")).at(word.span));
        }
    }
    Ok(())
}

fn read_log(node: &Node, path: &Word) -> Result<RawLog, ConfError> {
    if path.bytes.starts_with(b"syslog:") {
        return Err(unsupported(path, "\"access_log syslog:\" is"));
    }
    if path.bytes.contains(&b'$') {
        return Err(unsupported(path, "variables in the path of \"access_log\" are"));
    }
    let mut log =
        RawLog { path: path.clone(), format: node.args.get(1).cloned(), batch: None, condition: None };
    let (mut size, mut flush) = (None, None);
    for word in node.args.iter().skip(2) {
        let invalid = |what: &str, value: &[u8]| {
            let value = String::from_utf8_lossy(value);
            ConfError::new(format!("invalid {what} \"{value}\"")).at(word.span)
        };
        if let Some(value) = word.param("buffer") {
            let bytes =
                units::size(value).and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
            size = Some(bytes.ok_or_else(|| invalid("buffer size", value))?);
        } else if let Some(value) = word.param("flush") {
            let time = units::msec(value).filter(|time| *time > Duration::ZERO);
            flush = Some(time.ok_or_else(|| invalid("flush time", value))?);
        } else if let Some(value) = word.param("if") {
            log.condition = Some(Word { bytes: value.into(), ..word.clone() });
        } else if word.is("gzip") || word.param("gzip").is_some() {
            return Err(unsupported(word, "the \"gzip\" parameter of \"access_log\" is"));
        } else {
            return Err(node.invalid_parameter(word));
        }
    }
    log.batch = match (size, flush) {
        (Some(size), flush) => Some(Batch { size, flush }),
        (None, None) => None,
        (None, Some(_)) => return Err(node.fail(format!("no buffer is defined for access_log \"{path}\""))),
    };
    Ok(log)
}

fn check_cache(node: &Node) -> Result<(), ConfError> {
    let (mut max, mut is_off) = (0, false);
    for word in &node.args {
        let number = |name| word.param(name).and_then(units::number);
        let is_time = |name| word.param(name).and_then(units::sec).is_some();
        match number("max") {
            Some(files) => max = files,
            None if word.is("off") => is_off = true,
            None if number("min_uses").is_some() || is_time("inactive") || is_time("valid") => {}
            None => {
                let message = format!("invalid \"open_log_file_cache\" parameter \"{word}\"");
                return Err(ConfError::new(message).at(word.span));
            }
        }
    }
    if max == 0 && !is_off {
        return Err(node.fail("\"open_log_file_cache\" must have \"max\" parameter"));
    }
    Ok(())
}

fn unsupported(word: &Word, what: &str) -> ConfError {
    ConfError::new(format!("{what} not supported by this version of Tailwater")).at(word.span)
}

fn resolve_formats(raw: Setting<Vec<RawFormat>>, cx: &mut Resolve<'_>) -> Result<Arc<[Format]>, ConfError> {
    let (name, line) = COMBINED;
    let line = cx.template_text(line.as_bytes(), None)?;
    let mut formats = vec![Format { name: name.as_bytes().into(), escape: Escape::Default, line }];
    for RawFormat { name, escape, strings } in raw.take().unwrap_or_default() {
        let strings: Vec<_> = strings.iter().map(|word| cx.template(word)).collect::<Result<_, _>>()?;
        formats.push(Format { name, escape, line: Template::joined(strings) });
    }
    Ok(formats.into())
}

fn resolve_log(log: &RawLog, formats: &[Format], cx: &mut Resolve<'_>) -> Result<Log, ConfError> {
    let format = match &log.format {
        None => &formats[0],
        Some(word) => {
            // DIFF(nginx): it may stand behind the log that names it.
            let found = formats.iter().find(|format| format.name.eq_ignore_ascii_case(&word.bytes));
            found.ok_or_else(|| ConfError::new(format!("unknown log format \"{word}\"")).at(word.span))?
        }
    };
    let path = full_path(&log.path.bytes, cx);
    let sink = match log.batch {
        None => cx.sink(&path),
        Some(batch) => cx.batched_sink(&path, batch).map_err(|_| {
            let path = &log.path;
            let message = format!("access_log \"{path}\" already defined with conflicting parameters");
            ConfError::new(message).at(path.span)
        })?,
    };
    let condition = log.condition.as_ref().map(|word| cx.template(word)).transpose()?;
    Ok(Log { sink, format: format.clone(), condition })
}

fn full_path(name: &[u8], cx: &Resolve<'_>) -> PathBuf {
    OsString::from_vec(cx.full_path(name)).into()
}

#[cfg(test)]
mod tests {
    use tw_conf::{Diagnostics, MemoryFiles, Reader, Tree};
    use tw_server::http::generation::Config;
    use tw_server::load::{Prefixes, load};

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
            &tree,
            &prefixes,
            &crate::MODULES,
            &tw_server::load::Kept::default(),
            &mut Diagnostics::default(),
        )
        .map_err(|error| error.line(&tree.sources).trim_end_matches(" in conf:1").to_owned())
    }

    #[test]
    fn errors_are_those_of_nginx() {
        let unsupported = |what: &str| format!("{what} not supported by this version of Tailwater");
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
            ("access_log x combined gzip;", &unsupported("the \"gzip\" parameter of \"access_log\" is")),
            ("access_log x combined gzip=3;", &unsupported("the \"gzip\" parameter of \"access_log\" is")),
            ("access_log syslog:server=127.0.0.1;", &unsupported("\"access_log syslog:\" is")),
            ("access_log $host.log;", &unsupported("variables in the path of \"access_log\" are")),
        ] {
            assert_eq!(config(conf).err().as_deref(), Some(expected), "{conf}");
        }
        for conf in [
            "log_format a escape=json;",
            "access_log x COMBINED;",
            "access_log x late; log_format late x;",
            "access_log x combined buffer=1k; access_log x combined; access_log x combined buffer=1k;",
            "open_log_file_cache max=10 inactive=20s valid=1m min_uses=2;",
        ] {
            assert_eq!(config(conf).err(), None, "{conf}");
        }
    }
}
