//! The page of a run: one file of HTML without external resources.

use std::fmt::Write as _;

use serde_json::Value;

use super::results::{Case, Part, Target, counts, parts, readable, text};
use super::svg::{escape, figure};
use crate::machine;
use crate::plot::{Kind, Plot};
use crate::report::number;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(results: &Value) -> String {
    let parts = parts(results);
    let (met, missed) = counts(results);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
        <title>Tailwater: benchmarks</title>\n<style>\n{STYLE}</style>\n<h1>Tailwater: benchmarks</h1>\n"
    );
    facts(&mut out, results, &parts);
    tiles(&mut out, &parts, met, missed);
    out += "<nav>";
    for part in &parts {
        let _ = write!(out, "<a href=\"#{}\">{}</a>", part.name, escape(part.title));
    }
    out += "<a href=\"#targets\">Targets</a></nav>\n";
    for part in &parts {
        section(&mut out, part);
    }
    all_targets(&mut out, &parts);
    out + "</html>\n"
}

/// The machine and the versions.
fn facts(out: &mut String, results: &Value, parts: &[Part<'_>]) {
    let value = &results["machine"];
    let _ =
        writeln!(out, "<p class=\"facts\">{}, {}</p>", escape(&machine::line(value)), text(&value["date"]));
    let programs = value["programs"].as_array().into_iter().flatten();
    let named = programs.map(|program| match program["version"].as_str() {
        Some(version) => version.trim().to_owned(),
        None => format!("no {}: left out", text(&program["name"])),
    });
    let versions = parts.iter().find(|part| part.failed().is_none());
    let own = versions.map(|part| [part.version("ours"), part.version("nginx")].map(str::to_owned));
    let all: Vec<String> = own.into_iter().flatten().chain(named).collect();
    let _ = writeln!(out, "<p class=\"facts\">{}</p>", escape(&all.join(" · ")));
}

/// The most important numbers.
fn tiles(out: &mut String, parts: &[Part<'_>], met: usize, missed: usize) {
    let mut tiles = vec![(format!("{met} of {}", met + missed), "targets met".to_owned())];
    let better = parts.iter().flat_map(Part::targets).filter(|target| target.better.is_some()).count();
    tiles.push((better.to_string(), "rows in which a peer is better".to_owned()));
    for (part, row, what) in [
        (
            "pools",
            "hot under load, of nginx with threads",
            "times nginx's throughput of hot files beside cold ones",
        ),
        (
            "open",
            "p99 in memory beside cold ones",
            "99th percentile of hits in memory while others open cold files",
        ),
    ] {
        let results = parts.iter().filter(|other| other.name == part).flat_map(Part::targets);
        if let Some(target) = results.into_iter().find(|target| target.row == row) {
            tiles.push((format!("{}{}", number(target.value), target.unit), what.to_owned()));
        }
    }
    out.push_str("<div class=\"tiles\">");
    for (value, what) in tiles {
        let _ = write!(out, "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
    }
    out.push_str("</div>\n");
}

fn section(out: &mut String, part: &Part<'_>) {
    let _ = writeln!(
        out,
        "<h2 id=\"{}\">{}</h2>\n<p class=\"quiet\">{}</p>",
        part.name,
        escape(part.title),
        escape(part.about)
    );
    if let Some(why) = part.failed() {
        let _ = writeln!(out, "<p class=\"missed\">Not measured: {}.</p>", escape(why));
        return;
    }
    for note in part.notes() {
        let _ = writeln!(out, "<p><small>{}</small></p>", escape(note));
    }
    let (bars, lines): (Vec<Plot>, Vec<Plot>) = part
        .plots()
        .filter_map(Plot::read)
        .chain(part.cases().filter_map(|case| cost_plot(&case)))
        .partition(|plot| plot.kind == Kind::Bars);
    for (class, plots) in [("lines", lines), ("bars", bars)] {
        if !plots.is_empty() {
            let figures: String = plots.iter().map(figure).collect();
            let _ = writeln!(out, "<div class=\"plots {class}\">\n{figures}</div>");
        }
    }
    let _ = writeln!(out, "<details><summary>Tables and targets</summary>");
    for case in part.cases() {
        table(out, &case);
    }
    let targets: Vec<Target<'_>> = part.targets().collect();
    if !targets.is_empty() {
        out.push_str("<h3>Targets</h3>\n");
        target_table(out, targets.iter().map(|target| ("", target)));
    }
    let _ = writeln!(out, "<p><small>cargo xtask bench {}</small></p>\n</details>", escape(part.command()));
}

/// Bars of the processor time of each contestant, if that was measured.
fn cost_plot(case: &Case<'_>) -> Option<Plot> {
    let mut plot = Plot::new(Kind::Bars, format!("CPU: {}", case.title), " µs");
    for (name, value, range) in &case.costs {
        plot.line(name, vec![(*value, *range)]);
    }
    (!plot.lines.is_empty()).then_some(plot)
}

fn table(out: &mut String, case: &Case<'_>) {
    let head: String = case.columns.iter().map(|column| format!("<th>{}</th>", escape(column))).collect();
    let _ =
        write!(out, "<div class=\"scroll\"><table><tr><th>{}</th>{head}</tr>", escape(&readable(case.title)));
    for (name, cells) in &case.rows {
        let class = if name.starts_with("Tailwater") { " class=\"ours\"" } else { "" };
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = write!(out, "<tr{class}><td>{}</td>{cells}</tr>", escape(name));
    }
    out.push_str("</table></div>\n");
}

fn all_targets(out: &mut String, parts: &[Part<'_>]) {
    out.push_str("<h2 id=\"targets\">Targets</h2>\n");
    let all: Vec<(&str, Target<'_>)> =
        parts.iter().flat_map(|part| part.targets().map(|target| (part.title, target))).collect();
    target_table(out, all.iter().map(|(title, target)| (*title, target)));
}

fn target_table<'a>(out: &mut String, targets: impl Iterator<Item = (&'a str, &'a Target<'a>)>) {
    out.push_str(
        "<div class=\"scroll\"><table><tr><th>row</th><th>wanted</th><th>measured</th><th></th></tr>",
    );
    for (title, target) in targets {
        let (class, word) = match target.is_met {
            Some(true) => ("met", "met".to_owned()),
            Some(false) => ("missed", "missed".to_owned()),
            None => ("quiet", "no target".to_owned()),
        };
        let better = target.better.map(|peer| format!(", {peer} is better")).unwrap_or_default();
        let title =
            if title.is_empty() { String::new() } else { format!("<small>{}:</small> ", escape(title)) };
        let _ = write!(
            out,
            "<tr><td>{title}{}</td><td>{}</td><td>{}{}</td><td class=\"word {class}\">{word}{}</td></tr>",
            escape(&target.row),
            escape(target.limit.unwrap_or("—")),
            number(target.value),
            escape(target.unit),
            escape(&better)
        );
    }
    out.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::super::results::example;
    use super::*;

    #[test]
    fn page_is_complete_and_needs_nothing_else() {
        let page = page(&example());
        for text in [
            "id=\"static\"",
            "0 of 2",
            "a &lt;note&gt;",
            "Not measured: TooLong",
            "nginx is better",
            "<td>11.3 ±2 %</td>",
            "prefers-color-scheme: dark",
        ] {
            assert!(page.contains(text), "{text}");
        }
        for text in ["http://", "https://", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(text), "{text}");
        }
    }
}
