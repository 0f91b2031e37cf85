//! `access_log`, `log_format` and `open_log_file_cache` as written.

use std::time::Duration;

use tw_conf::{ConfError, Node, Setting, Word, units};
use tw_core::log::Syslog;
use tw_log::escape::Escape;
use tw_log::{Batch, CacheConfig};

/// The buffer of a compressed log that names none, bytes.
const GZIP_BUFFER: usize = 64 << 10;
/// The level of `gzip` without one: the fastest.
const GZIP_LEVEL: u32 = 1;

/// Logs and formats as written.
#[derive(Default)]
pub(crate) struct Raw {
    pub(super) formats: Setting<Vec<RawFormat>>,
    pub(super) logs: Setting<Vec<RawLog>>,
    pub(super) off: Setting<()>,
    pub(super) cache: Setting<Option<CacheConfig>>,
}

/// One `log_format` as written.
pub(super) struct RawFormat {
    pub(super) name: Box<[u8]>,
    pub(super) escape: Escape,
    pub(super) strings: Vec<Word>,
}

/// One `access_log` as written.
pub(super) struct RawLog {
    pub(super) path: Word,
    pub(super) syslog: Option<Syslog>,
    pub(super) format: Option<Word>,
    pub(super) batch: Option<Batch>,
    pub(super) condition: Option<Word>,
}

impl RawLog {
    /// Returns `true` if the path has variables.
    pub(super) fn has_variables(&self) -> bool {
        self.syslog.is_none() && self.path.bytes.contains(&b'$')
    }
}

/// Reads `name [escape=…] string …`.
pub(super) fn read_format(node: &Node) -> Result<RawFormat, ConfError> {
    let name = node.arg(0)?.bytes.clone();
    let mut strings = &node.args[1..];
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

/// Reads `path [format [parameter …]]`.
pub(super) fn read_log(node: &Node, path: &Word) -> Result<RawLog, ConfError> {
    let syslog = path.bytes.strip_prefix(b"syslog:").map(Syslog::parse).transpose();
    let syslog = syslog.map_err(|message| node.fail(message))?;
    let format = node.args.get(1).cloned();
    let mut log = RawLog { path: path.clone(), syslog, format, batch: None, condition: None };
    let mut size = None;
    let mut flush = None;
    let mut gzip = None;
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
        } else if word.is("gzip") {
            gzip = Some(GZIP_LEVEL);
        } else if let Some(value) = word.param("gzip") {
            let level = units::number(value).and_then(|level| u32::try_from(level).ok());
            let level = level.filter(|level| (1..=9).contains(level));
            gzip = Some(level.ok_or_else(|| invalid("compression level", value))?);
        } else if let Some(value) = word.param("if") {
            log.condition = Some(Word { bytes: value.into(), ..word.clone() });
        } else {
            return Err(node.invalid_parameter(word));
        }
    }
    log.batch = match size.or(gzip.map(|_| GZIP_BUFFER)) {
        Some(_) if log.has_variables() => {
            return Err(node.fail("buffered logs cannot have variables in name"));
        }
        Some(_) if log.syslog.is_some() => return Err(node.fail("logs to syslog cannot be buffered")),
        Some(size) => Some(Batch { size, flush, gzip }),
        None if flush.is_some() => {
            return Err(node.fail(format!("no buffer is defined for access_log \"{path}\"")));
        }
        None => None,
    };
    Ok(log)
}

/// Reads `max=N [inactive=time] [min_uses=N] [valid=time] | off`.
pub(super) fn read_cache(node: &Node) -> Result<Option<CacheConfig>, ConfError> {
    let secs = Duration::from_secs;
    let mut cache = CacheConfig { max: 0, inactive: secs(10), min_uses: 1, valid: secs(60) };
    let mut is_off = false;
    for word in &node.args {
        let number = |name| word.param(name).and_then(units::number);
        let time = |name| word.param(name).and_then(units::sec);
        if let Some(files) = number("max") {
            cache.max = usize::try_from(files).unwrap_or(usize::MAX);
        } else if let Some(span) = time("inactive") {
            cache.inactive = span;
        } else if let Some(uses) = number("min_uses") {
            cache.min_uses = uses;
        } else if let Some(span) = time("valid") {
            cache.valid = span;
        } else if word.is("off") {
            is_off = true;
        } else {
            let message = format!("invalid \"open_log_file_cache\" parameter \"{word}\"");
            return Err(ConfError::new(message).at(word.span));
        }
    }
    match (cache.max, is_off) {
        (_, true) => Ok(None),
        (0, false) => Err(node.fail("\"open_log_file_cache\" must have \"max\" parameter")),
        (_, false) => Ok(Some(cache)),
    }
}
