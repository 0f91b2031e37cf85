//! Texts of rules, and the files that they name.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tw_conf::{ConfError, Word};
use tw_request::protocol::Resolve;
use tw_waf::{Files, RuleError, RuleSet, Source};

/// Rules as written.
pub(super) enum RawRules {
    /// Text in the configuration.
    Text(Word),
    /// Name or mask of files.
    Files(Word),
}

impl RawRules {
    /// The word of the directive.
    pub(super) fn word(&self) -> &Word {
        match self {
            Self::Text(word) | Self::Files(word) => word,
        }
    }
}

/// Name of the texts that stand in the configuration itself.
const INLINE: &str = "modsecurity_rules";

/// Compiled rules, kept while neither their texts nor their files change. Blocks with the same texts share them, and so do
/// configurations that follow each other.
struct KnownRules {
    /// Answers of the file system, in their order.
    answers: Vec<Answer>,
    rules: Arc<RuleSet>,
}

/// Answer of the file system that compiled rules depend on.
#[derive(PartialEq, Eq)]
enum Answer {
    /// Hash of a file.
    File(Vec<u8>, [u8; 32]),
    /// Names that match a mask.
    Names(Vec<u8>, Vec<Vec<u8>>),
}

/// Files of the configuration. A name is relative to the file that names it, and there to the directory of the configuration.
struct ConfigurationFiles<'a, 'b> {
    cx: &'a Resolve<'b>,
    answers: Vec<Answer>,
}

fn path(cx: &Resolve<'_>, name: &str, from: &str) -> Vec<u8> {
    let directory = from.rsplit_once('/').map(|(directory, _)| directory);
    match directory {
        Some(directory) if !name.starts_with('/') => format!("{directory}/{name}").into_bytes(),
        _ => cx.conf_path(name.as_bytes()),
    }
}

impl Files for ConfigurationFiles<'_, '_> {
    fn read(&mut self, name: &str, from: &str) -> Result<Vec<u8>, String> {
        let path = path(self.cx, name, from);
        let bytes = self.cx.read_file(&path).map_err(|error| error.to_string())?;
        self.answers.push(Answer::File(path, Sha256::digest(&bytes).into()));
        Ok(bytes)
    }

    fn expand(&mut self, pattern: &str, from: &str) -> Result<Vec<String>, String> {
        let path = path(self.cx, pattern, from);
        let names = self.cx.expand_names(&path);
        let shown = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        self.answers.push(Answer::Names(path, names));
        Ok(shown)
    }
}

impl KnownRules {
    /// Returns true if all files are as they were.
    fn is_current(&self, cx: &Resolve<'_>) -> bool {
        self.answers.iter().all(|answer| match answer {
            Answer::File(path, hash) => {
                cx.read_file(path).is_ok_and(|bytes| Sha256::digest(&bytes)[..] == *hash)
            }
            Answer::Names(path, names) => cx.expand_names(path) == *names,
        })
    }
}

/// Name under which rules with these texts are kept.
fn key(sources: &[Source]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for source in sources {
        hash.update((source.file.len() as u64).to_be_bytes());
        hash.update(source.file.as_bytes());
        hash.update((source.text.len() as u64).to_be_bytes());
        hash.update(&source.text);
    }
    [&b"waf rules "[..], &hash.finalize()].concat()
}

/// Reads and compiles the rules of a block behind those around it.
pub(super) fn compile(
    outer: &[Source],
    raw: &[RawRules],
    cx: &mut Resolve<'_>,
) -> Result<(Arc<[Source]>, Arc<RuleSet>), ConfError> {
    let mut sources = outer.to_vec();
    for rules in raw {
        match rules {
            RawRules::Text(word) => {
                sources.push(Source { file: Arc::from(INLINE), line: 1, text: Arc::from(&*word.bytes) });
            }
            RawRules::Files(word) => read(word, cx, &mut sources)?,
        }
    }
    let key = key(&sources);
    let is_current = cx.previous::<KnownRules>(&key).is_some_and(|known_rules| known_rules.is_current(cx));
    // Of the same configuration, the rules cannot have changed.
    let fits = cx.find::<KnownRules>(&key).is_some() || is_current;
    let compiled = if fits {
        None
    } else {
        let mut files = ConfigurationFiles { cx, answers: Vec::new() };
        let rules = RuleSet::compile(&sources, &mut files).map_err(|error| at_directive(&error, raw))?;
        Some(KnownRules { answers: files.answers, rules: Arc::new(rules) })
    };
    let vanished = || ConfError::new("modsecurity: rules were replaced while they were loaded");
    let known_rules = cx.try_keep(&key, |_| fits, || compiled.ok_or_else(vanished))?;
    Ok((sources.into(), known_rules.rules.clone()))
}

fn read(word: &Word, cx: &mut Resolve<'_>, sources: &mut Vec<Source>) -> Result<(), ConfError> {
    for name in cx.expand_names(&cx.conf_path(&word.bytes)) {
        let text = cx.read_file(&name).map_err(|error| {
            let name = String::from_utf8_lossy(&name).into_owned();
            ConfError::new(format!("cannot read rules \"{name}\": {error}")).at(word.span)
        })?;
        let file = Arc::from(String::from_utf8_lossy(&name));
        sources.push(Source { file, line: 1, text: text.into() });
    }
    Ok(())
}

/// The error of a rule, at the directive with the text that has it if that is in the configuration.
fn at_directive(error: &RuleError, raw: &[RawRules]) -> ConfError {
    let message = ConfError::new(format!("modsecurity: {error}"));
    let is_text = |rules: &&RawRules| matches!(rules, RawRules::Text(_)) == (&*error.place.file == INLINE);
    match raw.iter().find(is_text).or(raw.first()) {
        Some(rules) => message.at(rules.word().span),
        None => message,
    }
}
