//! Words of `tailwater cache stat|check|export|format`.

use super::long_option::Long;
use super::usage_error::{UsageError, invalid};

/// Most threads of a check.
const JOBS_MAX: usize = 64;
/// Threads of a check, if nothing else is said.
const JOBS: usize = 2;

/// Command about directories of caches.
#[derive(Debug, PartialEq, Eq)]
pub enum CacheCommand {
    /// Show what they have.
    Stat(CacheStatOptions),
    /// Compare all checksums.
    Check(CacheCheckOptions),
    /// Write stored responses, or a list of them.
    Export(CacheExportOptions),
    /// Prepare a block device.
    Format(CacheFormatOptions),
}

/// Words of `tailwater cache stat`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CacheStatOptions {
    /// Directories of caches, at least one.
    pub directories: Vec<Vec<u8>>,
    /// `--quick`: heads of records are not read.
    pub is_quick: bool,
    /// `--json`
    pub is_json: bool,
}

/// Words of `tailwater cache check`.
#[derive(Debug, PartialEq, Eq)]
pub struct CacheCheckOptions {
    /// Directories of caches, at least one.
    pub directories: Vec<Vec<u8>>,
    /// `--jobs`: threads that read.
    pub jobs: usize,
    /// `--rate`: bytes that are read in a second.
    pub rate: Option<u64>,
    /// `--remove`: damaged responses are removed.
    pub removes: bool,
}

/// Words of `tailwater cache export`.
#[derive(Debug, PartialEq, Eq)]
pub struct CacheExportOptions {
    /// Directories of caches, at least one.
    pub directories: Vec<Vec<u8>>,
    /// `--key-prefix`: beginning of the keys that are exported.
    pub key_prefix: Vec<u8>,
    /// `--list` or `--to`
    pub target: ExportTarget,
    /// `--json`: a line of a list is JSON.
    pub is_json: bool,
    /// `--rate`: bytes that are read in a second.
    pub rate: Option<u64>,
}

/// Words of `tailwater cache format`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CacheFormatOptions {
    /// Name of the device.
    pub device: Vec<u8>,
    /// `--segment`: bytes of a segment.
    pub segment: Option<u64>,
    /// `--again`: the device may have segments.
    pub is_again: bool,
}

/// Form of an export.
#[derive(Debug, PartialEq, Eq)]
pub enum ExportTarget {
    /// A line for each response.
    List,
    /// An archive with this name; `-` is standard output.
    Tar(Vec<u8>),
}

/// Reads the words behind `cache`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<CacheCommand>, UsageError> {
    let missing = || UsageError::new("\"cache\" needs a word: stat, check, export or format");
    let command = words.next().ok_or_else(missing)?;
    let parsed = match &*command {
        b"stat" => parse_stat(words)?.map(CacheCommand::Stat),
        b"check" => parse_check(words)?.map(CacheCommand::Check),
        b"export" => parse_export(words)?.map(CacheCommand::Export),
        b"format" => parse_format(words)?.map(CacheCommand::Format),
        b"-h" | b"-?" | b"--help" => None,
        _ => return Err(invalid(&command)),
    };
    Ok(parsed)
}

fn parse_stat(words: impl Iterator<Item = Vec<u8>>) -> Result<Option<CacheStatOptions>, UsageError> {
    let mut options = CacheStatOptions::default();
    for word in words {
        match &*word {
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--quick" => options.is_quick = true,
            b"--json" => options.is_json = true,
            [b'-', ..] => return Err(invalid(&word)),
            _ => options.directories.push(word),
        }
    }
    one_at_least(&options.directories)?;
    Ok(Some(options))
}

fn parse_check(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<CacheCheckOptions>, UsageError> {
    let mut options = CacheCheckOptions { directories: Vec::new(), jobs: JOBS, rate: None, removes: false };
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--jobs" => options.jobs = jobs(&value("a number")?)?,
            b"--rate" => options.rate = Some(rate(&value("a size")?)?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--remove" => options.removes = true,
            [b'-', ..] => return Err(invalid(&word)),
            _ => options.directories.push(word),
        }
    }
    one_at_least(&options.directories)?;
    Ok(Some(options))
}

fn parse_export(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<CacheExportOptions>, UsageError> {
    let mut directories = Vec::new();
    let mut key_prefix = Vec::new();
    let mut rate_of = None;
    let mut to = None;
    let mut is_list = false;
    let mut is_json = false;
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--key-prefix" => key_prefix = value("the beginning of a key")?,
            b"--to" => to = Some(value("file name")?),
            b"--rate" => rate_of = Some(rate(&value("a size")?)?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--list" => is_list = true,
            b"--json" => is_json = true,
            [b'-', ..] => return Err(invalid(&word)),
            _ => directories.push(word),
        }
    }
    one_at_least(&directories)?;
    let target = match (to, is_list) {
        (None, true) => ExportTarget::List,
        (Some(to), false) => ExportTarget::Tar(to),
        (Some(_), true) => return Err(UsageError::new("either --to or --list, not both")),
        (None, false) => return Err(UsageError::new("cache export needs --to or --list")),
    };
    if is_json && target != ExportTarget::List {
        return Err(UsageError::new("\"--json\" requires \"--list\""));
    }
    Ok(Some(CacheExportOptions { directories, key_prefix, target, is_json, rate: rate_of }))
}

fn parse_format(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<CacheFormatOptions>, UsageError> {
    let mut options = CacheFormatOptions::default();
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        match name {
            b"--segment" => {
                let value = Long { name, inline }.value(&mut words, "size")?;
                let size = tw_conf::units::offset(&value).filter(|size| *size > 0);
                let shown = String::from_utf8_lossy(&value);
                let error = || UsageError::new(format!("invalid size of segments: \"{shown}\""));
                options.segment = Some(size.ok_or_else(error)?);
            }
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--again" => options.is_again = true,
            _ if options.device.is_empty() && !word.starts_with(b"-") => options.device = word.clone(),
            _ => return Err(invalid(&word)),
        }
    }
    if options.device.is_empty() {
        return Err(UsageError::new("\"cache format\" needs a device"));
    }
    Ok(Some(options))
}

fn one_at_least(directories: &[Vec<u8>]) -> Result<(), UsageError> {
    if directories.is_empty() { Err(UsageError::new("no directory: where is the cache?")) } else { Ok(()) }
}

fn jobs(word: &[u8]) -> Result<usize, UsageError> {
    let number = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    number.filter(|number| (1..=JOBS_MAX).contains(number)).ok_or_else(|| {
        let word = String::from_utf8_lossy(word);
        UsageError::new(format!("\"{word}\" is no number of jobs: 1 to {JOBS_MAX}"))
    })
}

fn rate(word: &[u8]) -> Result<u64, UsageError> {
    tw_conf::units::size(word).filter(|rate| *rate > 0).ok_or_else(|| {
        let word = String::from_utf8_lossy(word);
        UsageError::new(format!("\"{word}\" is no size, such as 50m"))
    })
}
