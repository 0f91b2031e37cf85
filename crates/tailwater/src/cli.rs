//! The command line: nginx's options, read as nginx reads them, `serve`, `proxy`, `purge`, `cache`, `fleet`,
//! `trust`, `hash-password` and `top`.
//!
//! Options may be combined (`-tq`), and a value may follow its option at once (`-c/etc/nginx.conf`) or as the next word.

mod cache;
mod fleet;
mod long_option;

use std::fmt;

use serde::{Deserialize, Serialize};

use self::long_option::Long;
use crate::authority::Change;
use crate::channel::{Purge, PurgeMode, PurgeScope};

pub(crate) use self::cache::{
    CacheCheckOptions, CacheCommand, CacheExportOptions, CacheFormatOptions, CacheStatOptions, ExportTarget,
};
pub(crate) use self::fleet::{FleetCommand, FleetOptions, WaveSize};

/// The words of `-s`.
const ORDERS: [&str; 4] = ["stop", "quit", "reopen", "reload"];

/// Command of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Run, test, or give an order to a running server.
    Main(Options),
    /// Serve a directory without a configuration file.
    Serve(ServeOptions),
    /// Say how to use `serve`.
    ServeHelp,
    /// Pass requests on without a configuration file.
    Proxy(ProxyOptions),
    /// Say how to use `proxy`.
    ProxyHelp,
    /// Purge in a running server.
    Purge(PurgeOptions),
    /// Say how to use `purge`.
    PurgeHelp,
    /// Look into the directory of a cache, or format a device for one.
    Cache(CacheCommand),
    /// Say how to use `cache`.
    CacheHelp,
    /// Show the fleets of a running server, whose configuration is where these options say.
    FleetStatus(Options),
    /// Push, compare, roll out or follow configurations of a fleet.
    Fleet(Box<FleetOptions>),
    /// Say how to use `fleet`.
    FleetHelp,
    /// Make the system trust the local authority.
    Trust(TrustOptions),
    /// Say how to use `trust`.
    TrustHelp,
    /// Hash a password for a password file, with the name of its user.
    HashPassword(Option<Vec<u8>>),
    /// Say how to use `hash-password`.
    HashPasswordHelp,
    /// Show a running server, by the program for that, with these words.
    Top(Vec<Vec<u8>>),
}

/// nginx's options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `-v`, `-V`, `-h`: say something about the program; the one that says most.
    pub(crate) show: Option<Show>,
    /// Stream on which it is written.
    pub(crate) output: Output,
    /// `-t`, `-T`: test the configuration.
    pub(crate) test: Option<Test>,
    /// `--explain`: what becomes of a request for this URL.
    pub(crate) explain: Option<Vec<u8>>,
    /// `-q`: no messages but errors during a test.
    pub(crate) messages: Messages,
    /// `-p`
    pub(crate) prefix: Option<Vec<u8>>,
    /// `-c`
    pub(crate) file: Option<Vec<u8>>,
    /// `-e`
    pub(crate) error_log: Option<Vec<u8>>,
    /// `-g`
    pub(crate) globals: Option<Vec<u8>>,
    /// `-s`
    pub(crate) order: Option<SignalCommand>,
    /// `-l`: the control API.
    pub(crate) control: Option<ControlOptions>,
    /// `--enable-fault-injection`: `debug_disk_fault` in the configuration.
    pub(crate) faults: FaultInjection,
}

/// Control API of the master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ControlOptions {
    /// Address to listen on, as written.
    pub(crate) address: Vec<u8>,
    /// `--control-token`: the file with the token of clients.
    pub(crate) token: Option<Vec<u8>>,
}

/// Use of `debug_disk_fault`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FaultInjection {
    /// The directive is an error.
    #[default]
    Refused,
    /// The directive is in force.
    Enabled,
}

/// Information about the program; each variant includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Show {
    /// `-v`
    Version,
    /// `-V`
    Configuration,
    /// `-h`, `-?`
    Help,
}

/// Streams for information about the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Output {
    /// `-v` and `-V`, as by nginx: programs that ask for it read standard error.
    #[default]
    Error,
    /// Everything else that was asked for, such as `-h`.
    Standard,
}

/// Tests of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Test {
    /// `-t`
    Check,
    /// `-T`: and write it out.
    Dump,
}

/// Messages of a test that are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Messages {
    /// Success, too.
    #[default]
    All,
    /// Warnings and errors.
    Problems,
}

/// `-s`: what a running server is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalCommand {
    /// End now.
    Stop,
    /// End when every request is done.
    Quit,
    /// Open the logs again.
    Reopen,
    /// Read the configuration again.
    Reload,
}

/// Words of `tailwater serve`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeOptions {
    /// The directory; the current one if not said.
    pub(crate) directory: Option<Vec<u8>>,
    /// Address to listen on.
    pub(crate) listen: Option<Vec<u8>>,
    /// Response to a path that does not exist.
    pub(crate) absent: Absent,
    /// Compression of responses.
    pub(crate) coding: Coding,
    /// Credentials that are required: `USER:PASSWORD`.
    pub(crate) auth: Option<Vec<u8>>,
    /// Address of PHP, if scripts are run.
    pub(crate) php: Option<Vec<u8>>,
    /// TLS options.
    pub(crate) tls: TlsOptions,
}

/// Words of `serve` and `proxy` about certificates that come by themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    /// `--tls`: names of this host; plain HTTP without any.
    pub(crate) names: Vec<Vec<u8>>,
    /// `--accept-terms`
    pub(crate) terms: TermsOfService,
    /// `--acme-directory`: the authority.
    pub(crate) directory: Option<Vec<u8>>,
    /// `--acme-ca`: whom to trust that it is the authority.
    pub(crate) trusted: Option<Vec<u8>>,
}

/// Acceptance of the terms of service of an authority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TermsOfService {
    /// Not given.
    #[default]
    NotAccepted,
    /// Accepted.
    Accepted,
}

/// Response of `serve` to a path that does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Absent {
    /// 404.
    #[default]
    Error,
    /// `--spa`: the page in `index.html`, which knows what to show.
    Index,
}

/// Compression by `serve`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Responses go out as they are.
    #[default]
    Plain,
    /// `--compress`
    Compressed,
}

/// Words of `tailwater proxy`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyOptions {
    /// The servers that answer; at least one.
    pub(crate) urls: Vec<Vec<u8>>,
    /// Address to listen on.
    pub(crate) listen: Option<Vec<u8>>,
    /// `Host` sent to the servers.
    pub(crate) host: SentHost,
    /// Certificates of the servers that are accepted.
    pub(crate) certificates: OriginCertificates,
    /// Longest silence of a server.
    pub(crate) timeout: Option<Vec<u8>>,
    /// The directory of what is kept; nothing is kept without.
    pub(crate) cache: Option<Vec<u8>>,
    /// Most bytes that are cached.
    pub(crate) cache_size: Option<Vec<u8>>,
    /// TLS options.
    pub(crate) tls: TlsOptions,
}

/// `Host` sent to the servers of `proxy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SentHost {
    /// The client's.
    #[default]
    Client,
    /// `--change-host`: the one of the URL.
    Origin,
}

/// Certificates that are taken from `https` servers of `proxy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OriginCertificates {
    /// Certificates of authorities that the system or the user trusts, for the name of the URL.
    #[default]
    Verified,
    /// `--insecure`: any.
    Any,
}

/// Words of `tailwater trust`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TrustOptions {
    /// Change of the trust in it.
    pub(crate) change: Change,
    /// `--store`: a directory in the place of the system's store.
    pub(crate) store: Option<Vec<u8>>,
}

/// Words of `tailwater purge`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PurgeOptions {
    /// Of these, those that say where the configuration is.
    pub(crate) main: Options,
    /// Order to the server.
    pub(crate) order: Purge,
}

/// Why a command line is refused. Displays in nginx's words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsageError {
    message: String,
    /// Advice to the operator.
    pub(crate) hint: String,
}

impl UsageError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: "tailwater -h lists the options".into() }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Reads the words after the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut words = words.into_iter().peekable();
    let of = |command: &str| {
        let hint = format!("tailwater {command} --help lists the options");
        |error| UsageError { hint, ..error }
    };
    if words.next_if(|word| word == b"serve").is_some() {
        parse_serve(words).map_err(of("serve"))
    } else if words.next_if(|word| word == b"proxy").is_some() {
        parse_proxy(words).map_err(of("proxy"))
    } else if words.next_if(|word| word == b"purge").is_some() {
        parse_purge(words).map_err(of("purge"))
    } else if words.next_if(|word| word == b"cache").is_some() {
        cache::parse(words).map_err(of("cache"))
    } else if words.next_if(|word| word == b"fleet").is_some() {
        fleet::parse(words).map_err(of("fleet"))
    } else if words.next_if(|word| word == b"trust").is_some() {
        parse_trust(words).map_err(of("trust"))
    } else if words.next_if(|word| word == b"hash-password").is_some() {
        parse_hash_password(words).map_err(of("hash-password"))
    } else if words.next_if(|word| word == b"top").is_some() {
        Ok(Command::Top(words.collect()))
    } else if words.next_if(|word| word == b"help").is_some() {
        parse_help(words)
    } else {
        parse_main(words).map(Command::Main)
    }
}

/// `help`, perhaps with the name of a command.
fn parse_help(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let command = match words.next().as_deref() {
        None => {
            let mut options = Options::default();
            options.show(Show::Help);
            Command::Main(options)
        }
        Some(b"serve") => Command::ServeHelp,
        Some(b"proxy") => Command::ProxyHelp,
        Some(b"purge") => Command::PurgeHelp,
        Some(b"cache") => Command::CacheHelp,
        Some(b"fleet") => Command::FleetHelp,
        Some(b"trust") => Command::TrustHelp,
        Some(b"hash-password") => Command::HashPasswordHelp,
        Some(b"top") => Command::Top(vec![b"--help".to_vec()]),
        Some(b"help") => return parse_help(std::iter::empty()),
        Some(other) => return Err(invalid(other)),
    };
    words.next().map_or(Ok(command), |word| Err(invalid(&word)))
}

fn parse_main(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Options, UsageError> {
    let mut options = Options::default();
    let mut token = None;
    while let Some(word) = words.next() {
        match &*word {
            b"--control-token" => {
                let missing = || UsageError::new("option \"--control-token\" requires file name");
                token = Some(words.next().ok_or_else(missing)?);
            }
            b"--help" => options.show(Show::Help),
            b"--version" => {
                options.show(Show::Version);
                options.output = Output::Standard;
            }
            b"--enable-fault-injection" => options.faults = FaultInjection::Enabled,
            b"--explain" => {
                let missing = || UsageError::new("option \"--explain\" requires URL");
                options.explain(words.next().ok_or_else(missing)?);
            }
            [b'-', b'-', b'e', b'x', b'p', b'l', b'a', b'i', b'n', b'=', url @ ..] => {
                options.explain(url.to_vec())
            }
            [b'-', b'-', ..] => return Err(invalid(&word)),
            _ => {
                let Some(letters) = word.strip_prefix(b"-") else { return Err(stray(&word)) };
                options.letters(letters, &mut words)?;
            }
        }
    }
    match (&mut options.control, token) {
        (Some(control), token) => control.token = token,
        (None, Some(_)) => return Err(UsageError::new("option \"--control-token\" requires \"-l\"")),
        (None, None) => {}
    }
    Ok(options)
}

impl Options {
    /// Reads one word behind its dash: letters, of which the last may take the rest or the next word as its value.
    fn letters(
        &mut self,
        letters: &[u8],
        words: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), UsageError> {
        let mut rest = letters;
        while let [letter, tail @ ..] = rest {
            rest = tail;
            match letter {
                b'?' | b'h' => self.show(Show::Help),
                b'v' => self.show(Show::Version),
                b'V' => self.show(Show::Configuration),
                b't' => self.test = self.test.max(Some(Test::Check)),
                b'T' => self.test = Some(Test::Dump),
                b'q' => self.messages = Messages::Problems,
                _ => {
                    let mut value = |what: &str| {
                        let inline = (!tail.is_empty()).then(|| tail.to_vec());
                        inline.or_else(|| words.next()).ok_or_else(|| {
                            UsageError::new(format!("option \"-{}\" requires {what}", char::from(*letter)))
                        })
                    };
                    match letter {
                        b'p' => self.prefix = Some(value("directory name")?),
                        b'c' => self.file = Some(value("file name")?),
                        b'e' => self.error_log = Some(value("file name")?),
                        b'g' => self.globals = Some(value("parameter")?),
                        b'l' => {
                            let address = value("an address")?;
                            self.control = Some(ControlOptions { address, token: None });
                        }
                        b's' => {
                            let word = value("parameter").map_err(of_order)?;
                            self.order = Some(SignalCommand::parse(&word).map_err(of_order)?);
                        }
                        other => return Err(invalid(&[b'-', *other])),
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Explaining includes a test.
    fn explain(&mut self, url: Vec<u8>) {
        self.explain = Some(url);
        self.test = self.test.max(Some(Test::Check));
    }

    fn show(&mut self, what: Show) {
        self.show = self.show.max(Some(what));
        if what == Show::Help {
            self.output = Output::Standard;
        }
    }
}

/// The words that `-s` takes, as what to do about another one.
fn of_order(error: UsageError) -> UsageError {
    UsageError { hint: format!("-s takes one of: {}", ORDERS.join(", ")), ..error }
}

impl SignalCommand {
    fn parse(word: &[u8]) -> Result<Self, UsageError> {
        match word {
            b"stop" => Ok(SignalCommand::Stop),
            b"quit" => Ok(SignalCommand::Quit),
            b"reopen" => Ok(SignalCommand::Reopen),
            b"reload" => Ok(SignalCommand::Reload),
            _ => Err(invalid(&[b"-s ", word].concat())),
        }
    }
}

fn parse_serve(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut options = ServeOptions::default();
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--listen" | b"-l" => options.listen = Some(value("an address")?),
            b"--auth" => options.auth = Some(value("USER:PASSWORD")?),
            b"--php" => options.php = Some(value("an address")?),
            b"--tls" => options.tls.names.push(value("the name of this host")?),
            b"--acme-directory" => options.tls.directory = Some(value("a URL")?),
            b"--acme-ca" => options.tls.trusted = Some(value("file name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(Command::ServeHelp),
            b"--spa" => options.absent = Absent::Index,
            b"--compress" => options.coding = Coding::Compressed,
            b"--accept-terms" => options.tls.terms = TermsOfService::Accepted,
            [b'-', _, ..] => return Err(invalid(&word)),
            _ if options.directory.is_some() => return Err(invalid(&word)),
            _ => options.directory = Some(word),
        }
    }
    Ok(Command::Serve(options))
}

fn parse_proxy(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut options = ProxyOptions::default();
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--listen" | b"-l" => options.listen = Some(value("an address")?),
            b"--timeout" => options.timeout = Some(value("a time")?),
            b"--cache" => options.cache = Some(value("directory name")?),
            b"--cache-size" => options.cache_size = Some(value("a size")?),
            b"--tls" => options.tls.names.push(value("the name of this host")?),
            b"--acme-directory" => options.tls.directory = Some(value("a URL")?),
            b"--acme-ca" => options.tls.trusted = Some(value("file name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(Command::ProxyHelp),
            b"--change-host" => options.host = SentHost::Origin,
            b"--insecure" => options.certificates = OriginCertificates::Any,
            b"--accept-terms" => options.tls.terms = TermsOfService::Accepted,
            [b'-', ..] => return Err(invalid(&word)),
            _ => options.urls.push(word),
        }
    }
    match options.urls.is_empty() {
        true => Err(UsageError::new("no URL: where are the requests to go?")),
        false => Ok(Command::Proxy(options)),
    }
}

fn parse_purge(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let (mut main, mut mode) = (Options::default(), PurgeMode::Hard);
    let (mut cache, mut key, mut tag) = (None, None, None);
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
            b"-h" | b"-?" | b"--help" => return Ok(Command::PurgeHelp),
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
        (None, None) => return Err(UsageError::new("no key and no tag: what is to be purged?")),
    };
    Ok(Command::Purge(PurgeOptions { main, order: Purge { cache, named, mode } }))
}

fn parse_trust(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut options = TrustOptions { change: Change::Added, store: None };
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        match name {
            b"--store" => options.store = Some(Long { name, inline }.value(&mut words, "directory name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(Command::TrustHelp),
            b"--remove" => options.change = Change::Removed,
            _ => return Err(invalid(&word)),
        }
    }
    Ok(Command::Trust(options))
}

fn parse_hash_password(words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut user = None;
    for word in words {
        match &*word {
            b"-h" | b"-?" | b"--help" => return Ok(Command::HashPasswordHelp),
            [b'-', ..] => return Err(invalid(&word)),
            _ if user.is_some() => {
                let message =
                    "one user only: a password is read from standard input, never from the command line";
                return Err(UsageError::new(message));
            }
            _ => user = Some(word),
        }
    }
    Ok(Command::HashPassword(user))
}

/// Returns `true` if a response could have this tag.
fn is_tag(tag: &[u8]) -> bool {
    !tag.is_empty() && !tag.iter().any(|byte| matches!(byte, b' ' | b',' | b'\t'))
}

fn invalid(word: &[u8]) -> UsageError {
    UsageError::new(format!("invalid option: \"{}\"", String::from_utf8_lossy(word)))
}

/// A word that is neither an option nor the value of one.
fn stray(word: &[u8]) -> UsageError {
    let text = String::from_utf8_lossy(word);
    const COMMANDS: [&str; 9] =
        ["serve", "proxy", "purge", "cache", "fleet", "trust", "hash-password", "top", "help"];
    let meant = match &*text {
        "restart" => Some("-s reload".to_owned()),
        "start" | "run" => Some("tailwater, without a word".to_owned()),
        "test" | "check" | "configtest" => Some("-t".to_owned()),
        "version" => Some("-v".to_owned()),
        _ if text.ends_with(".conf") => Some(format!("-c {text}")),
        "." | ".." => Some(format!("tailwater serve {text}")),
        _ if text.contains("://") => Some(format!("tailwater proxy {text}")),
        _ if text.contains('/') => Some(format!("tailwater serve {text}")),
        _ => match tw_conf::nearest(&text, COMMANDS.into_iter().chain(ORDERS)) {
            Some(command) if COMMANDS.contains(&command) => Some(format!("tailwater {command}")),
            Some(order) => Some(format!("-s {order}")),
            None => None,
        },
    };
    let error = invalid(word);
    match meant {
        Some(meant) => UsageError { hint: format!("did you mean: {meant}? {}", error.hint), ..error },
        None => error,
    }
}

#[cfg(test)]
mod tests;
