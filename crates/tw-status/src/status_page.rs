//! `status_page`: a page that plots what `metrics` counts, live. Content phase. No counterpart in nginx's open source.
//!
//! One file without requests to other servers: the page requests `?format=json` from its own location every second.
//! Its policy allows its own script and style, and connections to its own server, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::event_loop::{Counts, PastStall, SlowRequest};
use tw_core::generation::{Config, ProcessGeneration};
use tw_core::metrics::{
    BOUNDS_NS, Format, History, KEPT_EVERY, Metric, MetricKind, MetricsTable, ProcessUsage, Scrape,
    json_string,
};
use tw_core::module::Settings;
use tw_http::Method;
use tw_http_cache::write_fleets;
use tw_module_support::metrics_output;
use tw_module_support::page_policy::{NONCE, policy};
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::random_id::random_id;
use tw_request::request::Request;
use tw_rt::{Cause, watch};
use tw_server::http::history;

/// The page; `@NONCE@` is replaced by the policy's nonce.
const PAGE: &str = include_str!("status_page/page.html");
/// Beginnings of the names of metrics that tables of the page are made of.
const TABLES: [&str; 8] =
    ["cache_", "disk_", "js_", "mail_zone_", "modsecurity_", "stream_zone_", "upstream_peer_", "zone_"];

/// `status_page` as written.
#[derive(Default)]
pub struct Raw {
    on: Setting<()>,
}

/// Set if a location answers with the page; not inherited.
pub struct StatusPage {
    here: Setting<()>,
    history: Option<Arc<History>>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of the table of mounts that the page is made of.
    const MOUNTS_MAX: usize = 256 << 10, bytes, "a longer one is taken for an empty one";
}

impl Settings<Http> for StatusPage {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("status_page", "", LOCATION, Args::NONE)
        .since("Tailwater 0.1")
        .doc(
            "Returns a page with live plots of event loops, thread pools and devices, tables of servers and upstreams, and the last stalls; with `?format=json`, \
             its numbers; with `?format=history`, the values of the plots of the last ten minutes; with `?format=minute`, the counters of \
             a minute ago.",
        )
        .set(|raw, node, _| raw.on.set_once(node, ()))];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let counted = raw.on.is_set().then(|| counted(cx.metrics()));
        let history = counted.map(|counted| cx.keep(b"", |_| true, || History::new(counted)));
        Ok(Self { here: raw.on, history })
    }

    fn are_shared(&self) -> bool {
        !self.here.is_set()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.here.is_set() {
            plan.add(Phase::Content, self.clone());
        }
    }
}

impl Handler for StatusPage {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        r.response.status = 200;
        for (name, value) in [
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ] {
            r.response.fields.append(name, value);
        }
        if r.uri.args.split(|b| *b == b'&').any(|arg| arg == b"format=json") {
            return Step::Wait(Box::pin(numbers(r)));
        }
        if r.uri.args.split(|b| *b == b'&').any(|arg| arg == b"format=history") {
            return Step::Wait(Box::pin(respond_history(r, self.history.clone())));
        }
        if r.uri.args.split(|b| *b == b'&').any(|arg| arg == b"format=minute") {
            let counters = self.history.as_ref().and_then(|history| history.counters());
            r.response.content_type = Bytes::from_static(b"application/json");
            let counters = counters.unwrap_or_else(|| Bytes::from_static(b"null"));
            return Step::Now(Outcome::Respond(Body::Bytes(counters)));
        }
        let nonce = random_id().map(|byte| format!("{byte:02x}")).concat();
        r.response.fields.append_copy("Content-Security-Policy", policy(&nonce).as_bytes());
        r.response.content_type = Bytes::from_static(b"text/html; charset=utf-8");
        Step::Now(Outcome::Respond(Body::Bytes(PAGE.replace(NONCE, &nonce).into())))
    }
}

/// Metrics whose counters of a minute ago the tables of the page need, and the age of the server.
fn counted(metrics: &MetricsTable) -> Vec<&'static Metric> {
    let is_of_table = |metric: &&Metric| {
        metric.kind != MetricKind::Gauge && TABLES.iter().any(|table| metric.name.starts_with(table))
    };
    metrics.all().filter(|metric| metric.name == "uptime_seconds" || is_of_table(metric)).collect()
}

/// The numbers of the page.
async fn numbers(r: &mut Request) -> Outcome {
    let usage = metrics_output::process_usage(r).await;
    let mounts = match usage.resident_bytes {
        // If the first file came too late, the other one would, too.
        None => Vec::new(),
        Some(_) => {
            let generation = r.generation().clone();
            let disk = generation.disks.default_disk();
            let account = &mut r.costs.account;
            history::read_soon(disk, account, c"/proc/self/mountinfo", MOUNTS_MAX).await.unwrap_or_default()
        }
    };
    let counts = &r.client().event_loop.counts;
    let process = &r.generation().process;
    let mut out = begin_numbers(counts, process, &String::from_utf8_lossy(&mounts));
    metrics_output::write(r, usage, Format::Json, &mut out).await;
    out.push_str("}}");
    r.response.content_type = Bytes::from_static(b"application/json");
    Outcome::Respond(Body::Bytes(out.into()))
}

/// The numbers of the page for a thread that may wait. `mounts` is the content of `/proc/self/mountinfo`.
pub fn numbers_of_process(
    counts: &Counts,
    generation: &ProcessGeneration,
    usage: ProcessUsage,
    mounts: &str,
) -> String {
    let mut out = begin_numbers(counts, &generation.config, mounts);
    Scrape::new(counts, generation, usage).write(Format::Json, generation.config.metrics.all(), &mut out);
    out.push_str("}}");
    out
}

/// The numbers of the page up to the metrics, which follow.
fn begin_numbers(counts: &Counts, process: &Config, mounts: &str) -> String {
    let mut out = String::with_capacity(32 << 10);
    // Writing into a string cannot fail.
    let now = tw_rt::clock::unix();
    let _ = write!(out, "{{\"now\":{}.{:03},\"host\":", now.secs, now.msec);
    json_string(&String::from_utf8_lossy(&process.hostname), &mut out);
    let threshold = process.main.stall_threshold;
    let _ = write!(out, ",\"stall_threshold\":{},\"bounds\":[", threshold.as_secs_f64());
    for (at, bound) in BOUNDS_NS.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{}", *bound as f64 / 1e9);
    }
    out.push_str("],\"stalls\":[");
    for (at, stall) in counts.stalls.newest().iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        stall_json(stall, &mut out);
    }
    out.push_str("],\"slow_requests\":[");
    for (at, request) in counts.slow_requests.slowest(tw_rt::clock::millis()).iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        slow_request_json(request, &mut out);
    }
    out.push_str("],\"mounts\":{");
    for (at, (device, place)) in places(mounts).iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        json_string(device, &mut out);
        out.push(':');
        json_string(place, &mut out);
    }
    out.push_str("},\"fleets\":");
    let now_ms = now.secs.unsigned_abs() * 1000 + u64::from(now.msec);
    write_fleets(&process.shared_objects, now_ms, &mut out);
    out.push_str(",\"metrics\":{");
    out
}

/// Answers with the history of the plots, one series in each turn.
async fn respond_history(r: &mut Request, history: Option<Arc<History>>) -> Outcome {
    let mut out = format!("{{\"every\":{},\"series\":{{", KEPT_EVERY.as_secs());
    for (at, name) in history.iter().flat_map(|history| history.names()).enumerate() {
        if at > 0 {
            tw_rt::yield_now().await;
        }
        if let Some(history) = &history {
            let len = out.len();
            watch::operation("writing the history of the status page", || history.write(&name, &mut out));
            if out.len() > len && !out[..len].ends_with('{') {
                out.insert(len, ',');
            }
        }
    }
    out.push_str("}}");
    r.response.content_type = Bytes::from_static(b"application/json");
    Outcome::Respond(Body::Bytes(out.into()))
}

/// First mount point and type of each device, by `major:minor`: `/srv (ext4)`. Fields 3, 5 and the first after `-` of
/// proc_pid_mountinfo(5).
fn places(mounts: &str) -> BTreeMap<&str, String> {
    let mut places = BTreeMap::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(point)) = (fields.nth(2), fields.nth(1)) else { continue };
        let kind = fields.skip_while(|field| *field != "-").nth(1).unwrap_or_default();
        places.entry(device).or_insert_with(|| format!("{} ({kind})", point.replace("\\040", " ")));
    }
    places
}

fn stall_json(PastStall { at: when, stall, client }: &PastStall, out: &mut String) {
    let _ = write!(
        out,
        "{{\"at\":{}.{:03},\"worker\":{},\"turn\":{},\"cause\":\"{}\"",
        when.secs,
        when.msec,
        stall.index,
        stall.turn.as_secs_f64(),
        stall.cause.word()
    );
    for cause in Cause::ALL {
        let _ = write!(out, ",\"{}\":{}", cause.word(), stall.parts.of(cause).as_secs_f64());
    }
    let _ = write!(out, ",\"major_faults\":{}", stall.major_faults);
    if let Some(slowest_task) = &stall.slowest_task {
        let _ = write!(out, ",\"took\":{},\"by\":", slowest_task.took.as_secs_f64());
        json_string(&slowest_task.subject.to_string(), out);
        if let Some(operation) = slowest_task.operation {
            out.push_str(",\"operation\":");
            json_string(operation, out);
        }
    }
    if let Some(client) = client {
        out.push_str(",\"client\":");
        json_string(client, out);
    }
    out.push('}');
}

fn slow_request_json(request: &SlowRequest, out: &mut String) {
    let SlowRequest { at, worker, time, disk_wait, status, .. } = request;
    let time = time.as_secs_f64();
    let disk_wait = disk_wait.as_secs_f64();
    let _ = write!(
        out,
        "{{\"at\":{}.{:03},\"worker\":{worker},\"time\":{time},\"disk_wait\":{disk_wait},\"status\":{status}",
        at.secs, at.msec
    );
    for (name, text) in [
        ("protocol", &request.protocol),
        ("client", &request.client),
        ("host", &request.host),
        ("request", &request.request),
    ] {
        let _ = write!(out, ",\"{name}\":");
        json_string(text, out);
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tw_rt::TurnParts;
    use tw_rt::clock::UnixTime;
    use tw_rt::watch::{SlowestTask, Stall, Subject};

    use super::*;

    /// Most bytes of the page.
    const PAGE_MAX: usize = 46 << 10;

    #[test]
    fn status_page_is_small_and_self_contained() {
        assert!(PAGE.len() < PAGE_MAX, "{} bytes", PAGE.len());
        assert_eq!(PAGE.matches(NONCE).count(), 2);
        for outside in
            ["http:", "https:", "src=", "url(", "@import", " style=", "onclick", "innerHTML", "eval("]
        {
            // The namespace of SVG is a name, not an address that is asked.
            let page = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn devices_are_named_by_their_mounts() {
        let table = "22 27 0:21 / /proc rw - proc proc rw\n\
            27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw\n\
            28 1 254:0 /a /my\\040disk rw - ext4 /dev/vda rw\n\
            odd line\n41 40 8:1 / /my\\040disk rw - xfs /dev/sdb rw\n";
        let places = places(table);
        assert_eq!(places.len(), 3);
        assert_eq!((&*places["254:0"], &*places["8:1"]), ("/ (ext4)", "/my disk (xfs)"));
    }

    #[test]
    fn slow_requests_as_json() {
        let mut out = String::new();
        let request = SlowRequest {
            at: UnixTime { secs: 5, msec: 7 },
            at_ms: 0,
            worker: 1,
            time: Duration::from_millis(1500),
            disk_wait: Duration::from_micros(12),
            status: 200,
            protocol: "HTTP/2.0".into(),
            client: "::1".into(),
            host: "example.com".into(),
            request: "GET /\"".into(),
        };
        slow_request_json(&request, &mut out);
        assert_eq!(
            out,
            r#"{"at":5.007,"worker":1,"time":1.5,"disk_wait":0.000012,"status":200,"protocol":"HTTP/2.0","client":"::1","host":"example.com","request":"GET /\""}"#
        );
    }

    #[test]
    fn stalls_as_json() {
        let at = UnixTime { secs: 5, msec: 7 };
        let slowest_task = SlowestTask {
            subject: Subject { kind: "connection", id: 42 },
            operation: Some("regex"),
            took: Duration::from_millis(20),
        };
        for (slowest_task, expected) in [
            (None, r#"{"at":5.007,"worker":1,"turn":0.031,@}"#),
            (
                Some(slowest_task),
                r#"{"at":5.007,"worker":1,"turn":0.031,@,"took":0.02,"by":"connection 42","operation":"regex","client":"::1"}"#,
            ),
        ] {
            let mut out = String::new();
            let client = slowest_task.map(|_| "::1".into());
            let ms = Duration::from_millis;
            let cause = Cause::Kernel;
            let parts = TurnParts::new(ms(10), ms(1), ms(20));
            let stall = Stall { index: 1, turn: ms(31), cause, parts, major_faults: 2, slowest_task };
            stall_json(&PastStall { at, stall, client }, &mut out);
            let why = r#""cause":"kernel","running":0.01,"processor":0.001,"kernel":0.02,"major_faults":2"#;
            assert_eq!(out, expected.replace('@', why));
        }
    }
}
