//! `tailwater help NAME`: what the reference says about a name, for a terminal.

use std::fmt::Write as _;

use tw_conf::nearest;
use tw_core::metrics::{Metric, PREFIX};

use crate::directives::{self, facts};
use crate::{MODULES, text, variables};

/// Result of a search in the reference.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Text of all entries with the name.
    Found(String),
    /// No entry has the name; the most similar name that an entry has, if one is near.
    Unknown(Option<String>),
}

/// Looks up a directive, a variable (`$name`), a metric, or a module, whose directives are listed.
pub fn look_up(name: &str) -> Lookup {
    let entries = match name.strip_prefix('$') {
        Some(variable) => variable_entries(variable),
        None => [directive_entries(name), metric_entries(name), module_entries(name)].concat(),
    };
    if entries.is_empty() { Lookup::Unknown(similar_name(name)) } else { Lookup::Found(entries.join("\n")) }
}

/// Entries of the directives with a name: several modules may have one.
fn directive_entries(name: &str) -> Vec<String> {
    let mut entries = Vec::new();
    for chapter in directives::chapters() {
        for directive in chapter.directives.iter().filter(|directive| directive.name == name) {
            let title = chapter.title;
            let mut entry = format!("{name} (module {title})\n\n{}\n{}\n", facts(directive), directive.doc);
            if let Some(text) = text::find(title, name) {
                // Writing to a string cannot fail.
                let _ = writeln!(entry, "\n{}", plain(text));
            } else if let Some(other) = text::counterpart(title, name) {
                let _ = match other == name {
                    true => writeln!(entry, "\nMore: see {other} of module proxy"),
                    false => writeln!(entry, "\nMore: tailwater help {other}"),
                };
            }
            entries.push(entry);
        }
    }
    entries
}

fn variable_entries(name: &str) -> Vec<String> {
    let mut entries = Vec::new();
    for chapter in variables::chapters() {
        for variable in chapter.variables {
            let is_named = variable.name == name || variable.is_family && name.starts_with(variable.name);
            if is_named {
                let family = if variable.is_family { "NAME" } else { "" };
                let settable = if variable.is_settable { ", settable" } else { "" };
                let title = chapter.title;
                entries.push(format!(
                    "${}{family} (variable of module {title}{settable})\n\n{}\n",
                    variable.name, variable.doc
                ));
            }
        }
    }
    entries
}

/// Entry of a metric, with or without the prefix of all metrics.
fn metric_entries(name: &str) -> Vec<String> {
    let short = name.strip_prefix(PREFIX).unwrap_or(name);
    let all = tw_app::all_metrics(MODULES);
    let entry = |Metric { name, kind, labels, doc, .. }: &Metric| {
        let labels =
            if labels.is_empty() { String::new() } else { format!("\nLabels: {}\n", labels.join(", ")) };
        format!("{PREFIX}{name} (metric, {})\n\n{doc}\n{labels}", kind.word())
    };
    all.all().filter(|metric| metric.name == short).map(entry).collect()
}

/// List of the directives of a module.
fn module_entries(name: &str) -> Vec<String> {
    let mut entries = Vec::new();
    for chapter in directives::chapters().into_iter().filter(|chapter| chapter.title == name) {
        let mut entry = format!("Directives of module {name}\n\n");
        for directive in &chapter.directives {
            let _ = writeln!(entry, "{:<32} {}", directive.name, directive.doc);
        }
        entries.push(entry);
    }
    entries
}

fn similar_name(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    if let Some(variable) = lower.strip_prefix('$') {
        let names = variables::chapters().into_iter().flat_map(|chapter| chapter.variables);
        let names: Vec<_> = names.map(|variable| variable.name).collect();
        return nearest(variable, names).map(|name| format!("${name}"));
    }
    let mut names = Vec::new();
    for chapter in directives::chapters() {
        names.push(chapter.title);
        names.extend(chapter.directives.iter().map(|directive| directive.name));
    }
    nearest(&lower, names).map(str::to_owned)
}

/// Markdown as plain text: links become their text, examples are indented.
fn plain(markdown: &str) -> String {
    let mut lines = Vec::new();
    let mut is_example = false;
    for line in markdown.lines() {
        if line.starts_with("```") {
            is_example = !is_example;
        } else if is_example {
            lines.push(format!("    {line}"));
        } else {
            lines.push(without_links(line));
        }
    }
    lines.join("\n")
}

/// A line whose links, `[text](target)`, are replaced by their texts.
fn without_links(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after.split_once("](").and_then(|(text, after)| Some((text, after.split_once(')')?.1)));
        out.push_str(before);
        match link {
            Some((text, after)) if !text.contains('[') => {
                out.push_str(text);
                rest = after;
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(name: &str) -> String {
        match look_up(name) {
            Lookup::Found(text) => text,
            Lookup::Unknown(similar) => panic!("{name} is unknown; similar: {similar:?}"),
        }
    }

    #[test]
    fn names_of_all_kinds_are_found() {
        let directive = page_of("proxy_pass");
        assert!(
            directive.starts_with("proxy_pass (module proxy)\n\nSyntax:   proxy_pass URL;\n"),
            "{directive}"
        );
        assert!(directive.contains("\nproxy_pass (module stream_proxy)\n"), "{directive}");
        assert!(page_of("$http_user_agent").starts_with("$http_NAME (variable of module core)"));
        assert!(page_of("$args").contains("settable"));
        let metric = page_of("tailwater_disk_inline_total");
        assert_eq!(metric, page_of("disk_inline_total"));
        assert!(metric.starts_with("tailwater_disk_inline_total (metric, counter)"), "{metric}");
        assert!(page_of("gzip").contains("Directives of module gzip\n"));
    }

    #[test]
    fn similar_names_are_suggested() {
        let similar = |name| match look_up(name) {
            Lookup::Found(text) => panic!("{name} is found: {text}"),
            Lookup::Unknown(similar) => similar,
        };
        assert_eq!(similar("proxy_pas").as_deref(), Some("proxy_pass"));
        assert_eq!(similar("$reqest_uri").as_deref(), Some("$request_uri"));
        assert_eq!(similar("nothing_like_this_at_all"), None);
    }

    #[test]
    fn markdown_becomes_plain_text() {
        let markdown = "See [the guide](../a.md#b) and `list[0]`.\n\n```nginx\nroot [x](y);\n```";
        assert_eq!(plain(markdown), "See the guide and `list[0]`.\n\n    root [x](y);");
    }
}
