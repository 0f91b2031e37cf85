//! All counters as Prometheus text.

use std::fmt::Write as _;

use tw_core::NGINX_VERSION;
use tw_core::metrics::label_value;

use super::node::{Bucket, CACHE_WORDS, CLASS_WORDS, TrafficNode};
use super::report::{MODULE_VERSION, ProcessFacts, Report};
use super::traffic_zone::NodeName;
use super::upstreams::{self, UpstreamView};

/// Rows that are written in one turn.
const ROWS_A_TURN: usize = 256;

/// A node with the labels of its samples.
struct NodeRow {
    labels: String,
    node: TrafficNode,
    average_ms: u64,
}

/// Writes a sample or several of one row.
type WriteRow<T> = fn(&str, &T, &mut String);

/// A family of samples: name behind the prefix, type, help, and its samples for a row.
type Family<T> = (&'static str, &'static str, &'static str, WriteRow<T>);

/// Families of servers and filters.
const NODES: [Family<NodeRow>; 6] = [
    ("bytes_total", "counter", "Bytes received from and sent to clients", |name, row, out| {
        let NodeRow { labels, node, .. } = row;
        let _ = writeln!(out, "{name}{{{labels},direction=\"in\"}} {}", node.received);
        let _ = writeln!(out, "{name}{{{labels},direction=\"out\"}} {}", node.sent);
    }),
    ("requests_total", "counter", "Requests by class of their status", |name, row, out| {
        for (class, count) in CLASS_WORDS.iter().zip(row.node.classes) {
            let _ = writeln!(out, "{name}{{{},code=\"{class}\"}} {count}", row.labels);
        }
    }),
    ("request_seconds_total", "counter", "Sum of the times of requests", |name, row, out| {
        let _ = writeln!(out, "{name}{{{}}} {}", row.labels, Seconds(row.node.time_ms));
    }),
    ("request_seconds", "gauge", "Average time of recent requests", |name, row, out| {
        let _ = writeln!(out, "{name}{{{}}} {}", row.labels, Seconds(row.average_ms));
    }),
    ("request_duration_seconds", "histogram", "Times of requests", |name, row, out| {
        let NodeRow { labels, node, .. } = row;
        write_histogram(name, labels, &node.buckets, node.requests, node.time_ms, out);
    }),
    ("cache_total", "counter", "Requests by cache status", |name, row, out| {
        for (status, count) in CACHE_WORDS.iter().zip(row.node.cache) {
            let _ = writeln!(out, "{name}{{{},status=\"{status}\"}} {count}", row.labels);
        }
    }),
];

/// Families of upstream servers.
const UPSTREAMS: [Family<(String, UpstreamView)>; 8] = [
    (
        "bytes_total",
        "counter",
        "Bytes received from and sent to upstream servers",
        |name, (labels, peer), out| {
            let _ = writeln!(out, "{name}{{{labels},direction=\"in\"}} {}", peer.received);
            let _ = writeln!(out, "{name}{{{labels},direction=\"out\"}} {}", peer.sent);
        },
    ),
    ("requests_total", "counter", "Responses by class of their status", |name, (labels, peer), out| {
        for (class, count) in CLASS_WORDS.iter().zip(peer.classes) {
            let _ = writeln!(out, "{name}{{{labels},code=\"{class}\"}} {count}");
        }
    }),
    ("request_seconds_total", "counter", "Sum of the times of responses", write_time),
    ("request_seconds", "gauge", "Average time of recent responses", write_average),
    ("request_duration_seconds", "histogram", "Times of responses", write_times),
    ("response_seconds_total", "counter", "Sum of the times of responses", write_time),
    ("response_seconds", "gauge", "Average time of recent responses", write_average),
    ("response_duration_seconds", "histogram", "Times of responses", write_times),
];

/// Milliseconds as seconds with three decimals.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

fn write_time(name: &str, (labels, peer): &(String, UpstreamView), out: &mut String) {
    let _ = writeln!(out, "{name}{{{labels}}} {}", Seconds(peer.time_ms));
}

fn write_average(name: &str, (labels, peer): &(String, UpstreamView), out: &mut String) {
    let _ = writeln!(out, "{name}{{{labels}}} {}", Seconds(peer.average_ms));
}

fn write_times(name: &str, (labels, peer): &(String, UpstreamView), out: &mut String) {
    let count = peer.classes.iter().sum();
    write_histogram(name, labels, &peer.buckets, count, peer.time_ms, out);
}

/// Appends a histogram, if bounds are configured.
fn write_histogram(name: &str, labels: &str, buckets: &[Bucket], count: u64, time_ms: u64, out: &mut String) {
    if buckets.is_empty() {
        return;
    }
    for bucket in buckets {
        let bound = Seconds(bucket.bound_ms);
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {}", bucket.count);
    }
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {count}", Seconds(time_ms));
}

fn upstream_labels(group: &str, server: &str) -> String {
    format!("upstream=\"{}\",backend=\"{}\"", label_value(group), label_value(server))
}

fn begin(name: &str, kind: &str, help: &str, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Appends the families of some rows. Families without samples are left out.
async fn write_families<T>(prefix: &str, families: &[Family<T>], rows: &[T], out: &mut String) {
    for (name, kind, help, write_row) in families {
        let name = format!("nginx_vts_{prefix}_{name}");
        let start = out.len();
        begin(&name, kind, help, out);
        let end = out.len();
        for rows in rows.chunks(ROWS_A_TURN) {
            rows.iter().for_each(|row| write_row(&name, row, out));
            tw_rt::yield_now().await;
        }
        if out.len() == end {
            out.truncate(start);
        }
    }
}

impl Report<'_> {
    /// Appends the whole report as Prometheus text.
    pub(super) async fn write_prometheus(&mut self, out: &mut String) {
        self.write_process(out);
        let mut servers = Vec::new();
        let mut filters = Vec::new();
        let mut sum = TrafficNode::default();
        for key in self.zone.keys() {
            let Some(node) = self.node(&key).await else { continue };
            let average_ms = node.average(self.vts.average, self.now_ms);
            let (rows, labels) = match NodeName::of_key(&key) {
                NodeName::Server(name) => {
                    sum.add(&node);
                    (&mut servers, format!("host=\"{}\"", label_value(&String::from_utf8_lossy(name))))
                }
                NodeName::Filter { group, name } => {
                    let [group, name] = [group, name].map(String::from_utf8_lossy);
                    let group = label_value(&group);
                    let name = label_value(&name);
                    (&mut filters, format!("filter=\"{group}\",filter_name=\"{name}\""))
                }
            };
            rows.push(NodeRow { labels, node: node.without_samples(), average_ms });
        }
        let labels = format!("host=\"{}\"", label_value(&String::from_utf8_lossy(&self.vts.sum_key)));
        let average_ms = sum.average(self.vts.average, self.now_ms);
        servers.push(NodeRow { labels, node: sum, average_ms });
        write_families("server", &NODES, &servers, out).await;
        write_families("filter", &NODES, &filters, out).await;
        if self.vts.by_upstream {
            self.write_upstream_families(out).await;
        }
        self.write_cache_families(out);
    }

    fn write_process(&self, out: &mut String) {
        let host = String::from_utf8_lossy(&self.generation.process.hostname);
        begin("nginx_vts_info", "gauge", "Version of the server", out);
        let _ = writeln!(
            out,
            "nginx_vts_info{{hostname=\"{}\",module_version=\"{MODULE_VERSION}\",version=\"{NGINX_VERSION}\"}} 1",
            label_value(&host)
        );
        let ProcessFacts { started_ms, connections, accepted, handled, requests } = &self.facts;
        begin("nginx_vts_start_time_seconds", "gauge", "Time of the start", out);
        let _ = writeln!(out, "nginx_vts_start_time_seconds {}", Seconds(*started_ms));
        begin("nginx_vts_main_connections", "gauge", "Connections and requests", out);
        for (status, number) in [
            ("accepted", accepted),
            ("active", &connections.active),
            ("handled", handled),
            ("reading", &connections.reading),
            ("requests", requests),
            ("waiting", &connections.waiting),
            ("writing", &connections.writing),
        ] {
            let _ = writeln!(out, "nginx_vts_main_connections{{status=\"{status}\"}} {number}");
        }
        let usage = self.zone.usage();
        begin("nginx_vts_main_shm_usage_bytes", "gauge", "Zone of the counters", out);
        for (shared, number) in
            [("max_size", self.zone.size), ("used_size", usage.bytes), ("used_node", usage.nodes as u64)]
        {
            let _ = writeln!(out, "nginx_vts_main_shm_usage_bytes{{shared=\"{shared}\"}} {number}");
        }
    }

    async fn write_upstream_families(&self, out: &mut String) {
        let mut rows = Vec::new();
        for (name, groups) in upstreams::groups(&self.generation.process.shared_objects) {
            for server in upstreams::servers(&groups, &self.vts.buckets) {
                rows.push((upstream_labels(name, &server.server), server));
            }
            tw_rt::yield_now().await;
        }
        write_families("upstream", &UPSTREAMS, &rows, out).await;
    }

    fn write_cache_families(&self, out: &mut String) {
        let caches = upstreams::caches(&self.generation.process.shared_objects);
        if caches.is_empty() {
            return;
        }
        let name = "nginx_vts_cache_usage_bytes";
        begin(name, "gauge", "Size of caches", out);
        for cache in &caches {
            let zone = label_value(&cache.name);
            let _ = writeln!(out, "{name}{{cache_zone=\"{zone}\",cache_size=\"max\"}} {}", cache.max_size);
            let _ = writeln!(out, "{name}{{cache_zone=\"{zone}\",cache_size=\"used\"}} {}", cache.used_size);
        }
        let name = "nginx_vts_cache_bytes_total";
        begin(name, "counter", "Bytes sent from caches", out);
        for cache in &caches {
            let zone = label_value(&cache.name);
            let _ = writeln!(out, "{name}{{cache_zone=\"{zone}\",direction=\"in\"}} 0");
            let _ = writeln!(out, "{name}{{cache_zone=\"{zone}\",direction=\"out\"}} {}", cache.sent);
        }
        let name = "nginx_vts_cache_requests_total";
        begin(name, "counter", "Requests by cache status", out);
        for cache in &caches {
            for (status, count) in CACHE_WORDS.iter().zip(cache.responses) {
                let zone = label_value(&cache.name);
                let _ = writeln!(out, "{name}{{cache_zone=\"{zone}\",status=\"{status}\"}} {count}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_have_bounds_and_sums() {
        let mut out = String::new();
        write_histogram("t", "host=\"a\"", &[], 3, 1234, &mut out);
        assert_eq!(out, "");
        let buckets = [Bucket { bound_ms: 5, count: 1 }, Bucket { bound_ms: 1000, count: 2 }];
        write_histogram("t", "host=\"a\"", &buckets, 3, 1234, &mut out);
        let expected = "t_bucket{host=\"a\",le=\"0.005\"} 1\nt_bucket{host=\"a\",le=\"1.000\"} 2\n\
            t_bucket{host=\"a\",le=\"+Inf\"} 3\nt_sum{host=\"a\"} 1.234\nt_count{host=\"a\"} 3\n";
        assert_eq!(out, expected);
    }
}
