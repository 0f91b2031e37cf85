//! Reading of results, for the page and the document alike.

use serde_json::{Value, json};

use crate::Outcome;
use crate::targets::matches;

/// Part, its heading, and one sentence about it.
const PARTS: &[(&str, &str, &str)] = &[
    (
        "pools",
        "Thread pools",
        "Hot 4 MiB files while a cold set of ten times the memory is read from a slow disk.",
    ),
    (
        "open",
        "Opening files",
        "Time to the first byte of small cached responses in memory, while others open files whose directories are not.",
    ),
    ("sharding", "Socket sharding", "Short connections, and the three ways to spread them over loops."),
    (
        "disk",
        "Hot files while a disk is busy",
        "A hot 32 KiB file while a disk is busy, and while another disk stands still.",
    ),
    ("static", "Static files in memory", "Processor time of the server for one request, on one core."),
    ("filters", "Compression", "Processor time to compress source code for every request."),
    (
        "waf",
        "Web application firewall",
        "Processor time of a request under the Core Rule Set, and a neighbour beside large bodies.",
    ),
    ("scripts", "Scripts", "Processor time of a call of a script, and a neighbour beside hostile scripts."),
    (
        "proxy",
        "Reverse proxy",
        "Processor time of a proxy for one request; throughput and memory with large bodies.",
    ),
    (
        "cache",
        "Cache",
        "Hits in memory, hits beside cold ones, fills, and many clients that ask for the same.",
    ),
    ("gateways", "FastCGI", "Processor time for one request to an application over a Unix socket."),
    ("grpc", "gRPC", "Processor time of a proxy for one call."),
    ("tls", "TLS", "Requests on established connections, and handshakes."),
    ("h2", "HTTP/2", "Many streams on each connection, plain and over TLS."),
    ("h3", "HTTP/3", "Many streams on each connection, over QUIC."),
    (
        "stream",
        "TCP and UDP",
        "Processor time of a relay for a megabyte, a connection, a message and a datagram.",
    ),
    (
        "idle",
        "Idle connections",
        "Memory of an idle connection, time to the first byte, and size of the program.",
    ),
    (
        "reload",
        "Reloads and upgrades",
        "What clients notice of them, and the time that large configurations take.",
    ),
];

/// A part of the results.
pub(super) struct Part<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) about: &'a str,
    value: &'a Value,
}

/// A table of a part.
pub(super) struct Case<'a> {
    pub(super) title: &'a str,
    pub(super) columns: Vec<&'a str>,
    pub(super) rows: Vec<(String, Vec<&'a str>)>,
    /// Processor time of each contestant, if that is measured: name, microseconds, and half of the range.
    pub(super) costs: Vec<(String, f64, f64)>,
}

/// A value with its target.
pub(super) struct Target<'a> {
    /// Name of the row in the file of targets.
    pub(super) name: &'a str,
    /// Name for readers.
    pub(super) row: String,
    pub(super) value: f64,
    pub(super) unit: &'a str,
    pub(super) limit: Option<&'a str>,
    pub(super) is_met: Option<bool>,
    pub(super) better: Option<&'a str>,
}

/// Returns `true` for the name of a part, measured or not.
pub(super) fn is_known(name: &str) -> bool {
    PARTS.iter().any(|(part, ..)| *part == name)
}

/// All parts.
pub(super) fn parts(results: &Value) -> Vec<Part<'_>> {
    of(&results["parts"])
}

/// Parts that were measured with the distributed build.
pub(super) fn distributed(results: &Value) -> Vec<Part<'_>> {
    of(&results["distributed"])
}

fn of(parts: &Value) -> Vec<Part<'_>> {
    list(parts)
        .map(|value| {
            let name = text(&value["measurement"]);
            let row = PARTS.iter().find(|(other, ..)| *other == name);
            let (title, about) = row.map_or((name, ""), |(_, title, about)| (*title, *about));
            Part { name, title, about, value }
        })
        .collect()
}

/// Targets met, missed and not measured, in all parts.
pub(super) fn counts(results: &Value) -> (usize, usize) {
    let all = parts(results);
    let verdicts = || all.iter().flat_map(Part::targets).filter_map(|target| target.is_met);
    (verdicts().filter(|met| *met).count(), verdicts().filter(|met| !met).count())
}

impl<'a> Part<'a> {
    /// Reason why there are no results.
    pub(super) fn failed(&self) -> Option<&'a str> {
        self.value["failed"].as_str()
    }

    pub(super) fn version(&self, key: &str) -> &'a str {
        text(&self.value[key])
    }

    /// Command of the measurement, without `cargo xtask bench`.
    pub(super) fn command(&self) -> &'a str {
        text(&self.value["command"])
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = &'a str> {
        list(&self.value["notes"]).map(text)
    }

    pub(super) fn plots(&self) -> impl Iterator<Item = &'a Value> {
        list(&self.value["plots"])
    }

    pub(super) fn cases(&self) -> impl Iterator<Item = Case<'a>> {
        list(&self.value["cases"]).map(|case| Case {
            title: text(&case["table"]["title"]),
            columns: list(&case["table"]["columns"]).map(text).collect(),
            rows: list(&case["table"]["rows"])
                .map(|row| (readable(text(&row["name"])), list(&row["cells"]).map(text).collect()))
                .collect(),
            costs: costs(case),
        })
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = Target<'a>> + use<'a> {
        list(&self.value["targets"]).map(|target| Target {
            name: text(&target["row"]),
            row: readable(text(&target["row"])),
            value: target["value"].as_f64().unwrap_or(f64::NAN),
            unit: text(&target["unit"]),
            limit: target["wanted"].as_str(),
            is_met: target["met"].as_bool(),
            better: target["better"].as_str(),
        })
    }
}

fn costs(case: &Value) -> Vec<(String, f64, f64)> {
    const KEYS: [&str; 4] = ["cpu_us_per_request", "cpu_us_per_call", "cpu_us_each", "cpu_us_per_connection"];
    let contestants = list(&case["contestants"]);
    let cost = |one: &Value| {
        let value = KEYS.iter().find_map(|key| one[*key].as_f64())?;
        let spread = one["spread"].as_f64().unwrap_or(0.0);
        Some((readable(text(&one["name"])), value, value * spread))
    };
    contestants.filter_map(cost).collect()
}

/// Numbers of one server in the first table of a part whose title matches.
pub(super) fn contestant<'a>(results: &'a Value, part: &str, title: &str, name: &str) -> Option<&'a Value> {
    let part = list(&results["parts"]).find(|other| other["measurement"] == part)?;
    let case = list(&part["cases"]).find(|case| matches(title, text(&case["case"])))?;
    list(&case["contestants"]).find(|server| server["name"] == name)
}

/// Text with our own name instead of “ours”.
pub(super) fn readable(text: &str) -> String {
    let words = text.split_inclusive([' ', ',', ':', '/']);
    words
        .map(|word| match word.strip_prefix("ours") {
            Some(rest) if !rest.starts_with(char::is_alphanumeric) => format!("Tailwater{rest}"),
            _ => word.to_owned(),
        })
        .collect()
}

/// Results without what neither the page nor the document shows, a part on each line.
pub(super) fn compact(results: &Value) -> Outcome<String> {
    let mut results = results.clone();
    let mut written_values = Vec::new();
    for key in ["parts", "distributed"] {
        let mut lines = Vec::new();
        for part in list(&results[key].take()) {
            let mut part = part.clone();
            for case in part["cases"].as_array_mut().into_iter().flatten() {
                let costs: Vec<Value> = list(&case["contestants"]).map(slim).collect();
                case["contestants"] = json!(costs);
            }
            if key == "distributed" {
                part["plots"] = json!([]);
            }
            lines.push(serde_json::to_string(&part)?);
        }
        results[key] = json!([]);
        written_values.push((format!("\"{key}\":[]"), format!("\"{key}\":[\n{}\n]", lines.join(",\n"))));
    }
    let head = serde_json::to_string(&results)?;
    Ok(written_values.iter().fold(head, |text, (empty, full)| text.replacen(empty, full, 1)) + "\n")
}

/// Numbers of a contestant, without its rounds.
fn slim(contestant: &Value) -> Value {
    let mut contestant = contestant.clone();
    if let Some(fields) = contestant.as_object_mut() {
        fields.remove("rounds");
    }
    contestant
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> + use<'_> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
pub(super) fn example() -> Value {
    json!({
        "machine": { "kernel": "6.18", "cores": 2, "programs": [{ "name": "wrk", "version": "wrk 4.1" }] },
        "parts": [
            {
                "measurement": "static", "ours": "tailwater/0.1", "nginx": "nginx/1.31", "command": "static --rounds 3",
                "notes": ["a <note>"],
                "cases": [{
                    "case": "1 KiB, 64 connections",
                    "table": {
                        "title": "1 KiB, 64 connections", "columns": ["CPU µs/req", "of nginx"],
                        "rows": [{ "name": "ours", "cells": ["11.3 ±2 %", "0.81"] }, { "name": "nginx", "cells": ["13.9", "1.00"] }],
                    },
                    "contestants": [
                        { "name": "ours", "cpu_us_per_request": 11.3, "spread": 0.02, "rounds": [1, 2] },
                        { "name": "nginx", "cpu_us_per_request": 13.9 },
                    ],
                }],
                "plots": [{ "title": "t", "kind": "time", "unit": " MB/s", "marks": [[1.0, 2.0, "cold"]], "lines": [
                    { "name": "ours", "points": [[0.0, 1.0], [3.0, 5.0]] },
                ] }],
                "targets": [
                    { "row": "1 KiB: CPU of ours / nginx", "value": 0.81, "unit": "", "wanted": "≤ 0.65", "met": false, "better": null },
                    { "row": "4 MiB: CPU of ours / nginx", "value": 1.2, "unit": "", "wanted": "≤ 1.15", "met": false, "better": "nginx" },
                ],
            },
            { "measurement": "tls", "failed": "TooLong" },
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_gets_its_name() {
        for (text, expected) in [
            ("ours", "Tailwater"),
            ("ours, reuseport", "Tailwater, reuseport"),
            ("CPU of ours / nginx", "CPU of Tailwater / nginx"),
            ("courses of oursel", "courses of oursel"),
        ] {
            assert_eq!(readable(text), expected);
        }
    }

    #[test]
    fn compact_results_are_the_same_results() {
        let results = example();
        let read: Value = serde_json::from_str(&compact(&results).unwrap()).unwrap();
        assert_eq!(read["parts"][0]["targets"], results["parts"][0]["targets"]);
        assert_eq!(read["parts"][0]["cases"][0]["contestants"][0].get("rounds"), None);
        assert_eq!(counts(&results), (0, 2));
    }
}
