//! Report of a measurement: tables and targets on the terminal, and as JSON in a file.

use std::fs;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};

use super::contestant::Binaries;
use super::options::Options;
use super::{Outcome, home};

/// A table, rows and columns as they are printed.
#[derive(Debug)]
pub(super) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

/// Measured number with its limit.
#[derive(Debug, Clone)]
pub(super) struct Target {
    what: String,
    value: f64,
    limit: Limit,
    unit: &'static str,
}

/// Upper or lower limit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// Results of one measurement, filled step by step.
#[derive(Debug)]
pub(super) struct Report {
    name: &'static str,
    json: Value,
    targets: Vec<Target>,
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
}

impl Target {
    pub(super) fn new(what: impl Into<String>, value: f64, limit: Limit, unit: &'static str) -> Self {
        Self { what: what.into(), value, limit, unit }
    }

    /// A value that could not be measured is missed.
    fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.value <= limit,
            Limit::AtLeast(limit) => self.value >= limit,
        }
    }
}

impl Report {
    /// Begins with the machine and the versions.
    pub(super) fn new(name: &'static str, binaries: &Binaries) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let (ours, nginx) = (&binaries.ours.version, &binaries.nginx.version);
        println!("ours {ours} · nginx {nginx} · Linux {} · {cores} cores\n", kernel.trim());
        let json = json!({
            "measurement": name,
            "kernel": kernel.trim(),
            "cores": cores,
            "ours": ours,
            "nginx": nginx,
            "cases": [],
        });
        Self { name, json, targets: Vec::new() }
    }

    /// Prints something one must know to read the numbers, and keeps it.
    pub(super) fn note(&mut self, text: &str) {
        println!("{text}\n");
        if let Some(json) = self.json.as_object_mut()
            && let Value::Array(notes) = json.entry("notes").or_insert_with(|| json!([]))
        {
            notes.push(json!(text));
        }
    }

    /// Prints a table and keeps its numbers.
    pub(super) fn case(&mut self, table: &Table, numbers: Value) {
        println!("{}", table.text());
        if let Some(cases) = self.json.get_mut("cases").and_then(Value::as_array_mut) {
            cases.push(json!({ "case": table.title, "contestants": numbers }));
        }
    }

    pub(super) fn target(&mut self, target: Target) {
        self.targets.push(target);
    }

    /// Prints the targets and writes the file.
    pub(super) fn finish(mut self, options: &Options) -> Outcome {
        let mut table = Table::new("target", &["wanted", "measured", ""]);
        let mut list = Vec::new();
        for target in &self.targets {
            let (sign, limit) = match target.limit {
                Limit::AtMost(limit) => ('≤', limit),
                Limit::AtLeast(limit) => ('≥', limit),
            };
            let met = target.is_met();
            let (value, unit) = (target.value, target.unit);
            let wanted = format!("{sign} {}{unit}", number(limit));
            let verdict = if met { "met" } else { "MISSED" };
            table.row(&target.what, vec![wanted, format!("{}{unit}", number(value)), verdict.to_owned()]);
            list.push(json!({ "what": target.what, "limit": limit, "value": value, "met": met }));
        }
        if !list.is_empty() {
            println!("{}", table.text());
        }
        if let Some(json) = self.json.as_object_mut() {
            json.insert("targets".to_owned(), Value::Array(list));
        }
        let path = home().join(format!("{}.json", self.name));
        fs::create_dir_all(home())?;
        fs::write(&path, serde_json::to_string_pretty(&self.json)?)?;
        println!("numbers: {}", path.display());
        let missed = self.targets.iter().filter(|target| !target.is_met()).count();
        if options.flag("check") && missed > 0 {
            return Err(format!("{missed} targets missed").into());
        }
        Ok(())
    }
}

/// Shows progress on a terminal, in a line that the next call replaces; an empty text removes it.
pub(super) fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

/// Median; for an even number the lower of the middle values. NaN without values.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
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
    fn missing_measurement_misses_its_target() {
        for (value, limit, expected) in [
            (0.6, Limit::AtMost(0.65), true),
            (0.7, Limit::AtMost(0.65), false),
            (1.2, Limit::AtLeast(1.1), true),
            (f64::NAN, Limit::AtMost(1.0), false),
            (f64::NAN, Limit::AtLeast(1.0), false),
        ] {
            assert_eq!(Target::new("x", value, limit, "").is_met(), expected, "{value} {limit:?}");
        }
    }
}
