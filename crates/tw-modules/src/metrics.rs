//! `metrics`: what the process counts, as Prometheus text. Content phase. No counterpart in nginx's open source.
//!
//! A scrape copies counters and histograms; it takes no lock that a request takes.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::hist::Snapshot;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_disk::{DeviceStats, PoolStats};
use tw_http::Method;
use tw_server::http::body::Body;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;

/// Upper bounds of the buckets of every histogram, in nanoseconds.
const BOUNDS_NS: [u64; 16] = [
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    30_000_000_000,
];

/// `metrics` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<()>,
}

/// Whether a location answers with metrics; not inherited.
pub(crate) struct Metrics {
    here: Setting<()>,
}

impl Settings for Metrics {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("metrics", "", LOCATION, Args::NONE)
        .since("Tailwater 0.1")
        .doc("Answers with the counters and histograms of the process as Prometheus text.")
        .set(|raw, node, _| raw.on.set_once(node, ()))];

    fn resolve(raw: Raw, _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { here: raw.on })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.here.is_set() {
            plan.add(Phase::Content, self.clone());
        }
    }
}

impl Handler for Metrics {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        let text = text(r);
        r.out.status = 200;
        r.out.content_type = Bytes::from_static(b"text/plain; version=0.0.4");
        Step::Now(Outcome::Respond(Body::Bytes(text.into())))
    }
}

fn text(r: &Request) -> String {
    let counts = &r.conn().worker.counts;
    let mut out = Text(String::new());
    out.counter("connections_accepted_total", "Connections accepted.", &[("", counts.accepted.value())]);
    out.gauge("connections_open", "Connections open now.", &[("", counts.open.value())]);
    out.counter(
        "connections_refused_total",
        "Connections closed for want of worker_connections.",
        &[("", counts.refused.value())],
    );
    let classes = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];
    let by_class: Vec<_> = classes
        .iter()
        .zip(&counts.by_class)
        .map(|(class, n)| (format!("class=\"{class}\""), n.value()))
        .collect();
    out.family("requests_total", "Requests answered, by class of status.", "counter", &by_class);
    out.head("event_loop_blocked_seconds", "Length of every turn of an event loop.", "histogram");
    for (index, stats) in counts.loops().iter().enumerate() {
        out.histogram(
            "event_loop_blocked_seconds",
            &format!("worker=\"{index}\""),
            &stats.blocked.snapshot(),
        );
    }
    let stalls: Vec<_> = counts
        .loops()
        .iter()
        .enumerate()
        .map(|(index, stats)| (format!("worker=\"{index}\""), stats.stalls.value()))
        .collect();
    out.family("event_loop_stalls_total", "Turns longer than stall_threshold.", "counter", &stalls);
    let pools: Vec<_> = r.generation().disks.pools().map(|disk| disk.pool().stats()).collect();
    out.pools(&pools);
    out.devices(&tw_disk::devices());
    out.logs(r);
    out.0
}

/// Prometheus text in the making.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP tailwater_{name} {help}\n# TYPE tailwater_{name} {kind}");
    }

    fn family(&mut self, name: &str, help: &str, kind: &str, values: &[(String, u64)]) {
        self.head(name, help, kind);
        for (labels, value) in values {
            let _ = writeln!(self.0, "tailwater_{name}{{{labels}}} {value}");
        }
    }

    fn plain(&mut self, name: &str, help: &str, kind: &str, values: &[(&str, u64)]) {
        self.head(name, help, kind);
        for (_, value) in values {
            let _ = writeln!(self.0, "tailwater_{name} {value}");
        }
    }

    fn counter(&mut self, name: &str, help: &str, values: &[(&str, u64)]) {
        self.plain(name, help, "counter", values);
    }

    fn gauge(&mut self, name: &str, help: &str, values: &[(&str, u64)]) {
        self.plain(name, help, "gauge", values);
    }

    fn histogram(&mut self, name: &str, labels: &str, spans: &Snapshot) {
        for bound in BOUNDS_NS {
            let count = spans.count_at_most(bound);
            let _ = writeln!(self.0, "tailwater_{name}_bucket{{{labels},le=\"{}\"}} {count}", seconds(bound));
        }
        let count = spans.count();
        let _ = writeln!(self.0, "tailwater_{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "tailwater_{name}_sum{{{labels}}} {}", seconds(spans.sum_ns));
        let _ = writeln!(self.0, "tailwater_{name}_count{{{labels}}} {count}");
    }

    fn pools(&mut self, pools: &[PoolStats]) {
        type Read = fn(&PoolStats) -> u64;
        let families: [(&str, &str, &str, Read); 6] = [
            ("pool_threads", "Threads of a pool.", "gauge", |p| u64::from(p.threads)),
            ("pool_queue_length", "Jobs that wait for a thread.", "gauge", |p| p.waiting as u64),
            ("pool_running", "Jobs that hold a thread.", "gauge", |p| u64::from(p.running)),
            ("pool_overflows_total", "Jobs refused because the queue was full.", "counter", |p| p.overflows),
            ("pool_cancellations_total", "Jobs taken back before they began.", "counter", |p| {
                p.cancellations
            }),
            ("pool_panics_total", "Jobs that panicked.", "counter", |p| p.panics),
        ];
        for (name, help, kind, read) in families {
            let values: Vec<_> = pools.iter().map(|p| (format!("pool=\"{}\"", p.name), read(p))).collect();
            self.family(name, help, kind, &values);
        }
        let each: Vec<_> = pools
            .iter()
            .flat_map(|p| {
                p.ops
                    .iter()
                    .map(move |op| (format!("pool=\"{}\",operation=\"{}\"", p.name, op.op.call()), op))
            })
            .collect();
        let inline: Vec<_> = each.iter().map(|(labels, op)| (labels.clone(), op.inline)).collect();
        self.family(
            "disk_inline_total",
            "Operations that ended on the loop, without waiting.",
            "counter",
            &inline,
        );
        let jobs: Vec<_> = each.iter().map(|(labels, op)| (labels.clone(), op.jobs)).collect();
        self.family("disk_jobs_total", "Operations that became jobs of a pool.", "counter", &jobs);
        self.head("disk_queue_seconds", "Time a job waited for a thread.", "histogram");
        for (labels, op) in &each {
            self.histogram("disk_queue_seconds", labels, &op.queue);
        }
        self.head("disk_service_seconds", "Time a job took once begun.", "histogram");
        for (labels, op) in &each {
            self.histogram("disk_service_seconds", labels, &op.service);
        }
    }

    fn devices(&mut self, devices: &[DeviceStats]) {
        let label = |d: &DeviceStats| match d.dev {
            Some(dev) => format!("device=\"{}:{}\"", rustix::fs::major(dev), rustix::fs::minor(dev)),
            None => "device=\"other\"".to_owned(),
        };
        let inline: Vec<_> = devices.iter().map(|d| (label(d), d.inline)).collect();
        self.family(
            "device_inline_total",
            "Operations on files of a device that ended on the loop.",
            "counter",
            &inline,
        );
        let misses: Vec<_> = devices.iter().map(|d| (label(d), d.misses)).collect();
        self.family(
            "device_misses_total",
            "Reads of a device that found nothing in memory.",
            "counter",
            &misses,
        );
        self.head("device_service_seconds", "Time jobs on a device took.", "histogram");
        for device in devices {
            self.histogram("device_service_seconds", &label(device), &device.service);
        }
    }

    fn logs(&mut self, r: &Request) {
        type Read = fn(&tw_log::Counts) -> u64;
        let families: [(&str, &str, Read); 3] = [
            ("log_lines_total", "Lines written to a log.", |c| c.written.value()),
            ("log_dropped_total", "Lines a log could not take in time.", |c| c.dropped.value()),
            ("log_failures_total", "Failed writes to a log.", |c| c.failed.value()),
        ];
        let sinks: Vec<_> = r.generation().logs.sinks().collect();
        for (name, help, read) in families {
            let values: Vec<_> =
                sinks.iter().map(|s| (format!("log=\"{}\"", s.name()), read(s.counts()))).collect();
            self.family(name, help, "counter", &values);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
