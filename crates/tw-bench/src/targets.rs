//! Targets of measured values, from `data/targets.json`: bench, row, limit and unit of each, and for some a second limit
//! for the distributed build.
//!
//! A row is the text that a measurement gives to its value, with `*` for what differs between runs, such as the number
//! of connections.

use std::fmt;
use std::sync::LazyLock;

use serde_json::{Value, json};

const FILE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/targets.json"));

/// Upper or lower limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// Limit of the values of a row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RowLimit {
    bench: String,
    row: String,
    pub(super) limit: Limit,
    /// Limit for the distributed build, if it has one of its own.
    pub(super) distributed: Option<Limit>,
    pub(super) unit: String,
    /// Program that is better beyond a ratio of 1; the value is a ratio then.
    peer: Option<String>,
}

/// Verdict on a measured value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) row: String,
    pub(super) value: f64,
    /// Target; `None` for a row without one.
    pub(super) limit: Option<RowLimit>,
}

static ALL: LazyLock<Vec<RowLimit>> =
    LazyLock::new(|| parse(FILE).expect("the file is part of the program, and a test reads it"));

/// Targets of one bench.
pub(super) fn of(bench: &str) -> impl Iterator<Item = &'static RowLimit> {
    ALL.iter().filter(move |row_limit| row_limit.bench == bench)
}

/// Target of a row of a bench, if it has one.
pub(super) fn limit_of_row(bench: &str, row: &str) -> Option<&'static RowLimit> {
    of(bench).find(|row_limit| matches(&row_limit.row, row))
}

/// Judges a value of a bench.
pub(super) fn judge(bench: &str, row: &str, value: f64) -> Verdict {
    Verdict { row: row.to_owned(), value, limit: limit_of_row(bench, row).cloned() }
}

fn parse(text: &str) -> Option<Vec<RowLimit>> {
    let one = |value: &Value| {
        let (limit, kind): (_, fn(f64) -> Limit) =
            match (value["at_most"].as_f64(), value["at_least"].as_f64()) {
                (Some(limit), None) => (limit, Limit::AtMost),
                (None, Some(limit)) => (limit, Limit::AtLeast),
                _ => return None,
            };
        Some(RowLimit {
            bench: value["bench"].as_str()?.to_owned(),
            row: value["row"].as_str()?.to_owned(),
            limit: kind(limit),
            distributed: value["distributed"].as_f64().map(kind),
            unit: value["unit"].as_str().unwrap_or_default().to_owned(),
            peer: value["peer"].as_str().map(str::to_owned),
        })
    };
    serde_json::from_str::<Value>(text).ok()?.as_array()?.iter().map(one).collect()
}

/// Compares a text with a pattern in which `*` stands for any text.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    ends.any(|at| matches(rest, &text[at..]))
}

impl RowLimit {
    /// Limit for readers, as in `≤ 5 ms`.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.limit, self.unit)
    }
}

impl Limit {
    /// Returns `true` if a value keeps the limit; one that could not be measured does not.
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

/// The limit as it is written in the file: `≤ 0.9`, not `≤ 0.90`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
        }
    }
}

impl Verdict {
    /// True if the value keeps its limit; `None` without one. A value that could not be measured misses it.
    pub(super) fn is_met(&self) -> Option<bool> {
        self.limit.as_ref().map(|row_limit| row_limit.limit.is_met(self.value))
    }

    /// Returns `true` if the value compares with another program.
    pub(super) fn compares(&self) -> bool {
        self.limit.as_ref().is_some_and(|row_limit| row_limit.peer.is_some())
    }

    /// The other program, if it is better than ours.
    pub(super) fn better_peer(&self) -> Option<&str> {
        let row_limit = self.limit.as_ref()?;
        let is_better = match row_limit.limit {
            Limit::AtMost(_) => self.value > 1.0,
            Limit::AtLeast(_) => self.value < 1.0,
        };
        row_limit.peer.as_deref().filter(|_| is_better)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "row": self.row,
            "value": self.value,
            "unit": self.limit.as_ref().map(|row_limit| row_limit.unit.as_str()),
            "wanted": self.limit.as_ref().map(RowLimit::text),
            "met": self.is_met(),
            "better": self.better_peer(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_targets_is_read() {
        let all = parse(FILE).unwrap();
        assert!(all.len() > 50);
        for (nth, row_limit) in all.iter().enumerate() {
            let twins = all[..nth]
                .iter()
                .filter(|other| other.bench == row_limit.bench && other.row == row_limit.row);
            assert_eq!(twins.count(), 0, "{row_limit:?}");
        }
    }

    #[test]
    fn patterns_match_whole_rows() {
        for (pattern, text, expected) in [
            ("a: CPU", "a: CPU", true),
            ("a: CPU", "a: CPU of b", false),
            ("1 KiB, * connections: CPU", "1 KiB, 64 connections: CPU", true),
            ("1 KiB, * connections: CPU", "11 KiB, 64 connections: CPU", false),
            ("*: CPU", "a: b: CPU", true),
            ("*: CPU", "a: CPU of b", false),
            ("* of ours* / nginx*", "heap of ours, small / nginx", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn values_are_judged_by_their_limit() {
        let wanted_share = |limit, peer: Option<&str>| RowLimit {
            bench: "b".to_owned(),
            row: "r".to_owned(),
            limit,
            distributed: None,
            unit: String::new(),
            peer: peer.map(str::to_owned),
        };
        for (value, limit, met, better) in [
            (0.6, Limit::AtMost(0.65), true, None),
            (0.7, Limit::AtMost(0.65), false, None),
            (1.1, Limit::AtMost(0.65), false, Some("nginx")),
            (1.2, Limit::AtLeast(1.1), true, None),
            (0.9, Limit::AtLeast(1.1), false, Some("nginx")),
            (f64::NAN, Limit::AtMost(1.0), false, None),
            (f64::NAN, Limit::AtLeast(1.0), false, None),
        ] {
            let verdict =
                Verdict { row: "r".to_owned(), value, limit: Some(wanted_share(limit, Some("nginx"))) };
            assert_eq!((verdict.is_met(), verdict.better_peer()), (Some(met), better), "{value} {limit:?}");
        }
        let verdict = Verdict { row: "r".to_owned(), value: 2.0, limit: None };
        assert_eq!((verdict.is_met(), verdict.better_peer()), (None, None));
        assert_eq!(wanted_share(Limit::AtMost(0.9), None).text(), "≤ 0.9");
    }
}
