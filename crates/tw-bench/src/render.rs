//! Results for readers: one page of HTML, and the tables of the documents.

mod claims;
mod markdown;
mod page;
mod results;
mod svg;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::options::Options;
use super::{Outcome, home};
use crate::root;

/// Documents whose tables are generated.
const DOCUMENTS: [&str; 2] = ["docs/benchmarks.md", "README.md"];
/// Results of the run that the document shows.
const KEPT: &str = "crates/tw-bench/data/results.json";

/// `bench report`: makes the page again from the last results, or from `--json FILE`. With `--write`, keeps the results
/// and writes the tables of the document.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["json"], &["write"])?;
    let last = results_path();
    let kept = root().join(KEPT);
    let path = match options.text("json") {
        Some(path) => PathBuf::from(path),
        None if last.exists() => last,
        None => kept.clone(),
    };
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let results: Value = serde_json::from_str(&text)?;
    println!("report: {}", write_page(&results)?.display());
    if options.flag("write") {
        fs::write(&kept, results::compact(&results)?)?;
        for name in DOCUMENTS {
            let document = root().join(name);
            let before = fs::read_to_string(&document)?;
            fs::write(&document, markdown::fill(&before, &results)?)?;
        }
        println!("written: {KEPT}, {}", DOCUMENTS.join(", "));
    }
    Ok(())
}

/// Path of the results of all parts.
pub(super) fn results_path() -> PathBuf {
    home().join("results.json")
}

/// Writes the page; returns its path.
pub(super) fn write_page(results: &Value) -> Outcome<PathBuf> {
    let path = home().join("report.html");
    fs::create_dir_all(home())?;
    fs::write(&path, page::page(results))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_have_the_tables_of_the_kept_results() {
        let results = fs::read_to_string(root().join(KEPT)).unwrap();
        let results: Value = serde_json::from_str(&results).unwrap();
        for name in DOCUMENTS {
            let document = fs::read_to_string(root().join(name)).unwrap();
            assert!(
                markdown::fill(&document, &results).unwrap() == document,
                "{name} is not what cargo xtask bench report --write makes of {KEPT}"
            );
        }
    }
}
