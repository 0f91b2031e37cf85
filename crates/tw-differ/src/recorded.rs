//! Recorded cases: nginx has answered them once, and the answers are compared with Tailwater where there is no nginx.

use std::fs;
use std::path::{Path, PathBuf};

use crate::answers;
use crate::case::Case;
use crate::case_file;
use crate::compare::{Difference, compare};
use crate::contest::{Contest, Single};
use crate::excuse;
use crate::failure::Failure;
use crate::generate::{self, AREAS, Area};
use crate::node;
use crate::request::Exchange;
use crate::response::Fate;
use crate::server::Observation;

/// Exchanges of a recorded case: it has to run in each change.
const EXCHANGES_MAX: usize = 12;
/// Seeds that are tried for each recording.
const TRIES_MAX: u64 = 20;
/// End of the names of recorded cases.
const EXTENSION: &str = "case";

/// Directory of the recordings in the workspace.
pub(crate) fn directory(root: &Path) -> PathBuf {
    root.join("crates/tw-differ/data/recorded")
}

/// Records answers of nginx to `count` cases of each area, from this seed on.
///
/// # Errors
/// A machine that fails.
pub(crate) fn record(contest: &Contest, dir: &Path, seed: u64, count: u64) -> Result<(), Failure> {
    let failure = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(dir).map_err(failure)?;
    for (name, area) in AREAS.iter().filter(|(_, area)| *area != Area::Cache) {
        let mut kept = 0;
        for seed in seed..seed + TRIES_MAX.saturating_mul(count) {
            if kept == count {
                break;
            }
            let mut case = generate::case(seed, *area);
            case.exchanges.truncate(EXCHANGES_MAX);
            let Some(observation) = contest.agreed(&case)? else { continue };
            if !is_portable(&case, &observation) {
                continue;
            }
            kept += 1;
            let text = format!(
                "# Answers of nginx to seed {seed} of the area {name}.\n{}{}",
                case_file::write(&case),
                answers::write(&observation)
            );
            fs::write(dir.join(format!("{name}-{seed}.{EXTENSION}")), text).map_err(failure)?;
        }
        println!("differ: {kept} recordings of {name}");
    }
    Ok(())
}

/// Returns `true` if another machine gives the same answers at another time.
fn is_portable(case: &Case, observation: &Observation) -> bool {
    let shows_place = |text: &str| text.contains("@ROOT@") || text.contains("@PREFIX@");
    let depends_on_clock = node::render(&case.nodes).contains("expires @");
    !depends_on_clock
        && observation.answers.iter().all(|answer| {
            // The length of a response with a path depends on the machine, and a silent server takes long.
            let responses = &answer.reading.responses;
            answer.reading.fate != Fate::Silent
                && !answer.received.iter().any(|request| shows_place(request))
                && responses.iter().all(|response| {
                    std::str::from_utf8(&response.body).is_ok_and(|body| !shows_place(body))
                        && !response.fields.iter().any(|(_, value)| shows_place(value))
                })
        })
}

/// Compares Tailwater with all recordings.
///
/// # Errors
/// A difference without an excuse, a file that is no recording, or a machine that fails.
pub(crate) fn check(binary: &Path, dir: &Path) -> Result<(), Failure> {
    let failure = |error: std::io::Error| format!("{}: {error}", dir.display());
    let single = Single::new(binary)?;
    let excuses = excuse::table();
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).map_err(failure)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == EXTENSION));
    files.sort();
    let (mut comparisons, mut differing) = (0, 0);
    for file in &files {
        let text = fs::read_to_string(file).map_err(failure)?;
        let lines = case_file::lines(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        let (case, theirs) = (case_file::read(&lines)?, answers::read(&lines)?);
        let ours = single.observe(&case)?;
        comparisons += theirs.answers.len().max(1);
        let differences = compare(&theirs, &ours);
        let left_differences: Vec<&Difference> = differences
            .iter()
            .filter(|difference| !excuses.iter().any(|excuse| excuse.applies(difference, &case)))
            .collect();
        differing += usize::from(!left_differences.is_empty());
        for Difference { kind, exchange, nginx, tailwater } in left_differences {
            let request = case.exchanges.get(*exchange).map(Exchange::bytes).unwrap_or_default();
            println!(
                "--- {}: {kind}, exchange {exchange}\n{request}\nnginx:     {nginx}\ntailwater: {tailwater}",
                file.display()
            );
        }
    }
    println!("differ: {comparisons} comparisons with {} recorded cases", files.len());
    match (files.len(), differing) {
        (0, _) => Err(format!("{}: there is no recorded case", dir.display())),
        (_, 0) => Ok(()),
        _ => Err(format!("{differing} recorded cases differ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::{Reading, Response};
    use crate::server::Answer;

    fn observe(body: &[u8], fate: Fate) -> Observation {
        let response = Response { body: body.to_vec(), ..Response::default() };
        let reading = Reading { responses: vec![response], fate };
        Observation { answers: vec![Answer { reading, ..Answer::default() }], ..Observation::default() }
    }

    #[test]
    fn answers_that_depend_on_the_machine_are_not_portable() {
        let case =
            |words: &str| Case { nodes: vec![node::line(words)], script: Vec::new(), exchanges: Vec::new() };
        let plain = case("etag on");
        assert!(is_portable(&plain, &observe(b"a", Fate::Kept)));
        assert!(!is_portable(&plain, &observe(b"@ROOT@/a", Fate::Kept)));
        assert!(!is_portable(&plain, &observe(b"\xff", Fate::Kept)));
        assert!(!is_portable(&plain, &observe(b"a", Fate::Silent)));
        assert!(!is_portable(&case("expires @1h"), &observe(b"a", Fate::Kept)));
    }
}
