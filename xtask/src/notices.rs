//! `cargo xtask notices [FILE]`: third-party code in the program, with the texts of the licences, from the sources
//! that cargo has. Packages contain it beside the licences of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{Failure, cargo, root};

/// Depth below a crate at which licence texts are searched: a library in C has its own beside its source.
const MAX_DEPTH: usize = 3;

/// Beginnings of the names of files with licences.
const NAMES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// A crate that is linked into the program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    name: String,
    version: String,
    /// SPDX expression.
    license: String,
    repository: String,
    authors: String,
    directory: String,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let text = text()?;
    match arguments {
        [] => print!("{text}"),
        [file] => fs::write(file, text).map_err(|error| format!("{file}: {error}"))?,
        _ => return Err(format!("unknown arguments {arguments:?}")),
    }
    Ok(())
}

/// All notices.
pub(crate) fn text() -> Result<String, Failure> {
    Ok(of_parts(&parts(&metadata(None)?)?))
}

/// Metadata of all crates from cargo, or of those for one target.
pub(crate) fn metadata(target: Option<&str>) -> Result<Value, Failure> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--locked"]).current_dir(root());
    if let Some(target) = target {
        command.args(["--filter-platform", target]);
    }
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Elements of an array in metadata.
pub(crate) fn list(value: &Value, key: &str) -> Vec<Value> {
    value[key].as_array().cloned().unwrap_or_default()
}

/// Text in metadata.
pub(crate) fn word(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Programs of an installation.
const PROGRAMS: [&str; 5] =
    ["tailwater", "tailwater-scripts", "tailwater-top", "tailwater-ingress", "tw-slowdisk"];

/// Packages that the programs are linked with, themselves included: each id with the ids of its own dependencies.
pub(crate) fn linked(metadata: &Value) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"], "nodes").into_iter().map(|node| (word(&node, "id"), node)).collect();
    let packages = list(metadata, "packages");
    let program = |name: &str| {
        let value = packages.iter().find(|package| package["name"] == name);
        value.map(|package| word(package, "id")).ok_or_else(|| format!("cargo knows no {name}"))
    };
    let mut open = PROGRAMS.into_iter().map(program).collect::<Result<Vec<_>, _>>()?;
    let mut linked = BTreeMap::new();
    while let Some(id) = open.pop() {
        if linked.contains_key(&id) {
            continue;
        }
        // Dependencies for building and testing are no part of the program.
        let is_linked =
            |dependency: &Value| list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null());
        let dependencies = nodes.get(&id).map(|node| list(node, "deps")).unwrap_or_default();
        let dependencies: BTreeSet<_> = dependencies
            .iter()
            .filter(|dependency| is_linked(dependency))
            .map(|dependency| word(dependency, "pkg"))
            .collect();
        open.extend(dependencies.iter().cloned());
        linked.insert(id, dependencies);
    }
    Ok(linked)
}

/// Everything that the programs are linked with, on any kind of machine.
fn parts(metadata: &Value) -> Result<BTreeSet<Part>, Failure> {
    let packages: BTreeMap<_, _> =
        list(metadata, "packages").into_iter().map(|package| (word(&package, "id"), package)).collect();
    let linked = linked(metadata)?;
    let others =
        linked.keys().filter_map(|id| packages.get(id)).filter(|package| !package["source"].is_null());
    let part = |package: &Value| {
        let manifest = word(package, "manifest_path");
        let authors: Vec<_> =
            list(package, "authors").iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Part {
            name: word(package, "name"),
            version: word(package, "version"),
            license: word(package, "license"),
            repository: word(package, "repository"),
            authors: authors.join(", "),
            directory: Path::new(&manifest).parent().unwrap_or(Path::new("")).display().to_string(),
        }
    };
    Ok(others.map(part).collect())
}

/// The list, and each text once with those whose it is.
fn of_parts(parts: &BTreeSet<Part>) -> String {
    let mut out =
        "Third-party notices\n\nThe programs contain these parts by others, whose licences follow.\n\n"
            .to_owned();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for part in parts {
        let Part { name, version, license, repository, authors, directory } = part;
        out += &format!("{name} {version}: {license}. {repository}\n");
        let mut results = BTreeSet::new();
        texts_below(Path::new(directory), MAX_DEPTH, &mut results);
        if results.is_empty() {
            let by = if authors.is_empty() { String::new() } else { format!(", by {authors}") };
            out += &format!("    Its source has no text of its licence{by}.\n");
        }
        for text in results {
            texts.entry(text).or_default().insert(format!("{name} {version}"));
        }
    }
    for (text, whose) in &texts {
        let whose: Vec<_> = whose.iter().map(String::as_str).collect();
        out += &format!("\n{}\n{}\n\n{}\n", "-".repeat(80), whose.join(", "), text.trim_end());
    }
    out
}

/// Adds the texts of licences in a directory and below. One that cannot be read has none.
fn texts_below(directory: &Path, depth: usize, results: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if path.is_dir() {
            if depth > 0 {
                texts_below(&path, depth - 1, results);
            }
        } else if NAMES.iter().any(|begin| name.starts_with(begin))
            && !name.ends_with(".RS")
            && let Ok(text) = fs::read_to_string(&path)
        {
            results.insert(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `true` if `allowed` satisfies an SPDX expression: one of its alternatives, and everything it joins
    /// with AND.
    fn is_allowed(license: &str, allowed: &str) -> bool {
        let plain = license.replace(['(', ')'], " ").replace('/', " OR ");
        let is_known = |word: &str| allowed.contains(&format!("\"{}\"", word.trim()));
        plain.split(" AND ").all(|all| all.split(" OR ").any(is_known))
    }

    #[test]
    fn only_linked_crates_have_a_notice() {
        let metadata = serde_json::json!({
            "packages": [
                { "id": "t", "name": "tailwater", "version": "1", "source": null, "manifest_path": "/t/Cargo.toml" },
                { "id": "j", "name": "tailwater-scripts", "version": "1", "source": null, "manifest_path": "/j/Cargo.toml" },
                { "id": "o", "name": "tailwater-top", "version": "1", "source": null, "manifest_path": "/o/Cargo.toml" },
                { "id": "i", "name": "tailwater-ingress", "version": "1", "source": null, "manifest_path": "/i/Cargo.toml" },
                { "id": "s", "name": "tw-slowdisk", "version": "1", "source": null, "manifest_path": "/s/Cargo.toml" },
                { "id": "a", "name": "a", "version": "1", "source": "r", "license": "MIT", "manifest_path": "/none/a/Cargo.toml" },
                { "id": "b", "name": "b", "version": "2", "source": "r", "license": "MIT", "manifest_path": "/none/b/Cargo.toml" },
                { "id": "c", "name": "c", "version": "3", "source": "r", "license": "MIT", "manifest_path": "/none/c/Cargo.toml" },
            ],
            "resolve": { "nodes": [
                { "id": "t", "deps": [
                    { "pkg": "a", "dep_kinds": [{ "kind": "dev" }, { "kind": null }] },
                    { "pkg": "c", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "a", "deps": [{ "pkg": "b", "dep_kinds": [{ "kind": null }] }] },
            ] },
        });
        let parts = parts(&metadata).unwrap();
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let text = of_parts(&parts);
        assert!(text.contains("a 1: MIT. \n    Its source has no text of its licence.\n"), "{text}");
    }

    #[test]
    fn licences_of_all_parts_are_allowed_by_the_list() {
        let list = fs::read_to_string(root().join("deny.toml")).unwrap();
        let (_, allowed) = list.split_once("allow = [").unwrap();
        let allowed = allowed.split(']').next().unwrap();
        assert!(is_allowed("MIT OR GPL-3.0-only", "\"MIT\"") && !is_allowed("MIT AND X", "\"MIT\""));
        let parts = parts(&metadata(None).unwrap()).unwrap();
        assert!(!parts.is_empty());
        for part in parts {
            assert!(is_allowed(&part.license, allowed), "{} {}: {}", part.name, part.version, part.license);
        }
    }
}
