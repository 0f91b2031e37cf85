//! `docs/metrics.md`

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tw_core::metrics::{BOUNDS_NS, CORE, Metric, MetricKind, PREFIX};

use crate::{cell, check, heading};

const INTRO: &str = "\
What a location with `metrics;` answers, in the text format of Prometheus; `status_page;` plots the same numbers.

```nginx
location = /metrics { metrics; allow 127.0.0.1; deny all; }
```

Counters begin at zero when the process starts and survive a reload. A histogram stands for three series, as usual:
`NAME_bucket` with a label `le`, `NAME_sum` and `NAME_count`.

## What to watch

- **Was a loop ever blocked?** `increase(tailwater_event_loop_stalls_total{cause=\"kernel\"}[1h])` and
  `increase(tailwater_loop_major_faults_total[1h])`: both stay zero. A stall also names its culprit in the error log. What is
  promised, and what else makes a turn long: [promise.md](promise.md).
- **How long does an event wait?** `histogram_quantile(0.99, sum by (le) (rate(tailwater_event_loop_blocked_seconds_bucket[5m])))`.
- **Is a pool too small?** `rate(tailwater_pool_overflows_total[5m])` above zero, or a 99th percentile of
  `tailwater_disk_queue_seconds` above that of `tailwater_disk_service_seconds`.
- **Is a disk slow?** `tailwater_device_service_seconds` by `device`; `lsblk` shows the same numbers.
- **Does memory answer?** `rate(tailwater_disk_inline_total[5m]) / (rate(tailwater_disk_inline_total[5m]) +
  rate(tailwater_disk_jobs_total[5m]))` by `operation`.
- **Were log lines lost?** `increase(tailwater_log_dropped_total[1h])`.
";

#[test]
fn metrics_are_documented() {
    let mut out = format!("# Metrics\n\n{INTRO}\n");
    let mut seen = BTreeSet::new();
    let core = CORE.iter().copied().chain([("requests", tw_server::metrics::METRICS)]);
    let modules = tw_server::load::modules(tw_modules::MODULES).map(|module| (module.name, module.metrics()));
    for (title, metrics) in core.chain(modules).filter(|(_, metrics)| !metrics.is_empty()) {
        let heading = heading(title);
        writeln!(out, "## {heading}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|").unwrap();
        for Metric { name, kind, labels, doc, .. } in metrics {
            assert!(seen.insert(*name), "{name} stands twice");
            assert_eq!(name.ends_with("_total"), *kind == MetricKind::Counter, "{name}");
            let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            writeln!(out, "| `{PREFIX}{name}` | {} | {labels} | {} |", kind.word(), cell(doc)).unwrap();
        }
        out.push('\n');
    }
    let bounds: Vec<_> = BOUNDS_NS.iter().map(|ns| format!("{}", *ns as f64 / 1e9)).collect();
    writeln!(out, "The buckets of every histogram end at {} seconds.", bounds.join(", ")).unwrap();
    check("metrics.md", &out);
}
