//! `docs/directives.md`, and a page for each module in `docs/directives`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use tw_conf::{DirectiveInfo, nginx_directives};
use tw_reference::directives::{Chapter, chapters, facts, in_nginx};

use crate::{anchor, check, names, rows};

const COMMERCIAL: &str = include_str!("nginx/commercial.tsv");

const INTRO: &str = "\
Every directive that Tailwater reads, with a page for each module. Names, arguments, defaults and contexts are nginx's, and so is what they
do, unless [nginx-differences.md](nginx-differences.md) has a row about it. A directive of nginx that is not here is
refused with an error that names it; the list at the end says which.

`tailwater help NAME` shows the same in a terminal.

How to read an entry: `[ ]` may be left out, `|` separates alternatives, `…` repeats. *Default* is what holds when the
directive is not given. Sizes may end in `k`, `m` or `g`, times in `ms`, `s`, `m`, `h`, `d` and longer units. *Since* is
the version of nginx that brought the directive, or the version of Tailwater if nginx does not have it.
";

/// Pages of `docs` that are no guides.
const REFERENCE_PAGES: &[&str] = &[
    "directives.md",
    "variables.md",
    "limits.md",
    "metrics.md",
    "messages.md",
    "nginx-differences.md",
    "benchmarks.md",
    "conformance.md",
];

/// Page of the module that has a directive, with the anchor of its heading, as a link in `docs`.
pub(crate) fn link(name: &str) -> String {
    let chapters = chapters();
    let is_in = |chapter: &&Chapter| chapter.directives.iter().any(|directive| directive.name == name);
    let chapter = chapters.iter().find(is_in).unwrap_or_else(|| panic!("no directive has the name {name}"));
    format!("directives/{}.md#{}", chapter.title, anchor(name))
}

/// References to directives in other documents.
struct Mentions {
    /// Limits that a directive sets.
    limited: BTreeSet<&'static str>,
    /// Sections of the differences from nginx, by the directives that their rows name.
    differences: BTreeMap<String, BTreeSet<String>>,
    /// Guides by the links to directives in them.
    guides: BTreeMap<String, BTreeMap<String, String>>,
}

impl Mentions {
    fn read() -> Self {
        let limited = crate::limits::directives_of_limits();
        let mut differences: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let mut section = String::new();
        for line in read("nginx-differences.md").lines() {
            match (line.strip_prefix("## "), line.strip_prefix("| ")) {
                (Some(title), _) => section = title.to_owned(),
                (None, Some(row)) => {
                    // The first two cells say what differs; the others why, and where in the code.
                    let cells: Vec<_> = row.split(" | ").take(2).collect();
                    let words = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
                    for word in words.filter_map(|code| code.split([' ', ';', '=']).next()) {
                        differences.entry(word.to_owned()).or_default().insert(section.clone());
                    }
                }
                (None, None) => {}
            }
        }
        Self { limited, differences, guides: guides() }
    }

    /// Lines that lead from a directive to the rest of the documentation.
    fn lines(&self, module: &str, name: &str) -> String {
        let mut lines = String::new();
        if self.limited.contains(name) {
            lines.push_str("- Limit: [what happens beyond it](../limits.md)\n");
        }
        for section in self.differences.get(name).into_iter().flatten() {
            let target = anchor(section);
            writeln!(lines, "- [Differences from nginx](../nginx-differences.md#{target}): {section}")
                .unwrap();
        }
        let target = format!("directives/{module}.md#{}", anchor(name));
        let guides = self.guides.get(&target).into_iter().flatten();
        let guides: Vec<_> = guides.map(|(page, title)| format!("[{title}](../{page})")).collect();
        if !guides.is_empty() {
            writeln!(lines, "- Guides: {}", guides.join(", ")).unwrap();
        }
        lines
    }
}

/// File names and titles of guides, by the directives that they link to.
fn guides() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut guides: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let files = fs::read_dir(crate::docs())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    for page in files.filter(|page| page.ends_with(".md") && !REFERENCE_PAGES.contains(&&**page)) {
        let text = read(&page);
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(&page).to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("directives/") {
                guides.entry(target.to_owned()).or_default().insert(page.clone(), title.clone());
            }
        }
    }
    guides
}

/// A document of `docs`.
fn read(name: &str) -> String {
    fs::read_to_string(crate::docs().join(name)).unwrap()
}

/// Section of a directive in the page of its module.
fn entry(module: &str, directive: &DirectiveInfo, mentions: &Mentions, out: &mut String) {
    let DirectiveInfo { name, doc, .. } = *directive;
    writeln!(out, "## {name}\n\n```\n{}```\n\n{doc}\n", facts(directive)).unwrap();
    if let Some(text) = tw_reference::text::find(module, name) {
        writeln!(out, "{text}\n").unwrap();
    } else if let Some(other) = tw_reference::text::counterpart(module, name) {
        writeln!(out, "More: [{other}](proxy.md#{})\n", anchor(&other)).unwrap();
    }
    let lines = mentions.lines(module, name);
    if !lines.is_empty() {
        writeln!(out, "{lines}").unwrap();
    }
}

/// Page of a module.
fn page(chapter: &Chapter, mentions: &Mentions) -> String {
    let Chapter { title, directives } = chapter;
    let mut out = format!("# Directives of {title}\n\n");
    let theirs: BTreeSet<_> =
        directives.iter().filter_map(in_nginx).map(|nginx_directive| nginx_directive.module).collect();
    if !theirs.is_empty() {
        writeln!(out, "In nginx: {}. [How to read an entry](../directives.md)\n", names(&theirs, ""))
            .unwrap();
    }
    for directive in directives {
        entry(title, directive, mentions, &mut out);
    }
    out
}

/// Directives of a module of nginx that are missing here; those of its commercial edition are apart.
#[derive(Default)]
struct Missing {
    open: BTreeSet<&'static str>,
    sold: BTreeSet<&'static str>,
    all: usize,
}

fn missing(chapters: &[Chapter]) -> BTreeMap<&'static str, Missing> {
    let ours: Vec<_> = chapters.iter().flat_map(|chapter| &chapter.directives).collect();
    let sold: BTreeSet<_> = rows(COMMERCIAL).collect();
    let mut modules: BTreeMap<_, Missing> = BTreeMap::new();
    for nginx_directive in nginx_directives() {
        let module = modules.entry(nginx_directive.module).or_default();
        module.all += 1;
        // `include` is read by the language itself.
        let is_ours = nginx_directive.name == "include"
            || ours
                .iter()
                .any(|d| d.name == nginx_directive.name && d.contexts & nginx_directive.contexts != 0);
        if is_ours {
            continue;
        }
        if sold.contains(&(nginx_directive.module, nginx_directive.name)) {
            module.sold.insert(nginx_directive.name)
        } else {
            module.open.insert(nginx_directive.name)
        };
    }
    modules
}

#[test]
fn directives_are_documented() {
    let chapters = chapters();
    let count: usize = chapters.iter().map(|chapter| chapter.directives.len()).sum();
    let modules = missing(&chapters);
    let open: usize = modules.values().map(|module| module.open.len()).sum();
    let sold: usize = modules.values().map(|module| module.sold.len()).sum();
    let known = nginx_directives().count();

    let mut out = format!("# Directives\n\n{INTRO}\n");
    writeln!(
        out,
        "**{count} directives.** nginx has {known} with its commercial modules; {open} of its open source and {sold} of the \
         others are [not supported yet](#not-supported-yet).\n"
    )
    .unwrap();
    let mentions = Mentions::read();
    for chapter in &chapters {
        let Chapter { title, directives } = chapter;
        let link = |directive: &DirectiveInfo| {
            format!("[{}](directives/{title}.md#{})", directive.name, anchor(directive.name))
        };
        let links: Vec<_> = directives.iter().map(link).collect();
        writeln!(out, "- **[{title}](directives/{title}.md)**: {}", links.join(", ")).unwrap();
        check(&format!("directives/{title}.md"), &page(chapter, &mentions));
    }
    out.push('\n');
    remove_others(&chapters);
    out.push_str("## Not supported yet\n\n");
    out.push_str("What nginx sells and does not publish is in *italics*.\n\n");
    out.push_str("| module of nginx | missing | directives |\n|---|---:|---|\n");
    for (name, Missing { open, sold, all }) in &modules {
        let missing = open.len() + sold.len();
        if missing == 0 {
            continue;
        }
        let mut list = names(open, "");
        for name in sold {
            let gap = if list.is_empty() { "" } else { " " };
            write!(list, "{gap}*{name}*").unwrap();
        }
        writeln!(out, "| {name} | {missing} of {all} | {list} |").unwrap();
    }
    check("directives.md", &out);
}

/// Removes, or finds, pages of modules that do not exist any more.
fn remove_others(chapters: &[Chapter]) {
    for entry in fs::read_dir(crate::docs().join("directives")).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if chapters.iter().all(|chapter| chapter.title != module) {
            assert!(crate::updates(), "{} is about no module; run `cargo xtask docs`", path.display());
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn records_are_complete() {
    for Chapter { title, directives } in chapters() {
        for pair in directives.windows(2) {
            assert_ne!(pair[0].name, pair[1].name, "{title}");
        }
        for directive in directives {
            let name = directive.name;
            assert!(!directive.doc.is_empty() && directive.doc.ends_with('.'), "{name}: {}", directive.doc);
            assert_ne!(directive.contexts, 0, "{name}");
            assert_eq!(
                directive.args.has_block(),
                directive.syntax.ends_with('}'),
                "{name}: {}",
                directive.syntax
            );
        }
    }
}
