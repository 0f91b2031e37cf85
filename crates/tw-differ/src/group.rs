//! Groups of differences with one signature, each with the smallest case that shows it, and the report about them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::case::Case;
use crate::case_file;
use crate::compare::{Difference, compare};
use crate::contest::Pair;
use crate::failure::Failure;
use crate::generate::Area;
use crate::node;
use crate::request::Exchange;
use crate::server::{Answer, Observation};

/// Longest value in a signature.
const VALUE_MAX: usize = 60;

/// Origin of a generated case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CaseOrigin {
    pub(crate) seed: u64,
    pub(crate) area: Area,
}

/// Groups of one run, also written to a directory as they are found.
#[derive(Debug)]
pub(crate) struct Groups {
    dir: PathBuf,
    /// Text and count of each group, by signature.
    groups: BTreeMap<String, (String, usize)>,
    /// Reductions of each kind.
    reductions: BTreeMap<String, usize>,
    skipped: BTreeMap<String, usize>,
}

/// Kind of a difference that two cases can share: values belong to it where they are few.
pub(crate) fn key(difference: &Difference) -> String {
    let Difference { kind, nginx: theirs, tailwater: ours, .. } = difference;
    let short = |text: &str| text.chars().take(VALUE_MAX).collect::<String>();
    match kind.as_str() {
        "status" | "fate" | "framing" => format!("{kind}: {} -> {}", short(theirs), short(ours)),
        "message" => {
            let text = |text: &str| short(text.split(" in @PREFIX@").next().unwrap_or_default());
            format!("{kind}: {} -> {}", text(theirs), text(ours))
        }
        "acceptance" => {
            let who = if theirs == "accepted" { "only nginx accepts" } else { "only Tailwater accepts" };
            format!("{kind}: {who}")
        }
        _ if theirs == "absent" || ours == "absent" => {
            format!("{kind}: {}", if theirs == "absent" { "only Tailwater" } else { "only nginx" })
        }
        _ => kind.clone(),
    }
}

impl Groups {
    /// No groups; the directory is emptied of those of the last run.
    pub(crate) fn new(dir: &Path) -> Result<Self, Failure> {
        let failure = |error: std::io::Error| format!("{}: {error}", dir.display());
        if dir.exists() {
            fs::remove_dir_all(dir).map_err(failure)?;
        }
        fs::create_dir_all(dir).map_err(failure)?;
        let (groups, reductions, skipped) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { dir: dir.to_owned(), groups, reductions, skipped })
    }

    pub(crate) fn count(&self) -> usize {
        self.groups.len()
    }

    /// Differences of this kind that were reduced.
    pub(crate) fn reductions(&self, key: &str) -> usize {
        self.reductions.get(key).copied().unwrap_or(0)
    }

    /// Counts a difference that is not reduced.
    pub(crate) fn count_again(&mut self, key: &str) {
        *self.skipped.entry(key.to_owned()).or_default() += 1;
    }

    /// Adds a reduced case. Returns its signature if that is new.
    pub(crate) fn add(
        &mut self,
        key: &str,
        case: &Case,
        pair: &Pair,
        origin: CaseOrigin,
    ) -> Result<Option<String>, Failure> {
        *self.reductions.entry(key.to_owned()).or_default() += 1;
        let names: Vec<String> =
            node::names(&case.nodes).into_iter().filter(|name| name != "listen").collect();
        let signature = format!("{key} [{}]", names.join(" "));
        let index = self.groups.len();
        let entry = self.groups.entry(signature.clone()).or_default();
        entry.1 += 1;
        if entry.1 > 1 {
            return Ok(None);
        }
        let CaseOrigin { seed, area } = origin;
        entry.0 = describe(&signature, case, pair, &format!("Seed {seed}, area {area:?}."));
        for (end, text) in [("md", &entry.0), ("case", &case_file::write(case))] {
            let file = self.dir.join(format!("{index:03}.{end}"));
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(Some(signature))
    }
}

/// Text about one group.
pub(crate) fn describe(signature: &str, case: &Case, (theirs, ours): &Pair, origin: &str) -> String {
    let mut text = format!("## {signature}\n\n{origin}\n\n```nginx\n{}```\n\n", node::render(&case.nodes));
    let requests: String = case.exchanges.iter().map(Exchange::bytes).collect();
    let _ = write!(text, "```\n{}\n```\n\n", requests.trim_end());
    if case.exchanges.iter().any(|exchange| exchange.bytes().contains("want="))
        || theirs.answers.iter().any(|answer| !answer.received.is_empty())
    {
        let _ = write!(text, "Origin:\n\n```\n{}\n```\n\n", script(case, theirs));
    }
    for Difference { kind, nginx, tailwater, .. } in compare(theirs, ours) {
        let _ = writeln!(text, "- {kind}: nginx `{nginx}`, Tailwater `{tailwater}`");
    }
    let _ = write!(
        text,
        "\nnginx:\n\n```\n{}```\n\nTailwater:\n\n```\n{}```\n\n",
        answers(theirs),
        answers(ours)
    );
    text
}

/// The response that the origin server sent.
fn script(case: &Case, observation: &Observation) -> String {
    let received: Vec<&String> = observation.answers.iter().flat_map(|answer| &answer.received).collect();
    let index = received
        .first()
        .and_then(|request| request.split_once("want="))
        .and_then(|(_, rest)| rest.chars().next())
        .and_then(|digit| digit.to_digit(10));
    let index = index.and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    case.script.get(index).or_else(|| case.script.first()).cloned().unwrap_or_default()
}

fn answers(observation: &Observation) -> String {
    let mut text = observation.refusal.as_ref().map(|refusal| format!("{refusal}\n")).unwrap_or_default();
    for Answer { reading, received, .. } in &observation.answers {
        for response in &reading.responses {
            let _ = writeln!(text, "{}", response.status_line);
            for (name, value) in &response.fields {
                let _ = writeln!(text, "{name}: {value}");
            }
            let _ = writeln!(
                text,
                "\n{} ({})",
                String::from_utf8_lossy(&response.body).trim_end(),
                response.framing
            );
        }
        let _ = writeln!(text, "connection: {:?}", reading.fate);
        for request in received {
            let _ = writeln!(text, "to the origin: {}", request.replace("\r\n", " | "));
        }
    }
    text
}

/// Page with all groups of the last run.
pub(crate) fn report(dir: &Path) -> Result<String, Failure> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "md"));
    files.sort();
    let mut text = format!("# Differences from nginx: {} groups\n\n", files.len());
    for file in files {
        text += &fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::temp::TempDir;

    #[test]
    fn groups_are_counted_by_signature_and_reported() {
        let dir = TempDir::new("differ-groups").unwrap();
        let mut groups = Groups::new(&dir.join("groups")).unwrap();
        let case = Case { nodes: vec![node::line("gzip on")], script: Vec::new(), exchanges: Vec::new() };
        let mut add = |key: &str| {
            groups.add(key, &case, &Pair::default(), CaseOrigin { seed: 5, area: Area::Files }).unwrap()
        };
        assert_eq!(add("body").unwrap(), "body [gzip]");
        assert_eq!(add("body"), None);
        assert!(add("fate").is_some());
        assert_eq!((groups.count(), groups.reductions("body")), (2, 2));
        let report = report(&dir.join("groups")).unwrap();
        assert!(report.contains("2 groups") && report.contains("Seed 5, area Files"), "{report}");
    }
}
