//! Samples as Prometheus text and as JSON.

use std::fmt::{self, Write as _};

use super::metric::{BOUNDS_NS, Format, MetricKind, PREFIX, Samples, seconds};

/// Media type of the Prometheus text.
pub const CONTENT_TYPE: &[u8] = b"text/plain; version=0.0.4; charset=utf-8";

// Writing into a string cannot fail, so the results of `write!` are not looked at.
impl Samples<'_> {
    pub(super) fn begin(&mut self) {
        let name = self.metric.name;
        let kind = self.metric.kind.word();
        match self.format {
            Format::Prometheus => {
                let doc = Escaped { text: self.metric.doc, also: None };
                let _ = writeln!(self.out, "# HELP {PREFIX}{name} {doc}\n# TYPE {PREFIX}{name} {kind}");
            }
            Format::Json | Format::NonzeroJson => {
                let _ = write!(self.out, "\"{name}\":{{\"kind\":\"{kind}\",\"labels\":[");
                list(self.out, self.metric.labels, |out, label| write!(out, "\"{label}\""));
                self.out.push_str("],\"samples\":[");
            }
        }
    }

    pub(super) fn end(&mut self) {
        if self.format.is_json() {
            self.out.push_str("]}");
        }
    }

    pub(super) fn sample(&mut self, labels: &[&str], value: fmt::Arguments<'_>) {
        debug_assert_ne!(self.metric.kind, MetricKind::Histogram, "{}", self.metric.name);
        match self.format {
            Format::Prometheus => {
                let _ = write!(self.out, "{PREFIX}{}", self.metric.name);
                self.labels(labels, None);
                let _ = writeln!(self.out, " {value}");
            }
            Format::Json | Format::NonzeroJson => {
                self.begin_json(labels);
                let _ = write!(self.out, "{value}]");
            }
        }
    }

    pub(super) fn spans(&mut self, labels: &[&str], counts: &[u64], sum: f64, count: u64) {
        debug_assert_eq!(self.metric.kind, MetricKind::Histogram, "{}", self.metric.name);
        let name = self.metric.name;
        match self.format {
            Format::Prometheus => {
                for (bound, below) in BOUNDS_NS.iter().zip(counts) {
                    let _ = write!(self.out, "{PREFIX}{name}_bucket");
                    self.labels(labels, Some(seconds(*bound)));
                    let _ = writeln!(self.out, " {below}");
                }
                let _ = write!(self.out, "{PREFIX}{name}_bucket");
                self.labels(labels, Some(f64::INFINITY));
                let _ = write!(self.out, " {count}\n{PREFIX}{name}_sum");
                self.labels(labels, None);
                let _ = write!(self.out, " {sum}\n{PREFIX}{name}_count");
                self.labels(labels, None);
                let _ = writeln!(self.out, " {count}");
            }
            Format::Json | Format::NonzeroJson => {
                self.begin_json(labels);
                self.out.push_str("[[");
                list(self.out, counts, |out, below| write!(out, "{below}"));
                let _ = write!(self.out, "],{sum},{count}]]");
            }
        }
    }

    fn labels(&mut self, values: &[&str], bound: Option<f64>) {
        debug_assert_eq!(values.len(), self.metric.labels.len(), "{}", self.metric.name);
        if values.is_empty() && bound.is_none() {
            return;
        }
        self.out.push('{');
        list(self.out, self.metric.labels.iter().zip(values), |out, (name, value)| {
            write!(out, "{name}=\"{}\"", Escaped { text: value, also: Some('"') })
        });
        if let Some(bound) = bound {
            let comma = comma(values.len());
            let _ = if bound.is_finite() {
                write!(self.out, "{comma}le=\"{bound}\"")
            } else {
                write!(self.out, "{comma}le=\"+Inf\"")
            };
        }
        self.out.push('}');
    }

    /// `[[label values],`
    fn begin_json(&mut self, labels: &[&str]) {
        self.out.push_str(comma(self.count));
        self.count += 1;
        self.out.push_str("[[");
        list(self.out, labels, |out, value| {
            json_string(value, out);
            Ok(())
        });
        self.out.push_str("],");
    }
}

/// Writes `items` with commas between them.
fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut String, T) -> fmt::Result,
) {
    for (at, item) in items.into_iter().enumerate() {
        out.push_str(comma(at));
        let _ = write(out, item);
    }
}

fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}

/// Value of a label in the Prometheus format, without its quotation marks.
pub fn label_value(text: &str) -> impl fmt::Display + '_ {
    Escaped { text, also: Some('"') }
}

/// Text of a `HELP` line, or the value of a label, where the quotation mark is escaped as well.
struct Escaped<'a> {
    text: &'a str,
    also: Option<char>,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.text.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c if self.also == Some(c) => write!(f, "\\{c}")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Appends `text` as a JSON string that may also stand in a script of a page.
pub fn json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '<' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::Counts;
    use crate::metrics::{Metric, ProcessUsage, Scrape};
    use crate::testing::generation;

    const ODD: &[Metric] = &[
        Metric {
            name: "odd_total",
            kind: MetricKind::Counter,
            labels: &["a", "b"],
            doc: "A \\ \"doc\".",
            read: |_, out| {
                out.value(&["\"\\\n", "x"], 1);
                out.float(&["</script>", ""], 0.5);
            },
        },
        Metric {
            name: "odd_seconds",
            kind: MetricKind::Histogram,
            labels: &[],
            doc: "Spans.",
            read: |_, out| {
                let spans = tw_base::Histogram::new();
                spans.record_ns(1);
                out.histogram(&[], || spans.snapshot());
            },
        },
    ];

    fn metrics_text(format: Format) -> String {
        let mut out = String::new();
        Scrape::new(&Counts::default(), &generation(), ProcessUsage::default()).write(format, ODD, &mut out);
        out
    }

    #[test]
    fn labels_are_escaped() {
        let text = metrics_text(Format::Prometheus);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..5],
            [
                r#"# HELP tailwater_odd_total A \\ "doc"."#,
                "# TYPE tailwater_odd_total counter",
                r#"tailwater_odd_total{a="\"\\\n",b="x"} 1"#,
                r#"tailwater_odd_total{a="</script>",b=""} 0.5"#,
                "# HELP tailwater_odd_seconds Spans.",
            ]
        );
        assert_eq!(lines[6], r#"tailwater_odd_seconds_bucket{le="0.00001"} 1"#);
        let tail = [
            r#"tailwater_odd_seconds_bucket{le="+Inf"} 1"#,
            "tailwater_odd_seconds_sum 0.000000001",
            "tailwater_odd_seconds_count 1",
        ];
        assert_eq!(lines[lines.len() - 3..], tail);
    }

    #[test]
    fn json_is_escaped() {
        let json = metrics_text(Format::Json);
        let expected = r#""odd_total":{"kind":"counter","labels":["a","b"],"samples":[[["\"\\\u000a","x"],1],[["\u003c/script>",""],0.5]]},"odd_seconds":{"kind":"histogram","labels":[],"samples":[[[],[[1,"#;
        assert!(json.starts_with(expected), "{json}");
        assert!(json.ends_with("1],0.000000001,1]]]}"), "{json}");
    }
}
