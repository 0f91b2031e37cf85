//! The document of `metrics`: Prometheus text, version 0.0.4. It has no stalls, no requests and no mount points.

use super::snapshot::{Family, Snapshot, Spans, Value, clean};

/// Begins the name of every metric.
const PREFIX: &str = "tailwater_";

/// Reads it. Lines that are no samples of Tailwater are left out.
pub(super) fn parse(text: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for line in text.lines() {
        if let Some((name, labels, number)) = sample(line) {
            add(&mut snapshot, name, labels, number);
        }
    }
    snapshot
}

type Labels = Vec<(String, String)>;

/// Name without prefix, labels and value of a line.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let line = line.strip_prefix(PREFIX)?;
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, value) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.push((label.to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    let number = rest.split_whitespace().next()?.parse().ok()?;
    Some((name, labels, number))
}

/// Text up to the closing quotation mark, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            'n' if is_escaped => value.push('\n'),
            _ if is_escaped => value.push(c),
            '"' => return Some((clean(&value), &text[at + 1..])),
            '\\' => {}
            _ => value.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    None
}

fn add(snapshot: &mut Snapshot, name: &str, mut labels: Labels, number: f64) {
    // A histogram has lines for each of its parts.
    for (suffix, part) in [("_bucket", Part::Bucket), ("_sum", Part::Sum), ("_count", Part::Count)] {
        let Some(family) = name.strip_suffix(suffix).filter(|family| family.ends_with("_seconds")) else {
            continue;
        };
        let bound = labels.iter().position(|(label, _)| label == "le").map(|at| labels.remove(at).1);
        let bound = bound.and_then(|bound| bound.parse::<f64>().ok()).filter(|bound| bound.is_finite());
        let spans = entry(snapshot, family, labels, Value::Spans(Spans::default()));
        if let Value::Spans(spans) = spans {
            match part {
                Part::Bucket if bound.is_some() => spans.below.push(number),
                Part::Bucket => {}
                Part::Sum => spans.sum = number,
                Part::Count => spans.count = number,
            }
        }
        if let Some(bound) = bound
            && snapshot.bounds.last().is_none_or(|last| *last < bound)
        {
            snapshot.bounds.push(bound);
        }
        return;
    }
    *entry(snapshot, name, labels, Value::Number(number)) = Value::Number(number);
}

/// Part of a histogram.
#[derive(Clone, Copy)]
enum Part {
    Bucket,
    Sum,
    Count,
}

fn entry<'a>(snapshot: &'a mut Snapshot, name: &str, labels: Labels, new: Value) -> &'a mut Value {
    let (names, values): (Vec<_>, Vec<_>) = labels.into_iter().unzip();
    let family = snapshot
        .families
        .entry(name.to_owned())
        .or_insert_with(|| Family { labels: names, ..Family::default() });
    family.samples.entry(values).or_insert(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_histograms_are_read() {
        let text = "# HELP tailwater_a_total x\n# TYPE tailwater_a_total counter\ntailwater_a_total{x=\"1\",y=\"a\\\"\\\\b\\n\"} 7\n\
            tailwater_a_total{x=\"2\",y=\"\"} 8\ntailwater_up 1\nother 3\n\
            tailwater_b_seconds_bucket{x=\"1\",le=\"0.1\"} 1\ntailwater_b_seconds_bucket{x=\"1\",le=\"1\"} 2\n\
            tailwater_b_seconds_bucket{x=\"1\",le=\"+Inf\"} 3\ntailwater_b_seconds_sum{x=\"1\"} 0.5\n\
            tailwater_b_seconds_count{x=\"1\"} 3\n";
        let snapshot = parse(text);
        assert_eq!(snapshot.number("a_total", &[("x", "1"), ("y", "a\"\\b\u{fffd}")]), Some(7.0));
        assert_eq!(snapshot.number("a_total", &[("x", "2")]), Some(8.0));
        assert_eq!(snapshot.number("up", &[]), Some(1.0));
        assert_eq!(snapshot.number("other", &[]), None);
        assert_eq!(snapshot.bounds, [0.1, 1.0]);
        let spans = Spans { below: vec![1.0, 2.0], sum: 0.5, count: 3.0 };
        assert_eq!(snapshot.spans("b_seconds", &[("x", "1")]), Some(spans));
    }

    #[test]
    fn damaged_lines_are_left_out() {
        for line in [
            "tailwater_",
            "tailwater_a",
            "tailwater_a{",
            "tailwater_a{x=\"1 3",
            "tailwater_a{x} 3",
            "tailwater_a x",
        ] {
            assert!(parse(line).families.is_empty(), "{line}");
        }
    }
}
