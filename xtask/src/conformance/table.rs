//! Table of the results of a run, between two marks of `docs/conformance.md`.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::reasons::reason;
use super::{FileResult, Results};

/// Place of a table in the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Table of nginx's suite.
    Nginx,
    /// Table of the tests of njs.
    Njs,
}

impl Place {
    /// Marks in front of the table and behind it.
    const fn marks(self) -> (&'static str, &'static str) {
        match self {
            Self::Nginx => {
                ("<!-- cargo xtask conformance: begin -->\n", "<!-- cargo xtask conformance: end -->\n")
            }
            Self::Njs => (
                "<!-- cargo xtask conformance, njs: begin -->\n",
                "<!-- cargo xtask conformance, njs: end -->\n",
            ),
        }
    }
}

/// Numbers of files of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    all: usize,
    passed: usize,
    renamed: usize,
    failed: usize,
    skipped: usize,
    checks_passed: usize,
    checks: usize,
}

impl Numbers {
    pub(super) fn of(results: &Results) -> Self {
        let mut numbers = Self { all: results.len(), ..Self::default() };
        for file_result in results.values() {
            match file_result {
                FileResult::Passed(checks) | FileResult::PassedRenamed(checks) => {
                    numbers.passed += 1;
                    numbers.renamed += usize::from(matches!(file_result, FileResult::PassedRenamed(_)));
                    numbers.checks_passed += checks;
                    numbers.checks += checks;
                }
                FileResult::Failed { checks, of } => {
                    numbers.failed += 1;
                    numbers.checks_passed += of.saturating_sub(checks.len());
                    numbers.checks += of;
                }
                FileResult::Late => numbers.failed += 1,
                FileResult::Skipped(_) => numbers.skipped += 1,
            }
        }
        numbers
    }

    fn run(&self) -> usize {
        self.passed + self.failed
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.passed;
        let run = self.run();
        write!(f, "{passed} of {run} files pass, {} of {} are skipped", self.skipped, self.all)
    }
}

/// The document with `table` between its marks; `None` if it has none.
pub(super) fn put(document: &str, place: Place, table: &str) -> Option<String> {
    let (begin, end) = place.marks();
    let (before, rest) = document.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{table}\n{end}{after}"))
}

/// The table of a run.
pub(super) fn text(results: &Results) -> String {
    let numbers = Numbers::of(results);
    let percent = |part: usize, of: usize| (part * 1000 / of.max(1)) as f64 / 10.0;
    let mut out = String::new();
    // Writing into a String does not fail.
    let _ = writeln!(
        out,
        "| | files | checks |\n|---|---|---|\n| in the suite | {} | |\n| skipped: a requirement is not met | {} | |\n\
         | run | {} | {} |\n| passed | {} ({} %) | {} ({} %) |\n\
         | of these with `tailwater` in the place of `nginx` in a check | {} | |\n",
        numbers.all,
        numbers.skipped,
        numbers.run(),
        numbers.checks,
        numbers.passed,
        percent(numbers.passed, numbers.run()),
        numbers.checks_passed,
        percent(numbers.checks_passed, numbers.checks),
        numbers.renamed,
    );
    let _ = writeln!(out, "| failed file | failed checks | reason |\n|---|---|---|");
    for (file, file_result) in results {
        let count = match file_result {
            FileResult::Failed { checks, .. } if checks.iter().any(|check| check == "ended early") => {
                "ended early".to_owned()
            }
            FileResult::Failed { checks, of } => format!("{} of {of}", checks.len()),
            FileResult::Late => "timed out".to_owned(),
            FileResult::Passed(_) | FileResult::PassedRenamed(_) | FileResult::Skipped(_) => continue,
        };
        let name = name(file);
        let _ = writeln!(out, "| `{name}` | {count} | {} |", reason(name).unwrap_or("not investigated yet"));
    }
    let mut skipped: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, file_result) in results {
        if let FileResult::Skipped(why) = file_result {
            skipped.entry(why).or_default().push(format!("`{}`", name(file)));
        }
    }
    let _ = writeln!(out, "\n| requirement that is not met | skipped files |\n|---|---|");
    for (why, files) in skipped {
        let _ = writeln!(out, "| {} | {} |", why.replace('|', "\\|"), files.join(", "));
    }
    out
}

fn name(file: &str) -> &str {
    file.strip_suffix(".t").unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_every_file_that_does_not_pass() {
        let failed = |of| FileResult::Failed { checks: vec!["2 - b".into()], of };
        let results = Results::from([
            ("a.t".to_owned(), FileResult::Passed(3)),
            ("b.t".to_owned(), FileResult::PassedRenamed(1)),
            ("no_such_file.t".to_owned(), failed(4)),
            ("late.t".to_owned(), FileResult::Late),
            ("m1.t".to_owned(), FileResult::Skipped("no mail available".into())),
            ("m2.t".to_owned(), FileResult::Skipped("no mail available".into())),
            ("slice.t".to_owned(), failed(9)),
        ]);
        let text = text(&results);
        for line in [
            "| in the suite | 7 | |",
            "| run | 5 | 17 |",
            "| passed | 2 (40 %) | 15 (88.2 %) |",
            "| of these with `tailwater` in the place of `nginx` in a check | 1 | |",
            "| `no_such_file` | 1 of 4 | not investigated yet |",
            "| `late` | timed out | not investigated yet |",
            "| no mail available | `m1`, `m2` |",
        ] {
            assert!(text.lines().any(|candidate| candidate == line), "{line}\n{text}");
        }
        assert!(text.contains("| `slice` | 1 of 9 | If the second slice"), "{text}");
        assert_eq!(Numbers::of(&results).to_string(), "2 of 5 files pass, 2 of 7 are skipped");
        let [(begin, end), (njs_begin, njs_end)] = [Place::Nginx, Place::Njs].map(Place::marks);
        let document = format!("a\n{begin}old\n{end}b\n{njs_begin}{njs_end}");
        let changed = format!("a\n{begin}\nnew\n\n{end}b\n{njs_begin}{njs_end}");
        assert_eq!(put(&document, Place::Nginx, "new\n"), Some(changed));
        let changed = format!("a\n{begin}old\n{end}b\n{njs_begin}\nnew\n\n{njs_end}");
        assert_eq!(put(&document, Place::Njs, "new\n"), Some(changed));
        assert_eq!(put("a\n", Place::Nginx, ""), None);
    }
}
