//! `metrics`: what the process counts, as Prometheus text. Content phase. No counterpart in nginx's open source.
//!
//! The numbers are the records of `tw_core::metrics` and of every module ([`Settings::METRICS`]). A scrape copies
//! counters and histograms; it takes no lock that a request takes.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::metrics::{self, CONTENT_TYPE, Format, Metric, Scrape};
use tw_core::module::Settings;
use tw_http::Method;
use tw_rt::{Deadline, watch};
use tw_server::http::Http;
use tw_server::http::body::Body;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;

/// How long a scrape waits for a thread to read about this process in `/proc`. Pools may be stuck when metrics are needed
/// most: then everything else is told without it.
const PROC_PATIENCE_MS: u64 = 50;

/// `metrics` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<()>,
}

/// Whether a location answers with metrics; not inherited.
pub(crate) struct Metrics {
    here: Setting<()>,
}

impl Settings<Http> for Metrics {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("metrics", "", LOCATION, Args::NONE)
        .since("Tailwater 0.1")
        .doc("Answers with the counters and histograms of the process as Prometheus text.")
        .set(|raw, node, _| raw.on.set_once(node, ()))];

    const LIMITS: &'static [Limit] = &[Limit::micros(
        "PROC_PATIENCE_MS",
        PROC_PATIENCE_MS * 1000,
        "Time a scrape waits for a pool thread to read what `/proc` tells of the process",
        "the metric is left out",
    )];

    fn resolve(raw: Raw, _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { here: raw.on })
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

impl Handler for Metrics {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        Step::Wait(Box::pin(async {
            let memory = resident_bytes(r).await;
            let mut text = String::with_capacity(64 << 10);
            write(r, memory, Format::Prometheus, &mut text);
            r.out.status = 200;
            r.out.content_type = Bytes::from_static(CONTENT_TYPE);
            Outcome::Respond(Body::Bytes(text.into()))
        }))
    }
}

/// The metrics of the core and of every module, in the order in which they are written.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    let modules = tw_server::load::modules(crate::MODULES).flat_map(|module| module.metrics());
    metrics::core().chain(tw_server::metrics::METRICS).chain(modules)
}

/// Appends all metrics to `out`, in one of their forms.
pub(crate) fn write(r: &Request, memory: Option<u64>, format: Format, out: &mut String) {
    watch::operation("writing metrics", || {
        Scrape::new(&r.client().home.counts, r.generation(), memory).write(format, all(), out)
    });
}

/// Bytes of this process in RAM, if the disk door can tell soon (proc_pid_statm(5): the second number, in pages).
pub(crate) async fn resident_bytes(r: &mut Request) -> Option<u64> {
    let statm = read_soon(r, c"/proc/self/statm", 256).await?;
    let pages = std::str::from_utf8(&statm).ok()?.split(' ').nth(1)?.parse::<u64>().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// A file of `/proc` of at most `max` bytes, if a thread has read it soon.
pub(crate) async fn read_soon(r: &mut Request, path: &CStr, max: usize) -> Option<Vec<u8>> {
    let generation = r.generation().clone();
    let file = generation.disks.default_disk().read_whole(&mut r.costs.account, path, max);
    let mut deadline = Deadline::new();
    deadline.set(Duration::from_millis(PROC_PATIENCE_MS));
    deadline.guard(file).await.ok()?.ok()
}
