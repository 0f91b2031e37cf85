//! The command line: nginx's options, read as nginx reads them, `serve`, `proxy`, `purge`, `cache`, `fleet`,
//! `trust`, `hash-password`, `top` and `js`.
//!
//! Options may be combined (`-tq`), and a value may follow its option at once (`-c/etc/nginx.conf`) or as the next word.

mod cache;
mod fleet;
mod long_option;
mod main_options;
mod meant_option;
mod proxy;
mod purge;
mod purge_order;
mod serve;
mod trust;
mod usage_error;
mod waf;

pub use self::cache::{
    CacheCheckOptions, CacheCommand, CacheExportOptions, CacheFormatOptions, CacheStatOptions, ExportTarget,
};
pub use self::fleet::{FleetCommand, FleetOptions, WaveSize};
pub use self::main_options::{
    ControlOptions, FaultInjection, Messages, Options, Output, Show, SignalCommand, Test,
};
pub use self::proxy::{OriginCertificates, ProxyOptions, SentHost};
pub use self::purge::PurgeOptions;
pub use self::purge_order::{Purge, PurgeMode, PurgeScope};
pub use self::serve::{Absent, Coding, ServeOptions, TermsOfService, TlsOptions};
pub use self::trust::{TrustChange, TrustOptions};
pub use self::usage_error::UsageError;
use self::usage_error::invalid;
pub use self::waf::WafTestOptions;

/// Command of the command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
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
    /// Show what the reference says about a name.
    Reference(Vec<u8>),
    /// Check requests of a file with the rules of the firewall.
    WafTest(Box<WafTestOptions>),
    /// Say how to use `waf`.
    WafHelp,
    /// Show a running server, by the program for that, with these words.
    Top(Vec<Vec<u8>>),
    /// Run a script, by the program for that, with these words: its file and its arguments.
    Js(Vec<Vec<u8>>),
    /// Say how to use `js`.
    JsHelp,
}

/// Reads the words after the program's name.
pub fn parse(words: impl IntoIterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut words = words.into_iter().peekable();
    let of = |command: &'static str| {
        move |error: UsageError| {
            let hint = format!("tailwater {command} --help lists the options");
            UsageError { hint, ..error }.suggest(command)
        }
    };
    if words.next_if(|word| word == b"serve").is_some() {
        command(serve::parse(words), Command::ServeHelp, Command::Serve).map_err(of("serve"))
    } else if words.next_if(|word| word == b"proxy").is_some() {
        command(proxy::parse(words), Command::ProxyHelp, Command::Proxy).map_err(of("proxy"))
    } else if words.next_if(|word| word == b"purge").is_some() {
        command(purge::parse(words), Command::PurgeHelp, Command::Purge).map_err(of("purge"))
    } else if words.next_if(|word| word == b"cache").is_some() {
        command(cache::parse(words), Command::CacheHelp, Command::Cache).map_err(of("cache"))
    } else if words.next_if(|word| word == b"fleet").is_some() {
        command(fleet::parse(words), Command::FleetHelp, fleet_command).map_err(of("fleet"))
    } else if words.next_if(|word| word == b"trust").is_some() {
        command(trust::parse(words), Command::TrustHelp, Command::Trust).map_err(of("trust"))
    } else if words.next_if(|word| word == b"hash-password").is_some() {
        parse_hash_password(words).map_err(of("hash-password"))
    } else if words.next_if(|word| word == b"waf").is_some() {
        command(waf::parse(words), Command::WafHelp, |options| Command::WafTest(Box::new(options)))
            .map_err(of("waf"))
    } else if words.next_if(|word| word == b"top").is_some() {
        Ok(Command::Top(words.collect()))
    } else if words.next_if(|word| word == b"js").is_some() {
        parse_js(words.collect()).map_err(of("js"))
    } else if words.next_if(|word| word == b"help").is_some() {
        parse_help(words)
    } else {
        main_options::parse(words).map(Command::Main).map_err(|error| error.suggest(""))
    }
}

/// Command of options that were read; `help` if its help is to be shown.
fn command<T>(
    parsed: Result<Option<T>, UsageError>,
    help: Command,
    run: impl FnOnce(T) -> Command,
) -> Result<Command, UsageError> {
    parsed.map(|options| options.map_or(help, run))
}

/// Command for the words of `fleet`. The status is that of the running server, which only its configuration leads to.
fn fleet_command(options: FleetOptions) -> Command {
    match options.command {
        FleetCommand::Status => Command::FleetStatus(options.main),
        _ => Command::Fleet(Box::new(options)),
    }
}

/// `help`, perhaps with the name of a command, directive, variable, metric or module.
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
        Some(b"waf") => Command::WafHelp,
        Some(b"top") => Command::Top(vec![b"--help".to_vec()]),
        Some(b"js") => Command::JsHelp,
        Some(b"help") => return parse_help(std::iter::empty()),
        Some(option @ [b'-', ..]) => return Err(invalid(option)),
        Some(name) => Command::Reference(name.to_vec()),
    };
    words.next().map_or(Ok(command), |word| Err(invalid(&word)))
}

/// The file of `js`, with words for the script behind it.
fn parse_js(words: Vec<Vec<u8>>) -> Result<Command, UsageError> {
    match words.first().map(Vec::as_slice) {
        None => Err(UsageError::new("\"js\" needs a file")),
        Some(b"-h" | b"-?" | b"--help") => Ok(Command::JsHelp),
        Some(b"-") => Ok(Command::Js(words)),
        Some(option @ [b'-', ..]) => Err(invalid(option)),
        Some(_) => Ok(Command::Js(words)),
    }
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

#[cfg(test)]
mod tests;
