//! Options of the command.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::Failure;
use crate::generate::{AREAS, Area};

/// Options, one on a line.
pub const USAGE: &str = "\
--nginx FILE      nginx to compare with                    nginx on the PATH
--binary FILE     server under test                        target/debug/tailwater
--cases N         configurations, each with 40 exchanges   100
--seed N          seed of the first one; the others follow 1
--area NAME       routing, variables, proxy, filters, files, access, messages, http2, cache or gateways; all in turn otherwise
--budget N        runs to reduce one difference            150
--seconds N       longest time; no limit otherwise
replay SEED       one case again, with everything about it; the area is needed
replay FILE       the case of a file again; target/differ has one for each group
minimise FILE     reduces the case of a file further (--budget)
report            the groups that the last run found
record            records answers of nginx, to --cases cases of each area from --seed on
check             compares with all recorded answers; needs no nginx
rules             rules and excuses of the comparison";

/// Task of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    Run,
    Replay(u64),
    ReplayFile(PathBuf),
    Minimise(PathBuf),
    Record,
    Check,
    Report,
    Rules,
}

/// Options as used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) task: Task,
    nginx: Option<PathBuf>,
    binary: Option<PathBuf>,
    pub(crate) cases: u64,
    pub(crate) seed: u64,
    /// One area, or all in turn.
    pub(crate) area: Option<Area>,
    pub(crate) budget: usize,
    /// Longest time of a run; the case that is being reduced then is finished.
    pub(crate) time: Duration,
}

impl Options {
    /// Reads the words after the name of the command.
    pub(crate) fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            task: Task::Run,
            nginx: None,
            binary: None,
            cases: 100,
            seed: 1,
            area: None,
            budget: 150,
            time: Duration::MAX,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number =
                |text: &String| text.parse::<u64>().map_err(|error| format!("{word} {text}: {error}"));
            match word.as_str() {
                "--nginx" => options.nginx = Some(PathBuf::from(value()?)),
                "--binary" => options.binary = Some(PathBuf::from(value()?)),
                "--cases" => options.cases = number(value()?)?,
                "--seed" => options.seed = number(value()?)?,
                "--budget" => options.budget = usize::try_from(number(value()?)?).unwrap_or(usize::MAX),
                "--seconds" => options.time = Duration::from_secs(number(value()?)?),
                "--area" => options.area = Some(area(value()?)?),
                "replay" => {
                    let word = value()?;
                    options.task = match word.parse() {
                        Ok(seed) => Task::Replay(seed),
                        Err(_) => Task::ReplayFile(PathBuf::from(word)),
                    };
                }
                "minimise" => options.task = Task::Minimise(PathBuf::from(value()?)),
                "record" => options.task = Task::Record,
                "check" => options.task = Task::Check,
                "report" => options.task = Task::Report,
                "rules" => options.task = Task::Rules,
                _ => return Err(format!("unknown option {word}\n\n{}", USAGE)),
            }
        }
        if matches!(options.task, Task::Replay(_)) && options.area.is_none() {
            return Err("replay needs --area: a seed makes one case in each".to_owned());
        }
        Ok(options)
    }

    /// The server under test.
    pub(crate) fn binary(&self, root: &Path) -> PathBuf {
        self.binary.clone().unwrap_or_else(|| root.join("target/debug/tailwater"))
    }

    /// The nginx to compare with, if there is one.
    pub(crate) fn nginx(&self) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut results = env::split_paths(&path).map(|dir| dir.join("nginx"));
        self.nginx.clone().or_else(|| results.find(|file| file.is_file()))
    }
}

fn area(name: &str) -> Result<Area, Failure> {
    let known_area = AREAS.iter().find(|(candidate, _)| *candidate == name).map(|(_, area)| *area);
    known_area.ok_or_else(|| format!("unknown area {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, Failure> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_are_read_by_name() {
        let options = parse("--cases 5 --seed 9 --area proxy --nginx /n").unwrap();
        assert_eq!((options.cases, options.seed, options.area), (5, 9, Some(Area::Proxy)));
        assert_eq!(options.nginx().unwrap(), PathBuf::from("/n"));
        assert_eq!(parse("replay 4 --area files").unwrap().task, Task::Replay(4));
        assert_eq!(parse("report").unwrap().task, Task::Report);
        assert_eq!(parse("replay a.case").unwrap().task, Task::ReplayFile(PathBuf::from("a.case")));
        assert_eq!(parse("minimise a.case").unwrap().task, Task::Minimise(PathBuf::from("a.case")));
        assert_eq!(
            (parse("record").unwrap().task, parse("check").unwrap().task),
            (Task::Record, Task::Check)
        );
    }

    #[test]
    fn wrong_options_are_refused() {
        for text in ["--cases", "--cases x", "--area moon", "replay 4", "replay", "minimise", "bogus"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
