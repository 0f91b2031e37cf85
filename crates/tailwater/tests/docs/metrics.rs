//! `docs/metrics.md`

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tw_core::metrics::{BOUNDS_NS, Metric, MetricKind, PREFIX};

use crate::{MODULES, cell, check, heading};

const INTRO: &str = "\
```nginx
location = /metrics { metrics; allow 127.0.0.1; deny all; }
```

A location with `metrics` returns all metrics in the Prometheus text format. `status_page` plots the same numbers. Alert rules and
the most important metrics are in [logging-and-metrics.md](logging-and-metrics.md#metrics-to-watch).

Counters start at zero when the process starts and survive a reload. A histogram has three series: `NAME_bucket` with the label
`le`, `NAME_sum` and `NAME_count`.

## Event loops and disks

- **Blocked event loops:** `increase(tailwater_event_loop_stalls_total{cause=\"kernel\"}[1h])` and
  `increase(tailwater_loop_major_faults_total[1h])` must be zero. The error log says which operation caused a stall. Other causes of
  long turns are explained in [promise.md](promise.md).
- **Latency of event loops (p99):**
  `histogram_quantile(0.99, sum by (le) (rate(tailwater_event_loop_blocked_seconds_bucket[5m])))`.
- **Thread pool too small:** `rate(tailwater_pool_overflows_total[5m])` is above zero, or the p99 of `tailwater_disk_queue_seconds`
  is above the p99 of `tailwater_disk_service_seconds`.
- **Slow disk:** `tailwater_device_service_seconds` by `device`. `lsblk` shows the device numbers.
- **Share of disk operations that needed no thread**, because the data was in memory:
  `rate(tailwater_disk_inline_total[5m]) / (rate(tailwater_disk_inline_total[5m]) + rate(tailwater_disk_jobs_total[5m]))`
  by `operation`.
";

#[test]
fn metrics_are_documented() {
    let mut out = format!("# Metrics\n\n{INTRO}\n");
    let mut seen_values = BTreeSet::new();
    let all = tw_app::all_metrics(MODULES);
    for (title, metrics) in all.sets().iter().filter(|(_, metrics)| !metrics.is_empty()) {
        let heading = heading(title);
        writeln!(out, "## {heading}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|").unwrap();
        for Metric { name, kind, labels, doc, .. } in metrics {
            assert!(seen_values.insert(*name), "{name} stands twice");
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
