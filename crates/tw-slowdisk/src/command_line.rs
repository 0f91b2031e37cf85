//! The command line of `tailwater-slowdisk`, and the lines that change its settings while it runs.

use std::ffi::OsString;
use std::path::PathBuf;

use tw_base::command_line::{Kind, Opt, flag, listed, usage, with, wrapped};

use crate::settings::Settings;

const fn delay(names: &'static [&'static str], about: &'static str) -> Opt {
    with(names, ("time[/probability]", Kind::Text), about, "")
}

/// Purpose of the program, after its usage.
pub const ABOUT: &str = "Mounts a directory once more, as a disk that is slow or fails, until Ctrl-C or SIGTERM. Both may be the \
     same directory: then its files are slow for everybody. Every operation reaches the disk, because the kernel may cache nothing \
     of it. Every percentage is a probability.";

/// The options.
pub const OPTIONS: &[Opt] = &[
    delay(&["--open"], "delay of opening a file"),
    delay(&["--read"], "delay of each read, of at most 128 KiB"),
    delay(&["--write"], "delay of each write, and of changes of length, times and permissions"),
    delay(&["--create"], "delay of creating a file, a directory or a link"),
    delay(&["--rename"], "delay of renaming"),
    delay(&["--unlink"], "delay of removing a file or a directory"),
    delay(&["--stat"], "delay of looking up a name, of metadata, and of free space"),
    delay(&["--readdir"], "delay of each part of a listing"),
    delay(&["--fsync"], "delay of waiting for the disk"),
    with(
        &["--stall"],
        ("time/probability", Kind::Text),
        "further delay of any operation, by chance",
        "With --stall 10m/0.1%, one of 1000 operations hangs for ten minutes.",
    ),
    with(
        &["--eio"],
        ("probability", Kind::Text),
        "operations of any kind that fail with EIO (Input/output error)",
        "",
    ),
    with(
        &["--enospc"],
        ("probability|size", Kind::Text),
        "writes and creations that fail with ENOSPC (No space left on device); with a size (512m), all of them as soon as the \
            files in the directory have so many bytes",
        "Free space is reported accordingly, and removing files makes room again. Bytes of holes count, and what others change in the \
            directory is not noticed.",
    ),
    with(
        &["--seed"],
        ("number", Kind::Text),
        "seed of all chances (default: 0): the same operations in the same order have the same fate",
        "",
    ),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Lines that the program reads while it runs.
pub const LINES: &str = "While it runs, it reads lines from standard input: options of the command line, which change only what they name (--read \
     200ms --eio 1%); off, for a disk without faults; show, for the settings and the number of operations so far. Operations that wait go on when \
     the settings change. The end of the input changes nothing.";

/// Words of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Directory that is passed on.
    pub directory: PathBuf,
    /// Directory on which the disk is mounted.
    pub mount: PathBuf,
    /// Settings at the start.
    pub settings: Settings,
}

/// A line of standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Nothing.
    Empty,
    /// Use these settings.
    Set(Box<Settings>),
    /// Write the settings and the counts.
    Show,
}

/// Reads the words of the command line; `None` asks for help. The error is a message.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Option<Options>, String> {
    let mut paths = Vec::new();
    let mut settings = Settings::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-?" | "-h" | "--help") => return Ok(None),
            Some(option) if option.starts_with('-') => {
                let next = || words.next().map(|value| value.to_string_lossy().into_owned());
                set(&mut settings, option, next)?;
            }
            _ => paths.push(PathBuf::from(word)),
        }
    }
    match <[PathBuf; 2]>::try_from(paths) {
        Ok([directory, mount]) => Ok(Some(Options { directory, mount, settings })),
        Err(paths) if paths.len() < 2 => Err("a directory and a mount point are needed".to_owned()),
        Err(paths) => Err(format!("invalid word: \"{}\"", paths[2].display())),
    }
}

/// Reads a line of standard input, which changes these settings. The error is a message.
pub fn parse_line(line: &str, settings: &Settings) -> Result<Command, String> {
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut settings = settings.clone();
    let mut has_words = false;
    while let Some(word) = words.next() {
        match (&*word, has_words) {
            ("show", false) => return Ok(Command::Show),
            ("off", false) => settings = settings.without_faults(),
            (option, _) if option.starts_with("--") => set(&mut settings, option, || words.next())?,
            _ => return Err(format!("invalid word: \"{word}\"")),
        }
        has_words = true;
    }
    Ok(if has_words { Command::Set(Box::new(settings)) } else { Command::Empty })
}

fn set(settings: &mut Settings, option: &str, next: impl FnOnce() -> Option<String>) -> Result<(), String> {
    let (name, inline) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (option, None),
    };
    let is_known = OPTIONS.iter().any(|opt| opt.value.is_some() && opt.names.contains(&name));
    let name = name.strip_prefix("--").filter(|_| is_known);
    let name = name.ok_or_else(|| format!("invalid option: \"{option}\""))?;
    let value = inline.or_else(next).ok_or_else(|| format!("option \"--{name}\" requires a value"))?;
    settings.set(name, &value)
}

/// The text of `--help`.
pub fn help() -> String {
    let usage = usage("Usage: tailwater-slowdisk directory mount-point", OPTIONS);
    let about = wrapped(ABOUT, "", "");
    let lines = wrapped(LINES, "", "");
    format!("{usage}\n{about}\nOptions:\n{}\n{lines}", listed(OPTIONS, &[]))
}

#[cfg(test)]
mod tests {
    use tw_base::fault::FaultOp;

    use super::*;

    fn read(line: &str) -> Result<Option<Options>, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn command_lines_name_two_directories_and_settings() {
        let options =
            read("/srv /mnt --open 50ms --eio=1% --stall 1s/0.1% --enospc 90% --seed 3").unwrap().unwrap();
        assert_eq!((options.directory.to_str(), options.mount.to_str()), (Some("/srv"), Some("/mnt")));
        assert_eq!(options.settings.to_string(), "--open 50ms --stall 1000ms/0.1% --eio 1% --enospc 90%");
        assert_eq!(options.settings.seed, 3);
        for line in ["--help", "-h /a", "/a /b -?"] {
            assert_eq!(read(line), Ok(None));
        }
    }

    #[test]
    fn bad_command_lines_are_refused() {
        for (line, message) in [
            ("", "a directory and a mount point are needed"),
            ("/a", "a directory and a mount point are needed"),
            ("/a /b /c", "invalid word: \"/c\""),
            ("/a /b --opn 5ms", "invalid option: \"--opn\""),
            ("/a /b -x", "invalid option: \"-x\""),
            ("/a /b --read", "option \"--read\" requires a value"),
            ("/a /b --eio=2", "invalid value \"2\" of \"eio\": a probability is needed (0.01%)"),
        ] {
            assert_eq!(read(line), Err(message.to_owned()), "{line}");
        }
    }

    #[test]
    fn lines_change_what_they_name() {
        let mut settings = Settings::default();
        for (line, shown) in [
            ("--open 5ms --eio 1%", "--open 5ms --eio 1%"),
            ("--eio 0%", "--open 5ms"),
            ("off --read=1s", "--read 1000ms"),
            ("off", "no faults"),
        ] {
            let Ok(Command::Set(next)) = parse_line(line, &settings) else { panic!("{line}") };
            assert_eq!(next.to_string(), shown);
            settings = *next;
        }
        assert_eq!(parse_line("  ", &settings), Ok(Command::Empty));
        assert_eq!(parse_line("show", &settings), Ok(Command::Show));
        for bad in ["on", "--open", "--open 5ms off", "--help"] {
            assert!(parse_line(bad, &settings).is_err(), "{bad}");
        }
    }

    #[test]
    fn help_names_every_setting() {
        let text = help();
        for name in FaultOp::ALL.map(FaultOp::name).into_iter().chain(["stall", "eio", "enospc", "seed"]) {
            assert!(text.contains(&format!("--{name}")), "{name}");
        }
        assert!(text.lines().all(|line| line.len() <= tw_base::command_line::COLUMNS), "{text}");
    }
}
