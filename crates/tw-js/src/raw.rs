//! Settings of scripts as written in one block, the same in every protocol. `directives` has the records that fill them.

use std::time::Duration;

use tw_conf::{ConfError, Node, Setting, Span, Word, units};
use tw_module_support::zone::ZoneParameter;
use tw_script::DictionaryType;

use crate::dictionary::DictionarySettings;
use crate::periodic::RawPeriodic;

/// Directives as written in one block.
#[derive(Default)]
pub struct Raw {
    pub(crate) imports: Vec<RawImport>,
    pub(crate) paths: Vec<Word>,
    pub(crate) file_paths: Vec<RawFilePath>,
    /// Place of `js_engine njs`.
    pub(crate) old_engine: Option<Span>,
    pub(crate) engine: Setting<()>,
    pub(crate) context_reuse: Setting<u64>,
    pub(crate) context_reuse_max_size: Setting<u64>,
    /// Place of `js_context_reuse_max_size`.
    pub(crate) context_reuse_max_size_span: Option<Span>,
    pub(crate) timeout: Setting<Duration>,
    pub(crate) memory: Setting<u64>,
    pub(crate) processes: Setting<u64>,
    pub(crate) program: Setting<Word>,
    pub(crate) sets: Vec<RawSet>,
    pub(crate) vars: Vec<RawVar>,
    pub(crate) dictionaries: Vec<RawDictionary>,
    pub(crate) fetch: RawFetch,
    pub(crate) content: Setting<Word>,
    pub(crate) access: Setting<Word>,
    pub(crate) header_filter: Setting<Word>,
    pub(crate) body_filter: Setting<RawBodyFilter>,
    pub(crate) preread: Setting<Word>,
    pub(crate) filter: Setting<Word>,
    pub(crate) periodics: Vec<RawPeriodic>,
}

/// `js_fetch_*`
#[derive(Default)]
pub(crate) struct RawFetch {
    pub(crate) timeout: Setting<Duration>,
    pub(crate) buffer_size: Setting<u64>,
    pub(crate) response_max: Setting<u64>,
    pub(crate) verify: Setting<bool>,
    pub(crate) verify_depth: Setting<u64>,
    pub(crate) trusted_certificate: Setting<Word>,
    pub(crate) protocols: Setting<Vec<Word>>,
    pub(crate) ciphers: Setting<Word>,
    pub(crate) proxy: Setting<Word>,
    pub(crate) keepalive: Setting<u64>,
    pub(crate) keepalive_requests: Setting<u64>,
    pub(crate) keepalive_time: Setting<Duration>,
    pub(crate) keepalive_timeout: Setting<Duration>,
}

/// `js_import`
pub(crate) struct RawImport {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) span: Span,
}

/// `js_fs_path`
pub(crate) struct RawFilePath {
    pub(crate) path: Word,
    pub(crate) is_writable: bool,
}

/// `js_set`
pub(crate) struct RawSet {
    pub(crate) variable: String,
    pub(crate) function: String,
    pub(crate) is_volatile: bool,
    pub(crate) span: Span,
}

/// `js_var`
pub(crate) struct RawVar {
    pub(crate) variable: String,
    pub(crate) value: Option<Word>,
    pub(crate) span: Span,
}

/// `js_shared_dict_zone`
pub(crate) struct RawDictionary {
    pub(crate) settings: DictionarySettings,
    /// `state=`
    pub(crate) state: Option<Word>,
    pub(crate) span: Span,
}

/// `js_body_filter`
#[derive(Clone)]
pub(crate) struct RawBodyFilter {
    pub(crate) function: Word,
    /// `buffer_type=buffer`
    pub(crate) is_buffer: bool,
}

impl RawImport {
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        let first = node.arg(0)?;
        let (name, path) = match &node.args[..] {
            [name, from, path] if from.is("from") => (name.lossy().into_owned(), path),
            [_, from, _] => return Err(node.invalid_parameter(from)),
            _ => {
                let text = first.lossy();
                let file = text.rsplit('/').next().unwrap_or_default();
                match file.strip_suffix(".js") {
                    Some(name) => (name.to_owned(), first),
                    None => {
                        return Err(node.fail(format!(
                            "cannot extract export name from file path \"{text}\", use extended \"from\" syntax"
                        )));
                    }
                }
            }
        };
        check_name(node, &name)?;
        let path = str::from_utf8(&path.bytes).map_err(|_| node.invalid_value(path))?.to_owned();
        if path.contains('\'') {
            return Err(node.fail(format!("invalid character \"'\" in file path \"{path}\"")));
        }
        Ok(Self { name, path, span: node.span })
    }
}

/// Checks the name of a module, with nginx's messages.
fn check_name(node: &Node, name: &str) -> Result<(), ConfError> {
    let Some(first) = name.chars().next() else { return Err(node.fail("empty export name")) };
    if first != '_' && !first.is_ascii_alphabetic() {
        return Err(node.fail(format!("cannot start with \"{first}\" in export name \"{name}\"")));
    }
    match name.chars().find(|char| *char != '_' && !char.is_ascii_alphanumeric()) {
        Some(char) => Err(node.fail(format!("invalid character \"{char}\" in export name \"{name}\""))),
        None => Ok(()),
    }
}

impl RawSet {
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        let word = node.arg(0)?;
        let variable = tw_module_support::block::variable_name(node, word)?;
        let is_volatile = match node.args.get(2) {
            None => false,
            Some(flag) if flag.is("nocache") => true,
            Some(flag) => return Err(node.fail(format!("unrecognized flag \"{flag}\""))),
        };
        Ok(Self { variable, function: node.arg(1)?.lossy().into_owned(), is_volatile, span: word.span })
    }
}

impl RawDictionary {
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut zone = None;
        let mut timeout_ms = None;
        let mut kind = DictionaryType::String;
        let mut evicts = false;
        let mut state = None;
        for word in &node.args {
            if let Some(value) = word.param("zone") {
                zone = ZoneParameter::read(node, word, value)?;
            } else if let Some(value) = word.param("timeout") {
                let timeout = units::msec(value).filter(|timeout| !timeout.is_zero());
                let timeout =
                    timeout.ok_or_else(|| node.fail(format!("invalid timeout value \"{word}\"")))?;
                timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
            } else if let Some(value) = word.param("type") {
                kind = match value {
                    b"string" => DictionaryType::String,
                    b"number" => DictionaryType::Number,
                    _ => {
                        return Err(
                            node.fail(format!("invalid dict type \"{}\"", String::from_utf8_lossy(value)))
                        );
                    }
                };
            } else if word.is("evict") {
                evicts = true;
            } else if let Some(value) = word.param("state") {
                if value.is_empty() {
                    return Err(node.invalid_parameter(word));
                }
                state = Some(Word { bytes: value.into(), ..word.clone() });
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        let zone = zone.ok_or_else(|| node.error("must have \"zone\" parameter"))?;
        if evicts && timeout_ms.is_none() {
            return Err(node.fail("evict requires timeout="));
        }
        let name = String::from_utf8_lossy(&zone.name).into_owned();
        let size = usize::try_from(zone.size).unwrap_or(usize::MAX);
        let settings = DictionarySettings { name, size, kind, timeout_ms, evicts, state: None };
        Ok(Self { settings, state, span: node.span })
    }
}

impl RawBodyFilter {
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        let function = node.arg(0)?.clone();
        match node.args.get(1) {
            None => Ok(Self { function, is_buffer: false }),
            Some(word) => match word.param("buffer_type") {
                Some(b"string") => Ok(Self { function, is_buffer: false }),
                Some(b"buffer") => Ok(Self { function, is_buffer: true }),
                _ => Err(node.invalid_parameter(word)),
            },
        }
    }
}
