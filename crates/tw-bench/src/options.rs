//! Options of the measurements: `--name value` and `--flag`, nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Outcome;

/// Options every measurement takes.
const COMMON: &[&str] =
    &["ours", "nginx", "server-cpu", "load-cpu", "only", "ours-http", "ours-main", "nginx-main"];
const COMMON_FLAGS: &[&str] = &["quick", "check", "keep-data"];

/// Options of the command line.
#[derive(Debug, Default)]
pub(super) struct Options {
    values: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Options {
    /// Reads the arguments; an option that is neither common nor listed is an error.
    pub(super) fn parse(args: &[String], names: &[&str], flags: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").unwrap_or_default();
            if names.contains(&name) || COMMON.contains(&name) {
                let value = args.next().ok_or_else(|| format!("--{name} needs a value"))?;
                options.values.insert(name.to_owned(), value.clone());
            } else if flags.contains(&name) || COMMON_FLAGS.contains(&name) {
                options.flags.push(name.to_owned());
            } else {
                return Err(format!("unknown option {arg:?}\n\n{}", super::USAGE).into());
            }
        }
        Ok(options)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A value of any type that reads itself, or the default.
    pub(super) fn number<T: FromStr<Err: fmt::Display>>(&self, name: &str, default: T) -> Outcome<T> {
        match self.text(name) {
            Some(text) => text.parse().map_err(|e| format!("--{name} {text}: {e}").into()),
            None => Ok(default),
        }
    }

    /// Numbers with commas between them.
    pub(super) fn numbers(&self, name: &str, default: &[usize]) -> Outcome<Vec<usize>> {
        match self.text(name) {
            Some(text) => text
                .split(',')
                .map(|part| part.parse().map_err(|e| format!("--{name} {text}: {e}").into()))
                .collect(),
            None => Ok(default.to_owned()),
        }
    }

    /// A size in bytes with nginx's suffixes `k`, `m`, `g`.
    pub(super) fn size(&self, name: &str, default: u64) -> Outcome<u64> {
        match self.text(name) {
            Some(text) => parse_size(text).ok_or_else(|| format!("--{name} {text}: not a size").into()),
            None => Ok(default),
        }
    }

    /// Returns `true` if a case is selected: no `--only`, or named there.
    pub(super) fn wants(&self, case: &str) -> bool {
        self.text("only").is_none_or(|only| only.split(',').any(|wanted| wanted == case))
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let (digits, unit) = match text.strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits, text.as_bytes().last()?),
        None => (text.as_str(), &b'b'),
    };
    let shift = match unit {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Outcome<Options> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Options::parse(&args, &["rounds", "memory"], &["cold-names"])
    }

    #[test]
    fn options_are_read_by_name() {
        let options =
            parse(&["--rounds", "3", "--quick", "--memory", "64M", "--cold-names", "--only", "1k,4m"])
                .unwrap();
        assert_eq!(options.number("rounds", 5).unwrap(), 3);
        assert_eq!(options.number("seconds", 4.0).unwrap(), 4.0);
        assert_eq!(options.size("memory", 1).unwrap(), 64 << 20);
        assert!(options.flag("quick") && options.flag("cold-names") && !options.flag("check"));
        assert!(options.wants("4m") && !options.wants("32k"));
    }

    #[test]
    fn unknown_options_are_refused() {
        for args in [&["--bogus"][..], &["rounds"], &["--rounds"], &["-r", "3"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
        assert!(parse(&["--rounds", "x"]).unwrap().number("rounds", 1).is_err());
    }

    #[test]
    fn sizes_have_the_suffixes_of_nginx() {
        for (text, expected) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("4k", Some(4096)),
            ("2G", Some(2 << 30)),
            ("m", None),
            ("1t", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }
}
