//! The command line: options as records, from which help, manual page and completions are made, and the words of one call.

use std::path::PathBuf;
use std::time::Duration;

use tw_base::command_line::{listed, usage, wrapped};

use crate::source::{Target, Trust};
use crate::views::Pane;

mod records;

pub use records::{ABOUT, KEYS, PANES, TOP};

/// Shortest time between two reads.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest time between two reads.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Command of a call.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Show a server.
    Show(Box<Options>),
    /// Say how it is used.
    Help,
    /// Say which version it is.
    Version,
}

/// Words of a call.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// Address of the document.
    pub target: Target,
    /// Address as it was written.
    pub url: String,
    /// Time between two reads.
    pub interval: Duration,
    /// Output.
    pub output: Output,
    /// Table that is selected.
    pub pane: Option<Pane>,
    /// Text that rows must have.
    pub filter: String,
    /// Fields of requests.
    pub fields: Vec<String>,
    /// File with the token of a control API.
    pub token_file: Option<PathBuf>,
    /// Servers that are trusted over `https`.
    pub trust: Trust,
    /// Colours.
    pub colours: Colours,
}

/// Output of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Screens, until it is told to end.
    Screen,
    /// Everything once, as text.
    Once,
}

/// Colours of screens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// As the environment says.
    Environment,
    /// None.
    Off,
}

/// Reads the words after the program's name.
///
/// # Errors
/// The reason why they are refused.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut words = words.into_iter();
    let mut interval = Duration::from_secs(1);
    let mut output = Output::Screen;
    let mut colours = Colours::Environment;
    let mut pane = None;
    let mut filter = String::new();
    let mut fields = Vec::new();
    let mut url = None;
    let mut control = None;
    let mut token_file = None;
    let mut trust = Trust::System;
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (word.clone(), None),
        };
        let is_flag = inline.is_none();
        let mut value = || {
            let value = inline.clone().or_else(|| words.next());
            value.ok_or_else(|| format!("option \"{name}\" requires a value"))
        };
        match &*name {
            "-n" | "--interval" => interval = parse_interval(&value()?)?,
            "-t" | "--table" => pane = Some(parse_pane(&value()?)?),
            "-f" | "--filter" => filter = value()?,
            "-H" | "--header" => fields.push(parse_field(value()?)?),
            "--control" => control = Some(value()?),
            "--control-token" => token_file = Some(value()?.into()),
            "--ca" => trust = Trust::Authorities(value()?.into()),
            "--insecure" if is_flag => trust = Trust::Any,
            "-1" | "--once" if is_flag => output = Output::Once,
            "--no-color" if is_flag => colours = Colours::Off,
            "-v" | "--version" if is_flag => return Ok(Command::Version),
            "-h" | "-?" | "--help" if is_flag => return Ok(Command::Help),
            _ if word.starts_with('-') || url.is_some() => return Err(format!("invalid option: \"{word}\"")),
            _ => url = Some(word),
        }
    }
    if token_file.is_some() && control.is_none() {
        return Err("option \"--control-token\" belongs to \"--control\"".to_owned());
    }
    let (target, url) = match (control, url) {
        (Some(_), Some(url)) => return Err(format!("one of \"--control\" and a URL is read: \"{url}\"")),
        (Some(address), None) => (Target::control(&address), address),
        (None, url) => {
            let url = url.unwrap_or_else(|| "http://127.0.0.1/status".to_owned());
            (Target::parse(&url), url)
        }
    };
    let target = target.map_err(|error| format!("\"{url}\": {error}"))?;
    let options = Options { target, url, interval, output, pane, filter, fields, token_file, trust, colours };
    Ok(Command::Show(Box::new(options)))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse::<f64>().ok();
    let interval = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    interval
        .filter(|interval| (INTERVAL_MIN..=INTERVAL_MAX).contains(interval))
        .ok_or_else(|| format!("invalid interval \"{text}\": 0.1 to 3600 seconds"))
}

fn parse_pane(text: &str) -> Result<Pane, String> {
    let pane = PANES.iter().position(|name| *name == text).and_then(|at| Pane::ALL.get(at));
    pane.copied().ok_or_else(|| format!("invalid table \"{text}\": one of {}", PANES.join(", ")))
}

fn parse_field(text: String) -> Result<String, String> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let is_field =
        text.split_once(':').is_some_and(|(name, _)| !name.is_empty() && name.chars().all(is_token));
    if is_field && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        Err(format!("invalid field \"{text}\""))
    }
}

/// The text of `--help`.
pub fn help() -> String {
    let usage = usage("Usage: tailwater-top [URL]", TOP);
    let mut keys = String::new();
    for (key, meaning) in KEYS {
        keys += &wrapped(meaning, &format!("  {key:<30} "), &" ".repeat(33));
    }
    format!("{usage}\n{}\nOptions:\n{}\nKeys:\n{keys}", wrapped(ABOUT, "", ""), listed(TOP, &[]))
}

#[cfg(test)]
mod tests {
    use tw_base::command_line::COLUMNS;

    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn shown(line: &str) -> Options {
        match parsed(line) {
            Ok(Command::Show(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn words_are_read() {
        let options = shown("");
        assert_eq!(options.target, Target::parse("http://127.0.0.1/status").unwrap());
        assert_eq!((options.interval, options.output), (Duration::from_secs(1), Output::Screen));
        let options = shown("unix:/run/s -n 0.5 --once --table=disks -f x -H a:b --header c:d --no-color");
        assert_eq!(options.url, "unix:/run/s");
        assert_eq!((options.interval, options.output), (Duration::from_millis(500), Output::Once));
        assert_eq!((options.pane, &*options.filter), (Some(Pane::Disks), "x"));
        assert_eq!(
            (options.fields, options.colours),
            (vec!["a:b".to_owned(), "c:d".to_owned()], Colours::Off)
        );
        let options = shown("--control unix:/run/c --control-token /etc/token --ca a.pem");
        assert_eq!((options.target, &*options.url), (Target::control("unix:/run/c").unwrap(), "unix:/run/c"));
        assert_eq!(options.token_file, Some("/etc/token".into()));
        assert_eq!(options.trust, Trust::Authorities("a.pem".into()));
        assert_eq!(shown("https://a --insecure").trust, Trust::Any);
        assert_eq!(parsed("x --help"), Ok(Command::Help));
        assert_eq!(parsed("-v"), Ok(Command::Version));
    }

    #[test]
    fn wrong_words_are_refused() {
        for (line, expected) in [
            ("--bogus", "invalid option: \"--bogus\""),
            ("--once=1", "invalid option: \"--once=1\""),
            ("a b", "invalid option: \"b\""),
            ("-n", "option \"-n\" requires a value"),
            ("-n 0", "invalid interval \"0\": 0.1 to 3600 seconds"),
            ("-n nan", "invalid interval \"nan\": 0.1 to 3600 seconds"),
            ("-t x", "invalid table \"x\": one of loops, disks, caches, upstreams, requests, connections"),
            ("-H x", "invalid field \"x\""),
            ("ftp://a", "\"ftp://a\": unknown scheme \"ftp\": use http://, https:// or unix:"),
            ("--control unix:/c a", "one of \"--control\" and a URL is read: \"a\""),
            ("a --control-token f", "option \"--control-token\" belongs to \"--control\""),
            ("--insecure=1", "invalid option: \"--insecure=1\""),
        ] {
            assert_eq!(parsed(line), Err(expected.to_owned()), "{line}");
        }
        assert!(parse(["-H".to_owned(), "a: b\r\nc: d".to_owned()]).is_err());
    }

    #[test]
    fn help_fits_a_terminal_and_every_record_is_an_option() {
        let help = help();
        assert!(help.lines().all(|line| line.chars().count() <= COLUMNS), "{help}");
        for option in TOP {
            assert!(help.contains(&format!("\n  {}", option.names.join(","))), "{help}");
            for name in option.names {
                let refused = parsed(name).err();
                assert!(!refused.is_some_and(|why| why.starts_with("invalid option")), "{name}");
            }
        }
        assert_eq!(PANES.len(), Pane::ALL.len());
    }
}
