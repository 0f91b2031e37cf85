//! `cargo xtask docs --site`: the documents as a static site, built by mdBook.
//!
//! ```text
//! README.md CHANGELOG.md … ─┐
//! docs/*.md docs/*/*.md     ├─ links rewritten ─► target/site/src ─ mdbook ─► target/site/html
//! docs/SUMMARY.md ──────────┘  pages of directives added
//! ```
//! mdBook was chosen because its pages need nothing from elsewhere, have a search over all headings, themes for light and dark, and suit phones;
//! it is a program of its own, so the workspace does not grow by its hundred dependencies.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::{Failure, root, target};

/// The program, and how to get it.
const MDBOOK: &str = "mdbook";
const INSTALL: &str = "cargo install mdbook --locked";

/// Documents beside `docs` that become pages.
const ROOT_PAGES: &[&str] =
    &["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Pages whose tables become headings, because the search finds headings first.
const TABLES_OF_NAMES: &[&str] = &["docs/variables.md", "docs/metrics.md"];

/// Line of the summary below which the pages of directives are listed.
const DIRECTIVES: &str = "- [Directives](directives.md)\n";

/// Address of files of the repository that are no pages.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Builds the site.
pub(crate) fn build() -> Result<(), Failure> {
    let site = target().join("site");
    let pages = site.join("src");
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(|error| format!("cannot empty {}: {error}", pages.display()))?;
    }
    copy_documents(&pages).map_err(|error| format!("cannot copy the documents: {error}"))?;
    let run = Command::new(MDBOOK).arg("build").arg(&site).status();
    match run {
        Ok(status) if status.success() => {
            println!("{}", site.join("html/index.html").display());
            Ok(())
        }
        Ok(status) => Err(format!("{MDBOOK}: {status}")),
        Err(error) => Err(format!("cannot run {MDBOOK}: {error}; install it with: {INSTALL}")),
    }
}

/// Copies all pages, with links that hold in the site.
fn copy_documents(pages: &Path) -> std::io::Result<()> {
    let docs = root().join("docs");
    fs::create_dir_all(pages.join("directives"))?;
    fs::copy(docs.join("book.toml"), target().join("site/book.toml"))?;
    for name in ROOT_PAGES {
        copy_page(name, &pages.join(name))?;
    }
    for dir in ["", "directives"] {
        for entry in fs::read_dir(docs.join(dir))? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let copy = pages.join(dir).join(name);
            match path.extension().and_then(|kind| kind.to_str()) {
                Some("md") if name == "SUMMARY.md" => {
                    fs::write(copy, summary(&fs::read_to_string(&path)?, &docs)?)?
                }
                Some("md") => copy_page(&format!("docs/{}", Path::new(dir).join(name).display()), &copy)?,
                Some("webp") => drop(fs::copy(&path, copy)?),
                _ => {}
            }
        }
    }
    Ok(())
}

fn copy_page(path: &str, copy: &Path) -> std::io::Result<()> {
    let text = fs::read_to_string(root().join(path))?;
    let text = if TABLES_OF_NAMES.contains(&path) { with_headings(&text) } else { text };
    fs::write(copy, with_links_of_site(&text, path))
}

/// A document in which each row of a table of names is a section: the name, the last cell, and the other cells by their columns.
fn with_headings(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let mut columns: Vec<&str> = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = match line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) {
            Some(row) => row.split(" | ").map(str::trim).collect(),
            None if line.starts_with("|-") => continue,
            None => {
                out.push_str(line);
                out.push('\n');
                continue;
            }
        };
        match cells[..] {
            [name, .., meaning] if name.starts_with('`') => {
                out.push_str(&format!("### {name}\n\n{meaning}\n\n"));
                let others = columns.iter().zip(&cells).skip(1).take(cells.len() - 2);
                let others = others.filter(|(_, cell)| !cell.is_empty());
                let list: String = others.map(|(column, cell)| format!("- {column}: {cell}\n")).collect();
                if !list.is_empty() {
                    out.push_str(&list);
                    out.push('\n');
                }
            }
            _ => columns = cells,
        }
    }
    out
}

/// The summary with a line for each page of directives.
fn summary(text: &str, docs: &Path) -> std::io::Result<String> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(docs.join("directives"))? {
        modules.extend(entry?.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    modules.sort();
    let lines = modules.iter().map(|module| format!("  - [{module}](directives/{module}.md)\n"));
    Ok(text.replace(DIRECTIVES, &format!("{DIRECTIVES}{}", lines.collect::<String>())))
}

/// A document whose relative links hold in the site. `path` is its place in the repository.
fn with_links_of_site(text: &str, path: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        is_code ^= line.starts_with("```");
        if is_code {
            out.push_str(line);
        } else {
            let line = replace_targets(line, "](", ')', path);
            out.push_str(&replace_targets(&line, "src=\"", '"', path));
        }
    }
    out
}

/// A line in which each text between `before` and `end` is the target of a link.
fn replace_targets(line: &str, before: &str, end: char, path: &str) -> String {
    let mut parts = line.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(before);
        match part.split_once(end) {
            Some((link, rest)) => {
                out.push_str(&link_of_site(link, path));
                out.push(end);
                out.push_str(rest);
            }
            None => out.push_str(part),
        }
    }
    out
}

/// Target of a link in the site: a page, or a file of the repository.
fn link_of_site(link: &str, path: &str) -> String {
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, format!("#{anchor}")),
        None => (link, String::new()),
    };
    if file.is_empty() || file.contains(':') {
        return link.to_owned();
    }
    let file = in_repository(file, path);
    let page = match file.strip_prefix("docs/") {
        Some(page) => page,
        None if ROOT_PAGES.contains(&&*file) => &file,
        None => return format!("{REPOSITORY}{file}{anchor}"),
    };
    let depth = place_in_site(path).matches('/').count();
    format!("{}{page}{anchor}", "../".repeat(depth))
}

/// Place of a document in the site.
fn place_in_site(path: &str) -> &str {
    path.strip_prefix("docs/").unwrap_or(path)
}

/// Path from the root of the repository of a file that the document at `path` names.
fn in_repository(file: &str, path: &str) -> String {
    let mut whole = PathBuf::new();
    let dir = Path::new(path).parent().unwrap_or(Path::new(""));
    for component in dir.join(file).components() {
        match component {
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
    }
    whole.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_hold_in_the_site() {
        for (path, text, expected) in [
            (
                "README.md",
                "[a](docs/tls.md#x) <img src=\"docs/a.webp\">\n",
                "[a](tls.md#x) <img src=\"a.webp\">\n",
            ),
            (
                "docs/tls.md",
                "[a](directives/ssl.md) [b](#b) [c](http2.md)",
                "[a](directives/ssl.md) [b](#b) [c](http2.md)",
            ),
            (
                "docs/directives/ssl.md",
                "[a](../tls.md) [b](core.md#c)",
                "[a](../tls.md) [b](../directives/core.md#c)",
            ),
            ("docs/tls.md", "[a](../ARCHITECTURE.md#b)", "[a](ARCHITECTURE.md#b)"),
            ("docs/tls.md", "[a](https://example.com/b)", "[a](https://example.com/b)"),
            ("docs/tls.md", "```\n[a](../b)\n```\n", "```\n[a](../b)\n```\n"),
        ] {
            assert_eq!(with_links_of_site(text, path), expected, "{path}");
        }
        let file = with_links_of_site("[a](../fuzz)", "docs/tls.md");
        assert_eq!(file, format!("[a]({REPOSITORY}fuzz)"));
    }

    #[test]
    fn rows_of_a_table_become_sections() {
        let table = "text\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n\
                     | `a_total` | counter | `x`, `y` | Number of a. |\n| `b` | gauge |  | Number of b. |\n\nmore\n";
        let sections = "text\n\n### `a_total`\n\nNumber of a.\n\n- kind: counter\n- labels: `x`, `y`\n\n\
                        ### `b`\n\nNumber of b.\n\n- kind: gauge\n\n\nmore\n";
        assert_eq!(with_headings(table), sections);
        for path in TABLES_OF_NAMES {
            let text = fs::read_to_string(root().join(path)).unwrap();
            let rows = text.lines().filter(|line| line.starts_with("| `")).count();
            assert!(rows > 100, "{path}");
            assert_eq!(with_headings(&text).matches("\n### ").count(), rows, "{path}");
        }
    }

    #[test]
    fn every_document_is_in_the_summary() {
        let docs = root().join("docs");
        let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
        assert!(summary.contains(DIRECTIVES));
        let names =
            fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for name in names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md") {
            assert!(summary.contains(&format!("]({name})")), "docs/SUMMARY.md lacks {name}");
        }
    }
}
