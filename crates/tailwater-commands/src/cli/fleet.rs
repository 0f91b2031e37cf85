//! Words of `tailwater fleet`.

use std::time::Duration;

use super::long_option::Long;
use super::main_options::Options;
use super::usage_error::{UsageError, invalid};

/// Words of `tailwater fleet`.
#[derive(Debug, PartialEq, Eq)]
pub struct FleetOptions {
    /// Of these, those that say where the configuration is.
    pub main: Options,
    /// The word itself.
    pub command: FleetCommand,
    /// File of the private key.
    pub key: Option<Vec<u8>>,
    /// File of the public key that a node trusts.
    pub trust: Option<Vec<u8>>,
    /// Directory of a node with its versions.
    pub directory: Option<Vec<u8>>,
    /// URL of the metrics of a node.
    pub metrics: Option<String>,
    /// Name of who pushes.
    pub author: Option<String>,
    /// Version to compare with or to roll out; the last one without it.
    pub version: Option<u64>,
    /// Nodes that have the version after each wave; the last wave has all.
    pub waves: Vec<WaveSize>,
    /// Time that a wave has to stay healthy.
    pub settle: Duration,
    /// Percentage of responses of the class 5xx of a healthy node.
    pub max_errors: u64,
}

/// Word of `tailwater fleet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetCommand {
    /// Shows the nodes that share purges.
    Status,
    /// Makes a pair of keys.
    Key,
    /// Signs and stores a version.
    Push,
    /// Compares two versions.
    Diff,
    /// Orders nodes to serve a version, in waves.
    Rollout,
    /// Orders nodes to serve the version before.
    Rollback,
    /// Takes over the versions that this node is ordered to serve.
    Follow,
}

/// Nodes that have a version after a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaveSize {
    /// Number of nodes.
    Nodes(u64),
    /// Percentage of all nodes.
    Percent(u64),
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            main: Options::default(),
            command: FleetCommand::Status,
            key: None,
            trust: None,
            directory: None,
            metrics: None,
            author: None,
            version: None,
            waves: vec![WaveSize::Nodes(1), WaveSize::Percent(25)],
            settle: Duration::from_secs(30),
            max_errors: 5,
        }
    }
}

/// Reads the words behind `fleet`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<FleetOptions>, UsageError> {
    let mut main = Options::default();
    let mut options = FleetOptions::default();
    let mut order = None;
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"-c" => main.file = Some(value("file name")?),
            b"-p" => main.prefix = Some(value("directory name")?),
            b"-g" => main.globals = Some(value("parameter")?),
            b"--key" => options.key = Some(value("file name")?),
            b"--trust" => options.trust = Some(value("file name")?),
            b"--directory" => options.directory = Some(value("directory name")?),
            b"--metrics" => options.metrics = Some(text(value("URL")?)?),
            b"--author" => options.author = Some(text(value("name")?)?),
            b"--waves" => options.waves = waves(&value("list")?)?,
            b"--settle" => options.settle = seconds(&value("time")?)?,
            b"--max-errors" => options.max_errors = number(&value("percentage")?, 100)?,
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            _ if order.is_none() => {
                order = Some(match name {
                    b"status" => FleetCommand::Status,
                    b"key" => FleetCommand::Key,
                    b"push" => FleetCommand::Push,
                    b"diff" => FleetCommand::Diff,
                    b"rollout" => FleetCommand::Rollout,
                    b"rollback" => FleetCommand::Rollback,
                    b"follow" => FleetCommand::Follow,
                    _ => return Err(invalid(&word)),
                });
            }
            _ if matches!(order, Some(FleetCommand::Diff | FleetCommand::Rollout))
                && options.version.is_none() =>
            {
                options.version = Some(number(name, u64::MAX)?);
            }
            _ => return Err(invalid(&word)),
        }
    }
    let needs = |word: &str, option: &str| UsageError::new(format!("\"fleet {word}\" needs {option}"));
    match order {
        None => {
            return Err(UsageError::new(
                "\"fleet\" needs a word: status, key, push, diff, rollout, rollback or follow",
            ));
        }
        Some(FleetCommand::Key) if options.key.is_none() => return Err(needs("key", "--key")),
        Some(FleetCommand::Push) if options.key.is_none() => return Err(needs("push", "--key")),
        Some(FleetCommand::Rollout) if options.key.is_none() => return Err(needs("rollout", "--key")),
        Some(FleetCommand::Rollback) if options.key.is_none() => return Err(needs("rollback", "--key")),
        Some(FleetCommand::Follow) if options.trust.is_none() || options.directory.is_none() => {
            return Err(needs("follow", "--trust and --directory"));
        }
        Some(order) => options.command = order,
    }
    options.main = main;
    Ok(Some(options))
}

fn text(word: Vec<u8>) -> Result<String, UsageError> {
    String::from_utf8(word).map_err(|error| invalid(error.as_bytes()))
}

fn number(word: &[u8], most: u64) -> Result<u64, UsageError> {
    let number = str::from_utf8(word).ok().and_then(|word| word.trim_end_matches('%').parse().ok());
    number.filter(|number| *number <= most).ok_or_else(|| invalid(word))
}

fn seconds(word: &[u8]) -> Result<Duration, UsageError> {
    const MOST: u64 = 86_400;
    let word = word.strip_suffix(b"s").unwrap_or(word);
    number(word, MOST).map(Duration::from_secs)
}

/// Sizes of waves: nodes, or percentages of them.
fn waves(word: &[u8]) -> Result<Vec<WaveSize>, UsageError> {
    let wave = |part: &[u8]| match part.strip_suffix(b"%") {
        Some(percent) => number(percent, 100).map(WaveSize::Percent),
        None => number(part, u64::from(u32::MAX)).map(WaveSize::Nodes),
    };
    word.split(|byte| *byte == b',').map(wave).collect()
}
