//! The words of `purge`.

use super::long_option::Long;
use super::main_options::Options;
use super::purge_order::{Purge, PurgeMode, PurgeScope};
use super::usage_error::{UsageError, invalid};

/// Words of `tailwater purge`.
#[derive(Debug, PartialEq, Eq)]
pub struct PurgeOptions {
    /// Of these, those that say where the configuration is.
    pub main: Options,
    /// Order to the server.
    pub order: Purge,
}

/// Reads the words after `purge`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<PurgeOptions>, UsageError> {
    let mut main = Options::default();
    let mut mode = PurgeMode::Hard;
    let mut cache = None;
    let mut key = None;
    let mut tag = None;
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--cache" => cache = Some(value("the name of a cache")?),
            b"--tag" => tag = Some(value("a tag")?),
            b"-c" => main.file = Some(value("file name")?),
            b"-p" => main.prefix = Some(value("directory name")?),
            b"-g" => main.globals = Some(value("parameter")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--soft" => mode = PurgeMode::Soft,
            [b'-', _, ..] => return Err(invalid(&word)),
            _ if key.is_some() => return Err(invalid(&word)),
            _ => key = Some(word),
        }
    }
    let cache = cache.ok_or_else(|| UsageError::new("no --cache: where is something to be purged?"))?;
    let named = match (key, tag) {
        (Some(key), None) => PurgeScope::Key(key),
        (None, Some(tag)) if is_tag(&tag) => PurgeScope::Tag(tag),
        (None, Some(tag)) => {
            let tag = String::from_utf8_lossy(&tag);
            return Err(UsageError::new(format!("\"{tag}\" is no tag: tags have neither spaces nor commas")));
        }
        (Some(_), Some(_)) => return Err(UsageError::new("either a key or a tag is purged, not both")),
        (None, None) => return Err(UsageError::new("purge needs a key or --tag")),
    };
    Ok(Some(PurgeOptions { main, order: Purge { cache, named, mode } }))
}

/// Returns `true` if a response could have this tag.
fn is_tag(tag: &[u8]) -> bool {
    !tag.is_empty() && !tag.iter().any(|byte| matches!(byte, b' ' | b',' | b'\t'))
}
