//! Words of `tailwater waf test`.

use super::long_option::Long;
use super::main_options::Options;
use super::usage_error::{UsageError, invalid};

/// Words of `tailwater waf test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WafTestOptions {
    /// File with a request, or with lines of an access log; `-` is standard input.
    pub file: Vec<u8>,
    /// Configuration with the rules.
    pub main: Options,
    /// `--host`: host, perhaps with its port, of requests that name none.
    pub host: Option<Vec<u8>>,
    /// `--details`: all comparisons are shown.
    pub is_detailed: bool,
}

/// Reads the words behind `waf`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<WafTestOptions>, UsageError> {
    match words.next().as_deref() {
        None => return Err(UsageError::new("\"waf\" needs a word: test")),
        Some(b"-h" | b"-?" | b"--help") => return Ok(None),
        Some(b"test") => {}
        Some(other) => return Err(invalid(other)),
    }
    let mut options = WafTestOptions::default();
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--host" => options.host = Some(value("a host")?),
            b"-c" => options.main.file = Some(value("a file name")?),
            b"-p" => options.main.prefix = Some(value("a directory name")?),
            b"-g" => options.main.globals = Some(value("directives")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--details" => options.is_detailed = true,
            b"-" => options.file = word,
            [b'-', ..] => return Err(invalid(&word)),
            _ if options.file.is_empty() => options.file = word,
            _ => return Err(UsageError::new("one file is expected")),
        }
    }
    if options.file.is_empty() {
        return Err(UsageError::new("\"waf test\" needs a file"));
    }
    Ok(Some(options))
}
