//! Report of a measurement: tables and targets on the terminal, and as JSON in a file.

use std::fs;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};

use super::contestant::Binaries;
use super::options::Options;
use super::plot::Plot;
use super::targets::{self, Verdict};
use super::{Outcome, home, machine, remaining_time};

/// A table, rows and columns as they are printed.
#[derive(Debug)]
pub(super) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

/// Results of one measurement, filled step by step.
#[derive(Debug)]
pub(super) struct Report {
    name: &'static str,
    /// Name of the file of the numbers.
    file: &'static str,
    json: Value,
    verdicts: Vec<Verdict>,
    /// Rows that compare with a program that is not there.
    left_out: Vec<String>,
}

impl Table {
    pub(super) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, name: &str, cells: Vec<String>) {
        self.rows.push((name.to_owned(), cells));
    }

    /// First column left, the others right, as wide as their widest cell.
    pub(super) fn text(&self) -> String {
        let name_width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let name_width = name_width.max(self.title.chars().count());
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(i));
                cells.chain(self.columns.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let line = |name: &str, cells: &[String]| {
            let mut line = format!("{name:<name_width$}");
            for (cell, width) in cells.iter().zip(&widths) {
                line += &format!("  {cell:>width$}");
            }
            line + "\n"
        };
        let mut text = line(&self.title, &self.columns);
        for (name, cells) in &self.rows {
            text += &line(name, cells);
        }
        text
    }

    /// The table as it is kept.
    fn json(&self) -> Value {
        let rows: Vec<Value> =
            self.rows.iter().map(|(name, cells)| json!({ "name": name, "cells": cells })).collect();
        json!({ "title": self.title, "columns": self.columns, "rows": rows })
    }
}

impl Report {
    /// Begins with the machine and the versions.
    pub(super) fn new(name: &'static str, binaries: &Binaries) -> Self {
        let ours = &binaries.ours.version;
        let nginx = &binaries.nginx.version;
        let machine = machine::describe();
        println!("ours {ours} · nginx {nginx} · {}\n", machine::line(&machine));
        let json = json!({
            "measurement": name,
            "machine": machine,
            "ours": ours,
            "nginx": nginx,
            "notes": [],
            "cases": [],
            "plots": [],
        });
        Self { name, file: name, json, verdicts: Vec::new(), left_out: Vec::new() }
    }

    /// Writes the numbers to a file of another name, because other cases than usual are measured.
    pub(super) fn in_file(self, file: &'static str) -> Self {
        Self { file, ..self }
    }

    /// Prints something one must know to read the numbers, and keeps it.
    pub(super) fn note(&mut self, text: &str) {
        println!("{text}\n");
        self.push("notes", json!(text));
    }

    /// Prints a table and keeps its numbers.
    pub(super) fn case(&mut self, table: &Table, numbers: Value) {
        println!("{}", table.text());
        self.push("cases", json!({ "case": table.title, "table": table.json(), "contestants": numbers }));
    }

    /// Keeps a plot for the report.
    pub(super) fn plot(&mut self, plot: &Plot) {
        self.push("plots", plot.json());
    }

    /// Judges a value by its target, if it has one.
    pub(super) fn target(&mut self, row: impl AsRef<str>, value: f64) {
        let verdict = targets::judge(self.name, row.as_ref(), value);
        if value.is_nan() && verdict.compares() {
            self.left_out.push(verdict.row)
        } else {
            self.verdicts.push(verdict)
        }
    }

    fn push(&mut self, list: &str, value: Value) {
        if let Some(list) = self.json.get_mut(list).and_then(Value::as_array_mut) {
            list.push(value);
        }
    }

    /// Prints the targets and writes the file.
    pub(super) fn finish(mut self, options: &Options) -> Outcome {
        if !self.left_out.is_empty() {
            self.note(&format!(
                "Left out, because a program to compare with is missing: {}.",
                self.left_out.join("; ")
            ));
        }
        let mut table = Table::new("target", &["wanted", "measured", ""]);
        for verdict in &self.verdicts {
            let unit = verdict.limit.as_ref().map_or("", |row_limit| row_limit.unit.as_str());
            let wanted_name = verdict.limit.as_ref().map_or("—".to_owned(), targets::RowLimit::text);
            let word = match verdict.is_met() {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "no target",
            };
            let measured = format!("{}{unit}", number(verdict.value));
            table.row(&verdict.row, vec![wanted_name, measured, word.to_owned()]);
        }
        if !self.verdicts.is_empty() {
            println!("{}", table.text());
        }
        if let Some(json) = self.json.as_object_mut() {
            let list = self.verdicts.iter().map(Verdict::json).collect();
            json.insert("targets".to_owned(), Value::Array(list));
        }
        let path = home().join(format!("{}.json", self.file));
        fs::create_dir_all(home())?;
        fs::write(&path, serde_json::to_string_pretty(&self.json)?)?;
        println!("numbers: {}", path.display());
        let missed = self.verdicts.iter().filter(|verdict| verdict.is_met() == Some(false)).count();
        if options.flag("check") && missed > 0 {
            return Err(format!("{missed} targets missed").into());
        }
        Ok(())
    }
}

/// Shows progress on a terminal, in a line that the next call replaces; an empty text removes it.
pub(super) fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        let rest = if text.is_empty() { String::new() } else { remaining_time::remaining() };
        eprint!("\r\x1b[K{rest}{text}");
    }
}

/// Median; for an even number the lower of the middle values. NaN without values.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Half of the range of values, as a share of their median; NaN without values.
pub(super) fn spread(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    let most = values.iter().copied().fold(f64::NAN, f64::max);
    let least = values.iter().copied().fold(f64::NAN, f64::min);
    (most - least) / 2.0 / median(values)
}

/// Median, and half of the range in percent if there are several values: `12.3 ±4 %`.
pub(super) fn with_spread(values: &[f64]) -> String {
    let middle = number(median(values.iter().copied()));
    match values.len() {
        0 | 1 => middle,
        _ => format!("{middle} ±{:.0} %", spread(values.iter().copied()) * 100.0),
    }
}

/// A number with as many decimals as matter, and thousands apart.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "—".to_owned();
    }
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let whole = text.split('.').next().unwrap_or_default().len();
    let mut out = String::with_capacity(text.len() + whole / 3);
    for (index, c) in text.chars().enumerate() {
        if index > 0 && index < whole && (whole - index) % 3 == 0 && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A span in the unit a reader would choose.
pub(super) fn span(span: Duration) -> String {
    match span.as_secs_f64() {
        s if s >= 1.0 => format!("{} s", number(s)),
        s if s >= 0.001 => format!("{} ms", number(s * 1e3)),
        s => format!("{:.0} µs", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_readers() {
        for (value, expected) in [
            (0.654, "0.65"),
            (12.34, "12.3"),
            (999.6, "1,000"),
            (123_456.7, "123,457"),
            (-1_234.0, "-1,234"),
            (1_234_567.0, "1,234,567"),
            (f64::NAN, "—"),
        ] {
            assert_eq!(number(value), expected);
        }
        for (us, expected) in [(999, "999 µs"), (1_500, "1.50 ms"), (6_200_000, "6.20 s")] {
            assert_eq!(span(Duration::from_micros(us)), expected);
        }
    }

    #[test]
    fn the_median_is_a_value_that_was_measured() {
        for (values, expected) in [(&[3.0, 1.0, 2.0][..], 2.0), (&[4.0, 1.0, 2.0, 3.0], 2.0), (&[7.0], 7.0)] {
            assert_eq!(median(values.iter().copied()), expected);
        }
        assert!(median([]).is_nan());
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("case", &["req/s", "p99"]);
        table.row("a server", vec!["1,000".to_owned(), "9 µs".to_owned()]);
        table.row("b", vec!["10".to_owned(), "10.0 ms".to_owned()]);
        assert_eq!(
            table.text(),
            "case      req/s      p99\na server  1,000     9 µs\nb            10  10.0 ms\n"
        );
    }

    #[test]
    fn spread_is_half_of_the_range() {
        assert_eq!(with_spread(&[9.0, 10.0, 12.0]), "10.0 ±15 %");
        assert_eq!(with_spread(&[9.0]), "9.00");
        assert_eq!(with_spread(&[]), "—");
    }
}
