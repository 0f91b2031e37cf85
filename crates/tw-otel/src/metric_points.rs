//! Metrics as OTLP has them, made of the records and of their samples in JSON. Runs on a thread of a pool: there may be
//! megabytes of them.

use serde_json::Value;
use tw_core::metrics::{BOUNDS_NS, Metric, MetricKind, PREFIX};

use super::protobuf::Message;
use super::spans::push_attribute;

/// Temporality of sums and histograms that count from the start of the process.
const CUMULATIVE: u64 = 2;

/// Times of all points: start of the process, and now, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct PointTimes {
    pub(super) started: u64,
    pub(super) now: u64,
}

/// Encodes the samples of `json`, the members of a JSON object, as fields of `ScopeMetrics`, in pieces of about `size_max` bytes.
/// `None` if that is no JSON.
pub(super) fn encode<'m>(
    json: &str,
    metrics: impl Iterator<Item = &'m Metric>,
    times: PointTimes,
    size_max: usize,
) -> Option<Vec<Vec<u8>>> {
    let samples: Value = serde_json::from_str(&format!("{{{json}}}")).ok()?;
    let mut pieces = vec![Vec::new()];
    for metric in metrics {
        let Some(results) = samples.get(metric.name).and_then(|family| family.get("samples")?.as_array())
        else {
            continue;
        };
        if results.is_empty() {
            continue;
        }
        if pieces.last().is_some_and(|piece| piece.len() >= size_max) {
            pieces.push(Vec::new());
        }
        if let Some(piece) = pieces.last_mut() {
            Message(piece).message(2, |m| family(metric, results, times, m));
        }
    }
    Some(pieces)
}

fn family(metric: &Metric, samples: &[Value], times: PointTimes, m: &mut Message<'_>) {
    m.string(1, format!("{PREFIX}{}", metric.name).as_bytes());
    m.string(2, metric.doc.as_bytes());
    if let Some(unit) = unit(metric.name) {
        m.string(3, unit.as_bytes());
    }
    match metric.kind {
        MetricKind::Gauge => m.message(5, |m| points(metric, samples, times, m)),
        MetricKind::Counter => m.message(7, |m| {
            points(metric, samples, times, m);
            m.varint(2, CUMULATIVE);
            // Monotonic.
            m.varint(3, 1);
        }),
        MetricKind::Histogram => m.message(9, |m| {
            samples.iter().for_each(|sample| histogram(metric, sample, times, m));
            m.varint(2, CUMULATIVE);
        }),
    }
}

/// Unit of a metric by its name (UCUM).
fn unit(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name {
        name if name.ends_with("_seconds") => Some("s"),
        name if name.ends_with("_bytes") => Some("By"),
        _ => None,
    }
}

fn attributes(metric: &Metric, sample: &Value, field: u32, m: &mut Message<'_>) {
    let values = sample.get(0).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (label, value) in metric.labels.iter().zip(values) {
        push_attribute(m, field, label.as_bytes(), |m| {
            m.string(1, value.as_str().unwrap_or_default().as_bytes());
        });
    }
}

fn points(metric: &Metric, samples: &[Value], times: PointTimes, m: &mut Message<'_>) {
    for sample in samples {
        m.message(1, |m| {
            m.fixed64(2, times.started);
            m.fixed64(3, times.now);
            match sample.get(1).map(|value| (value.as_u64(), value.as_f64())) {
                Some((Some(whole), _)) => m.fixed64(6, whole),
                Some((None, Some(fraction))) => m.double(4, fraction),
                _ => {}
            }
            attributes(metric, sample, 7, m);
        });
    }
}

fn histogram(metric: &Metric, sample: &Value, times: PointTimes, m: &mut Message<'_>) {
    let Some([below, sum, count]) = sample.get(1).and_then(Value::as_array).map(Vec::as_slice) else {
        return;
    };
    let count = count.as_u64().unwrap_or(0);
    let below =
        below.as_array().map_or(&[][..], Vec::as_slice).iter().map(|below| below.as_u64().unwrap_or(0));
    m.message(1, |m| {
        m.fixed64(2, times.started);
        m.fixed64(3, times.now);
        m.fixed64(4, count);
        m.double(5, sum.as_f64().unwrap_or(0.0));
        let mut counts = Vec::new();
        let mut bounds = Vec::new();
        let mut before = 0;
        for (bound, below) in BOUNDS_NS.iter().zip(below) {
            counts.extend_from_slice(&below.saturating_sub(before).to_le_bytes());
            bounds.extend_from_slice(&(*bound as f64 / 1e9).to_le_bytes());
            before = below;
        }
        counts.extend_from_slice(&count.saturating_sub(before).to_le_bytes());
        m.bytes(6, &counts);
        m.bytes(7, &bounds);
        attributes(metric, sample, 9, m);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn metric(name: &'static str, kind: MetricKind, labels: &'static [&'static str]) -> Metric {
        Metric { name, kind, labels, doc: "Doc.", read: |_, _| {} }
    }

    const METRICS: &[Metric] = &[
        metric("hits_total", MetricKind::Counter, &["a"]),
        metric("level_bytes", MetricKind::Gauge, &[]),
        metric("load", MetricKind::Gauge, &[]),
        metric("times_seconds", MetricKind::Histogram, &[]),
        metric("none", MetricKind::Gauge, &[]),
    ];

    const JSON: &str = r#""hits_total":{"kind":"counter","labels":["a"],"samples":[[["x"],3]]},
        "level_bytes":{"kind":"gauge","labels":[],"samples":[[[],4]]},
        "load":{"kind":"gauge","labels":[],"samples":[[[],0.5]]},
        "times_seconds":{"kind":"histogram","labels":[],"samples":[[[],[[1,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,4],1.5,5]]]},
        "none":{"kind":"gauge","labels":[],"samples":[]}"#;

    const TIMES: PointTimes = PointTimes { started: 1, now: 2 };

    fn has(value: &[u8], part: &[u8]) -> bool {
        value.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn samples_become_points() {
        let pieces = encode(JSON, METRICS.iter(), TIMES, 1 << 20).unwrap();
        let [all] = &pieces[..] else { panic!("one piece") };
        let times = b"\x11\x01\0\0\0\0\0\0\0\x19\x02\0\0\0\0\0\0\0";
        assert!(has(all, b"\x0a\x14tailwater_hits_total\x12\x04Doc."));
        assert!(has(
            all,
            &[&times[..], b"\x31\x03\0\0\0\0\0\0\0\x3a\x08\x0a\x01a\x12\x03\x0a\x01x"].concat()
        ));
        assert!(has(all, b"\x10\x02\x18\x01"), "cumulative and monotonic");
        assert!(has(all, b"\x1a\x02By\x2a"));
        assert!(has(all, &[&b"\x21"[..], &0.5f64.to_le_bytes()].concat()));
        let mut counts = vec![0x32, 18 * 8];
        counts.insert(2, 1);
        let first = 1u64.to_le_bytes();
        let second = 2u64.to_le_bytes();
        let last = 1u64.to_le_bytes();
        counts.extend([first, second].concat());
        counts.extend(vec![0; 14 * 8]);
        counts.extend([last, last].concat());
        assert!(has(all, &counts), "counts of single buckets, and what is above the last bound");
        assert!(!has(all, b"tailwater_none"));
    }

    #[test]
    fn many_metrics_are_several_pieces() {
        assert_eq!(encode(JSON, METRICS.iter(), TIMES, 1).unwrap().len(), 4);
        assert!(encode("\"a\":", METRICS.iter(), TIMES, 1).is_none());
    }
}
