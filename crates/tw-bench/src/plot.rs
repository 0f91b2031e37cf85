//! Plots of a measurement, as they are kept in JSON and drawn in the report.

use serde_json::{Value, json};

/// Kind of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Lines over seconds.
    Time,
    /// Lines over the share of requests that a latency covers, both axes logarithmic.
    Percentiles,
    /// One bar for each line, of its only point: value and half of its range.
    Bars,
}

/// A plot with one or more lines.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) kind: Kind,
    /// Unit of the values.
    pub(super) unit: String,
    /// Times that are shaded: begin, end and name.
    pub(super) marks: Vec<(f64, f64, String)>,
    pub(super) lines: Vec<Line>,
}

/// Points of one contestant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Kind {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Time, "time"), (Self::Percentiles, "percentiles"), (Self::Bars, "bars")];
}

impl Plot {
    pub(super) fn new(kind: Kind, title: impl Into<String>, unit: &str) -> Self {
        Self { title: title.into(), kind, unit: unit.to_owned(), marks: Vec::new(), lines: Vec::new() }
    }

    pub(super) fn line(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.lines.push(Line { name: name.to_owned(), points });
    }

    /// Shades a time.
    pub(super) fn mark(mut self, from: f64, to: f64, name: &str) -> Self {
        self.marks.push((from, to, name.to_owned()));
        self
    }

    pub(super) fn json(&self) -> Value {
        let kind = Kind::ALL.iter().find(|(kind, _)| *kind == self.kind).map(|(_, word)| *word);
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                let points: Vec<Value> =
                    line.points.iter().map(|(x, y)| json!([rounded(*x), rounded(*y)])).collect();
                json!({ "name": line.name, "points": points })
            })
            .collect();
        json!({ "title": self.title, "kind": kind, "unit": self.unit, "marks": self.marks, "lines": lines })
    }

    /// Reads what [`json`](Self::json) made.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let word = value["kind"].as_str()?;
        let pair = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_f64()?));
        let marks = value["marks"].as_array()?.iter().filter_map(|mark| {
            let (from, to) = pair(mark)?;
            Some((from, to, mark[2].as_str()?.to_owned()))
        });
        let lines = value["lines"].as_array()?.iter().filter_map(|line| {
            let points = line["points"].as_array()?.iter().filter_map(pair).collect();
            Some(Line { name: line["name"].as_str()?.to_owned(), points })
        });
        Some(Self {
            title: value["title"].as_str()?.to_owned(),
            kind: Kind::ALL.iter().find(|(_, other)| *other == word)?.0,
            unit: value["unit"].as_str()?.to_owned(),
            marks: marks.collect(),
            lines: lines.collect(),
        })
    }
}

/// A number with four significant digits: more than a plot shows.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits.clamp(-12, 12));
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_survive_their_json() {
        let mut plot = Plot::new(Kind::Time, "MB/s", " MB/s").mark(1.0, 2.0, "cold load");
        plot.line("ours", vec![(0.0, 1.5), (0.25, 1234.567)]);
        let read = Plot::read(&plot.json()).unwrap();
        assert_eq!(read.lines[0].points, [(0.0, 1.5), (0.25, 1235.0)]);
        plot.lines.clear();
        assert_eq!(Plot::read(&plot.json()), Some(plot));
        assert_eq!(Plot::read(&json!({ "kind": "pie" })), None);
    }

    #[test]
    fn numbers_keep_four_digits() {
        for (value, expected) in [(0.0, 0.0), (123_456.0, 123_500.0), (0.001_234_56, 0.001_235), (-2.0, -2.0)]
        {
            assert!((rounded(value) - expected).abs() < 1e-9, "{value}");
        }
    }
}
