//! Tables of the document, between markers: `<!-- bench WHAT -->` and `<!-- /bench -->`.
//!
//! `WHAT` is `machine`, `claims`, `summary`, `builds`, `PART targets`, `PART: TITLE` for a table, or `PART: TITLE | COLUMN, COLUMN` for some of its
//! columns. `*` in a title stands for any text.

use serde_json::Value;

use super::claims::claims;
use super::results::{Case, Part, Target, counts, distributed, is_known, parts, readable, text};
use crate::Outcome;
use crate::machine;
use crate::report::number;
use crate::targets::{Limit, limit_of_row, matches};

const BEGIN: &str = "<!-- bench ";
const END: &str = "<!-- /bench -->";

/// The document with the tables of these results.
pub(super) fn fill(document: &str, results: &Value) -> Outcome<String> {
    let mut out = String::with_capacity(document.len());
    let mut rest = document;
    while let Some(at) = rest.find(BEGIN) {
        let what_at = at + BEGIN.len();
        let what_len = rest[what_at..].find(" -->").ok_or("a marker without an end")?;
        let what = &rest[what_at..what_at + what_len];
        let body = what_at + what_len + " -->".len();
        let end = rest[body..].find(END).ok_or_else(|| format!("{BEGIN}{what} -->: no {END}"))?;
        out.push_str(&rest[..body]);
        out.push_str("\n\n");
        out.push_str(&section(what, results)?);
        out.push('\n');
        rest = &rest[body + end..];
    }
    out.push_str(rest);
    Ok(out)
}

fn section(what: &str, results: &Value) -> Outcome<String> {
    if what == "machine" {
        return Ok(machine_list(results));
    }
    if what == "claims" {
        return Ok(claims(results));
    }
    if what == "summary" {
        return Ok(summary(results));
    }
    if what == "builds" {
        return Ok(builds(results));
    }
    let name = what.split([' ', ':']).next().unwrap_or_default();
    let all = parts(results);
    let Some(part) = all.iter().find(|part| part.name == name) else {
        return if is_known(name) {
            Ok("This part was not measured in this run.\n".to_owned())
        } else {
            Err(format!("{what}: no such part").into())
        };
    };
    if let Some(why) = part.failed() {
        return Ok(format!("This part could not be measured ({why}).\n"));
    }
    match what.split_once(": ") {
        None => Ok(targets(part)),
        Some((_, wanted_name)) => {
            let (title, columns) = wanted_name
                .split_once(" | ")
                .map_or((wanted_name, None), |(title, columns)| (title, Some(columns)));
            let cases: Vec<Case<'_>> = part.cases().filter(|case| matches(title, case.title)).collect();
            if cases.is_empty() {
                Err(format!("{what}: no such table in the results").into())
            } else {
                Ok(cases.iter().map(|case| table(case, columns)).collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

fn machine_list(results: &Value) -> String {
    let value = &results["machine"];
    let mut lines = vec![format!("- {}, {}", machine::line(value), text(&value["date"]))];
    let all = parts(results);
    if let Some(part) = all.iter().find(|part| part.failed().is_none()) {
        lines.push(format!("- {}; {}", part.version("ours"), part.version("nginx")));
    }
    let programs = value["programs"].as_array().into_iter().flatten();
    let mut present = Vec::new();
    let mut absent = Vec::new();
    for program in programs {
        match program["version"].as_str() {
            Some(version) => present.push(version.trim()),
            None => absent.push(text(&program["name"])),
        }
    }
    lines.push(format!("- {}", present.join("; ")));
    if !absent.is_empty() {
        lines.push(format!("- not installed, and left out: {}", absent.join(", ")));
    }
    let commands: Vec<String> = all
        .iter()
        .filter(|part| part.failed().is_none())
        .map(|part| format!("`{}`", part.command()))
        .collect();
    lines.push(format!("- commands after `cargo xtask bench`: {}", commands.join(", ")));
    lines.join("\n") + "\n"
}

/// Number of targets met and missed, and the rows in which a peer is better.
fn summary(results: &Value) -> String {
    let (met, missed) = counts(results);
    let mut out = format!("{met} of {} targets are met. A peer is better in these rows:\n\n", met + missed);
    out += "| | row | ratio | better |\n|---|---|---|---|\n";
    for part in parts(results) {
        for target in part.targets() {
            if let Some(peer) = target.better {
                out += &format!(
                    "| {} | {} | {} | {peer} |\n",
                    part.title,
                    code(&target.row),
                    number(target.value)
                );
            }
        }
    }
    out
}

/// Rows with a target for the distributed build, with both builds beside each other.
fn builds(results: &Value) -> String {
    let distributed = distributed(results);
    let mut out =
        "| | row | wanted | plain build | wanted | distributed build |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let cell = |value: f64, limit: Limit| match (value.is_nan(), limit.is_met(value)) {
        (true, _) => "not measured".to_owned(),
        (false, true) => number(value),
        (false, false) => format!("**{}**", number(value)),
    };
    for part in parts(results) {
        for target in part.targets() {
            let Some(row_limit) = limit_of_row(part.name, target.name) else { continue };
            let Some(limit) = row_limit.distributed else { continue };
            let other = distributed.iter().find(|other| other.name == part.name);
            let other = other.and_then(|part| part.targets().find(|other| other.name == target.name));
            let other = other.map_or(f64::NAN, |target| target.value);
            out += &format!(
                "| {} | {} | {} | {} | {limit} | {} |\n",
                part.title,
                code(&target.row),
                row_limit.limit,
                cell(target.value, row_limit.limit),
                cell(other, limit),
            );
        }
    }
    out
}

fn targets(part: &Part<'_>) -> String {
    let mut out = "| target | wanted | measured | |\n|---|---|---|---|\n".to_owned();
    for target in part.targets() {
        let Some(wanted_name) = target.limit else { continue };
        let measured = format!("{}{}", number(target.value), target.unit);
        out += &format!("| {} | {wanted_name} | {measured} | {} |\n", code(&target.row), verdict(&target));
    }
    out
}

fn verdict(target: &Target<'_>) -> String {
    match (target.is_met, target.better) {
        (Some(true), None) => "met".to_owned(),
        (Some(true), Some(peer)) => format!("met; {peer} is better"),
        (Some(false), None) => "**missed**".to_owned(),
        (Some(false), Some(peer)) => format!("**missed**; {peer} is better"),
        (None, _) => "not measured".to_owned(),
    }
}

fn table(case: &Case<'_>, columns: Option<&str>) -> String {
    let wanted_names: Option<Vec<&str>> = columns.map(|columns| columns.split(", ").collect());
    let shown = |at: usize| {
        wanted_names
            .as_ref()
            .is_none_or(|wanted_names| case.columns.get(at).is_some_and(|name| wanted_names.contains(name)))
    };
    let line = |first: &str, cells: &[&str]| {
        let cells: Vec<&str> =
            cells.iter().enumerate().filter(|(at, _)| shown(*at)).map(|(_, cell)| *cell).collect();
        format!("| {first} | {} |\n", cells.join(" | "))
    };
    let mut out = line(&code(&readable(case.title)), &case.columns);
    out += &format!("|---{}|\n", "|---".repeat((0..case.columns.len()).filter(|at| shown(*at)).count()));
    for (name, cells) in &case.rows {
        out += &line(&code(name), cells);
    }
    out
}

/// Text with names of directives as code.
fn code(text: &str) -> String {
    text.split(' ')
        .map(|word| {
            let bare = word.trim_end_matches([',', ':']);
            if bare.contains('_') { format!("`{bare}`{}", &word[bare.len()..]) } else { word.to_owned() }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::results::example;
    use super::*;

    #[test]
    fn tables_are_written_between_markers() {
        let document = "# A\n<!-- bench static: 1 KiB, * | of nginx -->\nold\n<!-- /bench -->\nprose\n";
        let expected = "# A\n<!-- bench static: 1 KiB, * | of nginx -->\n\n| 1 KiB, 64 connections | of nginx |\n|---|---|\n\
            | Tailwater | 0.81 |\n| nginx | 1.00 |\n\n<!-- /bench -->\nprose\n";
        let filled = fill(document, &example()).unwrap();
        assert_eq!(filled, expected);
        assert_eq!(fill(&filled, &example()).unwrap(), expected);
    }

    #[test]
    fn targets_name_the_better_program() {
        let filled = fill("<!-- bench static targets --><!-- /bench -->", &example()).unwrap();
        assert!(
            filled.contains(
                "| 4 MiB: CPU of Tailwater / nginx | ≤ 1.15 | 1.20 | **missed**; nginx is better |"
            )
        );
        let summary = fill("<!-- bench summary --><!-- /bench -->", &example()).unwrap();
        assert!(summary.contains("0 of 2 targets") && summary.contains("| 1.20 | nginx |"), "{summary}");
    }

    #[test]
    fn builds_stand_beside_each_other() {
        let part = |values: &[(&str, f64)]| {
            let targets: Vec<_> =
                values.iter().map(|(row, value)| json!({ "row": row, "value": value })).collect();
            json!([{ "measurement": "proxy", "targets": targets }])
        };
        let small = "1 KiB, 64 connections: CPU of ours / nginx";
        let large = "32 KiB, 64 connections: CPU of ours / nginx";
        let results = json!({
            "parts": part(&[(small, 1.08), (large, 0.7), ("memory of an idle tunnel", 7000.0)]),
            "distributed": part(&[(small, 0.7)]),
        });
        let filled = fill("<!-- bench builds --><!-- /bench -->", &results).unwrap();
        let row = "1 KiB, 64 connections: CPU of Tailwater / nginx | ≤ 0.9 | **1.08** | ≤ 0.78 | 0.70 |";
        assert!(filled.contains(row), "{filled}");
        assert!(filled.contains("≤ 0.75 | 0.70 | ≤ 0.7 | not measured |"), "{filled}");
    }

    #[test]
    fn marker_without_table_is_an_error() {
        for document in [
            "<!-- bench static: 2 KiB -->\n<!-- /bench -->",
            "<!-- bench other -->\n<!-- /bench -->",
            "<!-- bench machine -->\n",
        ] {
            assert!(fill(document, &example()).is_err(), "{document}");
        }
        let failed = fill("<!-- bench tls: 1k -->\n<!-- /bench -->", &example()).unwrap();
        assert!(failed.contains("could not be measured"));
        let absent = fill("<!-- bench h2 targets -->\n<!-- /bench -->", &example()).unwrap();
        assert!(absent.contains("not measured in this run"));
    }
}
