//! The numbers that the repository keeps, to compare with: `crates/tw-bench/data/instructions.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Outcome;
use crate::root;

/// Path below the root of the repository.
const FILE: &str = "crates/tw-bench/data/instructions.json";

/// Counts of one case, for one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Counts {
    pub(super) instructions: f64,
    pub(super) allocations: f64,
}

/// Counts of all cases, and where they are from.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Kept {
    /// Processor architecture: others have other instructions.
    pub(super) arch: String,
    /// Compiler of the server, and the version of valgrind: for the reader.
    pub(super) compiler: String,
    pub(super) valgrind: String,
    pub(super) cases: BTreeMap<String, Counts>,
}

impl Kept {
    /// Reads the file of the repository; `None` if it is not there.
    pub(super) fn read() -> Outcome<Option<Self>> {
        Self::read_from(&path())
    }

    fn read_from(path: &Path) -> Outcome<Option<Self>> {
        if !path.is_file() {
            return Ok(None);
        }
        let text = fs::read_to_string(path)?;
        Ok(Some(Self::parse(&text).ok_or_else(|| format!("{}: unknown format", path.display()))?))
    }

    fn parse(text: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(text).ok()?;
        let text = |name: &str| Some(json.get(name)?.as_str()?.to_owned());
        let counts = |value: &Value| {
            let number = |name: &str| value.get(name)?.as_f64();
            Some(Counts { instructions: number("instructions")?, allocations: number("allocations")? })
        };
        let cases = json.get("cases")?.as_object()?;
        Some(Self {
            arch: text("arch")?,
            compiler: text("compiler")?,
            valgrind: text("valgrind")?,
            cases: cases
                .iter()
                .map(|(name, value)| Some((name.clone(), counts(value)?)))
                .collect::<Option<_>>()?,
        })
    }

    /// Writes the file of the repository; cases that were not measured stay as they are.
    pub(super) fn save(mut self) -> Outcome<PathBuf> {
        if let Some(old) = Self::read()?.filter(|old| old.arch == self.arch) {
            for (name, counts) in old.cases {
                self.cases.entry(name).or_insert(counts);
            }
        }
        let path = path();
        fs::write(&path, self.text()?)?;
        Ok(path)
    }

    fn text(&self) -> Outcome<String> {
        let rounded = |value: f64, step: f64| (value / step).round() * step;
        let cases: BTreeMap<&str, Value> = self
            .cases
            .iter()
            .map(|(name, counts)| {
                // A tenth of an allocation is one in ten requests; fractions of instructions mean nothing.
                let allocations = (counts.allocations * 10.0).round() / 10.0;
                let numbers =
                    json!({ "instructions": rounded(counts.instructions, 1.0) as u64, "allocations": allocations });
                (name.as_str(), numbers)
            })
            .collect();
        let json = json!({
            "arch": self.arch,
            "compiler": self.compiler,
            "valgrind": self.valgrind,
            "cases": cases,
        });
        Ok(serde_json::to_string_pretty(&json)? + "\n")
    }
}

/// Change from one number to another, as a share of the first; `None` from zero.
pub(super) fn change(from: f64, to: f64) -> Option<f64> {
    (from > 0.0).then(|| to / from - 1.0)
}

/// Change with its sign, in percent.
pub(super) fn percent(change: f64) -> String {
    format!("{:+.1} %", change * 100.0)
}

fn path() -> PathBuf {
    root().join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        let counts = Counts { instructions: 11_000.4, allocations: 2.04 };
        Kept {
            arch: "x86_64".to_owned(),
            compiler: "rustc 1.95.0".to_owned(),
            valgrind: "valgrind-3.19.0".to_owned(),
            cases: [("static".to_owned(), counts)].into(),
        }
    }

    #[test]
    fn file_is_read_as_it_was_written() {
        let text = kept().text().unwrap();
        let read = Kept::parse(&text).unwrap();
        assert_eq!(read.cases["static"], Counts { instructions: 11_000.0, allocations: 2.0 });
        assert_eq!((read.arch, read.compiler), (kept().arch, kept().compiler));
        assert_eq!(Kept::parse("{}"), None);
        assert_eq!(Kept::parse(&text.replace("11000", "\"many\"")), None);
    }

    #[test]
    fn file_of_the_repository_is_readable() {
        let kept = Kept::read().unwrap().unwrap();
        assert!(kept.cases.values().all(|counts| counts.instructions > 0.0));
    }

    #[test]
    fn changes_are_shares_with_a_sign() {
        for (from, to, expected) in
            [(100.0, 102.0, "+2.0 %"), (100.0, 97.5, "-2.5 %"), (100.0, 100.0, "+0.0 %")]
        {
            assert_eq!(change(from, to).map(percent).as_deref(), Some(expected));
        }
        assert_eq!(change(0.0, 1.0), None);
    }
}
