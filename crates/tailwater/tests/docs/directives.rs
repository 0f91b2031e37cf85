//! `docs/directives.md`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tw_conf::{DirectiveInfo, NginxDirective, context_words, known};

use crate::{MODULES, anchor, check, names, rows};

const COMMERCIAL: &str = include_str!("nginx/commercial.tsv");

const INTRO: &str = "\
Every directive that Tailwater reads, by module. Names, arguments, defaults and contexts are nginx's, and so is what they
do, unless [nginx-differences.md](nginx-differences.md) has a row about it. A directive of nginx that is not here is
refused with an error that names it; the list at the end says which.

How to read an entry: `[ ]` may be left out, `|` separates alternatives, `…` repeats. *Default* is what holds when the
directive is not given. Sizes may end in `k`, `m` or `g`, times in `ms`, `s`, `m`, `h`, `d` and longer units. *Since* is
the version of nginx that brought the directive, or the version of Tailwater if nginx does not have it.
";

/// A module and its directives.
pub(crate) struct Chapter {
    pub(crate) title: &'static str,
    pub(crate) directives: Vec<DirectiveInfo>,
}

/// Every directive in the order of the modules, each module once.
pub(crate) fn chapters() -> Vec<Chapter> {
    let mut chapters = Vec::new();
    for block in tw_app::structure_directives() {
        add(&mut chapters, "blocks", block);
    }
    let all = tw_app::all_directives(MODULES);
    for (title, directive) in all.into_iter().filter(|(title, _)| *title != tw_modules::TRAP) {
        add(&mut chapters, title, directive);
    }
    for directive in tw_modules::oidc_provider_directives() {
        add(&mut chapters, "auth_oidc", directive);
    }
    chapters.retain(|chapter| !chapter.directives.is_empty());
    for chapter in &mut chapters {
        chapter.directives.sort_by_key(|directive| directive.name);
    }
    chapters
}

/// Adds a directive to its chapter. One that several protocols have stands there once.
fn add(chapters: &mut Vec<Chapter>, title: &'static str, directive: DirectiveInfo) {
    let at = chapters.iter().position(|chapter| chapter.title == title).unwrap_or_else(|| {
        chapters.push(Chapter { title, directives: Vec::new() });
        chapters.len() - 1
    });
    let chapter = &mut chapters[at];
    match chapter.directives.iter_mut().find(|known| known.name == directive.name) {
        // Directives of one module with the same name are listed once, with the contexts of all of them.
        Some(known) => known.contexts |= directive.contexts,
        None => chapter.directives.push(directive),
    }
}

/// nginx's own record of a directive.
fn in_nginx(directive: &DirectiveInfo) -> Option<NginxDirective> {
    known().find(|known| known.name == directive.name && known.contexts & directive.contexts != 0)
}

fn entry(directive: &DirectiveInfo, out: &mut String) {
    let DirectiveInfo { name, syntax, contexts, default, since, doc, .. } = *directive;
    let end = if syntax.ends_with('}') { "" } else { ";" };
    let gap = if syntax.is_empty() { "" } else { " " };
    let nginx = in_nginx(directive);
    writeln!(out, "### {name}\n\n{doc}\n\n```").unwrap();
    writeln!(out, "Syntax:   {name}{gap}{syntax}{end}").unwrap();
    if let Some(default) = default {
        writeln!(out, "Default:  {name} {default};").unwrap();
    }
    writeln!(out, "Context:  {}", context_words(contexts)).unwrap();
    match (since, nginx) {
        ("", Some(_)) => {}
        ("", None) => writeln!(out, "Since:    Tailwater 0.1").unwrap(),
        (since, Some(_)) if !since.starts_with("Tailwater") => {
            writeln!(out, "Since:    nginx {since}").unwrap()
        }
        (since, _) => writeln!(out, "Since:    {since}").unwrap(),
    }
    writeln!(out, "```\n").unwrap();
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
    for known in known() {
        let module = modules.entry(known.module).or_default();
        module.all += 1;
        // `include` is read by the language itself.
        let is_ours = known.name == "include"
            || ours.iter().any(|d| d.name == known.name && d.contexts & known.contexts != 0);
        if is_ours {
            continue;
        }
        if sold.contains(&(known.module, known.name)) {
            module.sold.insert(known.name)
        } else {
            module.open.insert(known.name)
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
    let known = known().count();

    let mut out = format!("# Directives\n\n{INTRO}\n");
    writeln!(
        out,
        "**{count} directives.** nginx has {known} with its commercial modules; {open} of its open source and {sold} of the \
         others are [not supported yet](#not-supported-yet).\n"
    )
    .unwrap();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for Chapter { title, directives } in &chapters {
        let links = directives.iter().map(|d| {
            // The second heading of one name gets a number.
            let count = seen.entry(d.name).or_default();
            *count += 1;
            let again = if *count > 1 { format!("-{}", *count - 1) } else { String::new() };
            format!("[{}](#{}{again})", d.name, anchor(d.name))
        });
        writeln!(out, "- [{title}](#module-{}): {}", anchor(title), links.collect::<Vec<_>>().join(", "))
            .unwrap();
    }
    out.push_str("- [Not supported yet](#not-supported-yet)\n\n");
    for Chapter { title, directives } in &chapters {
        writeln!(out, "## Module {title}\n").unwrap();
        let theirs: BTreeSet<_> = directives.iter().filter_map(in_nginx).map(|known| known.module).collect();
        if !theirs.is_empty() {
            writeln!(out, "nginx: {}\n", names(&theirs, "")).unwrap();
        }
        for directive in directives {
            entry(directive, &mut out);
        }
    }
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
