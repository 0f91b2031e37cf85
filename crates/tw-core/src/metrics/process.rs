//! The process itself: version, configuration, memory, age.

use rustix::time::{ClockId, clock_gettime};
use tw_base::memory::{self, MemoryHolder};

use super::metric::{Metric, MetricKind};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "build_info",
        kind: MetricKind::Gauge,
        labels: &["version", "nginx"],
        doc: "Always 1: the version of Tailwater, and of nginx whose configuration it reads.",
        read: |_, out| out.value(&[env!("CARGO_PKG_VERSION"), crate::NGINX_VERSION], 1),
    },
    Metric {
        name: "generation",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Number of the configuration: 1 after the start, one more with every reload that succeeded.",
        read: |scrape, out| out.value(&[], scrape.generation),
    },
    Metric {
        name: "config_reloads_total",
        kind: MetricKind::Counter,
        labels: &["result"],
        doc: "Reloads of the configuration since the start of the master: taken over (ok), or refused (failed).",
        read: |scrape, out| {
            let reloads = *scrape.counts().reloads.lock();
            out.value(&["ok"], reloads.succeeded);
            out.value(&["failed"], reloads.failed);
        },
    },
    Metric {
        name: "config_last_reload_successful",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Result of the last reload: 1 if it was taken over, or there was none; 0 if it was refused and the configuration before it \
              is in use.",
        read: |scrape, out| out.value(&[], (!scrape.counts().reloads.lock().has_last_failed).into()),
    },
    Metric {
        name: "config_last_reload_success_timestamp_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Time at which the configuration in use was loaded, in seconds since 1970: the last reload that was taken over, or the start.",
        read: |scrape, out| {
            let last = scrape.counts().reloads.lock().last_success;
            let started = scrape.counts().started.wall.secs.unsigned_abs();
            out.value(&[], if last == 0 { started } else { last });
        },
    },
    Metric {
        name: "uptime_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Time since the start.",
        read: |scrape, out| {
            let started = scrape.counts().started.at;
            out.float(&[], tw_rt::clock::now().saturating_duration_since(started).as_secs_f64());
        },
    },
    Metric {
        name: "process_start_time_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "When it was started, in seconds since 1970.",
        read: |scrape, out| {
            let started = scrape.counts().started.wall;
            out.float(&[], started.secs as f64 + f64::from(started.msec) / 1e3);
        },
    },
    Metric {
        name: "process_resident_memory_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Memory of the process that is in RAM. Missing when no thread of a pool was free to ask.",
        read: |scrape, out| {
            if let Some(bytes) = scrape.usage.resident_bytes {
                out.value(&[], bytes);
            }
        },
    },
    Metric {
        name: "memory_budget_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Memory that the process may take: memory_budget, or what the cgroup allows without a reserve of a sixteenth. Missing without a \
              bound.",
        read: |_, out| {
            if let Some(bound) = memory::bound() {
                out.value(&[], bound);
            }
        },
    },
    Metric {
        name: "memory_left_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Memory that is left of it.",
        read: |_, out| {
            if memory::bound().is_some() {
                out.value(&[], memory::remaining());
            }
        },
    },
    Metric {
        name: "memory_held_bytes",
        kind: MetricKind::Gauge,
        labels: &["protocol"],
        doc: "Memory that clients hold: 12 KiB for each request, bodies that wait for slow clients, and 64 KiB for each response on its way into \
              a cache. Counted only with a bound.",
        read: |_, out| {
            if memory::bound().is_some() {
                MemoryHolder::ALL
                    .iter()
                    .for_each(|holder| out.value(&[holder.word()], memory::held_bytes(*holder)));
            }
        },
    },
    Metric {
        name: "memory_level",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "0: plenty of memory is left, or there is no bound. 1: nothing is read ahead of slow clients. 2: new requests of clients that \
              hold much wait. 3: they are refused, and in the end those of all.",
        read: |_, out| out.value(&[], memory::level() as u64),
    },
    Metric {
        name: "memory_waiting_requests",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Requests that wait for memory.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.memory_waiting)),
    },
    Metric {
        name: "memory_refused_requests_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Requests that were refused for want of memory: with 503, or by a refused stream of HTTP/2 or HTTP/3.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.memory_refused)),
    },
    Metric {
        name: "process_cpu_seconds_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Processor time of all threads, in user space and in the kernel.",
        read: |_, out| {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            out.float(&[], time.tv_sec as f64 + time.tv_nsec as f64 / 1e9);
        },
    },
    Metric {
        name: "process_open_fds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Open file descriptors. Missing before Linux 6.2, and when no thread of a pool was free to ask.",
        read: |scrape, out| {
            if let Some(count) = scrape.usage.open_files {
                out.value(&[], count);
            }
        },
    },
    Metric {
        name: "process_max_fds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "File descriptors that may be open (RLIMIT_NOFILE at the start).",
        read: |scrape, out| out.value(&[], scrape.counts().descriptors.0.unwrap_or(u64::MAX)),
    },
    Metric {
        name: "panics_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Panics: bugs in Tailwater. The error log has a line with the stack for each.",
        read: |scrape, out| out.value(&[], scrape.counts().panics.value()),
    },
    Metric {
        name: "workers",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Event loops that run, those included that only finish what they have begun.",
        read: |scrape, out| out.value(&[], scrape.counts().loops().len() as u64),
    },
];
