//! `metrics`: what the process counts, as Prometheus text. Content phase. No counterpart in nginx's open source.
//!
//! The numbers are the records of `tw_core::metrics` and of every module ([`Settings::METRICS`]). A scrape copies
//! counters and histograms; it takes no lock that a request takes.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::event_loop::Counts;
use tw_core::metrics::{
    self, CONTENT_TYPE, Format, Metric, MetricsWriter, ProcessUsage, Scrape, WriteProgress,
};
use tw_core::module::Settings;
use tw_http::Method;
use tw_rt::watch;
use tw_server::http::Http;
use tw_server::http::body::Body;
use tw_server::http::cache;
use tw_server::http::generation::LoopGeneration;
use tw_server::http::history;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;

/// `metrics` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<()>,
}

/// Set if a location answers with metrics; not inherited.
pub(crate) struct Metrics {
    here: Setting<()>,
}

impl Settings<Http> for Metrics {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("metrics", "", LOCATION, Args::NONE)
        .since("Tailwater 0.1")
        .doc("Returns all metrics of the process in the Prometheus text format.")
        .set(|raw, node, _| raw.on.set_once(node, ()))];

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
            let usage = process_usage(r).await;
            let mut text = String::with_capacity(64 << 10);
            write(r, usage, Format::Prometheus, &mut text).await;
            r.response.status = 200;
            r.response.content_type = Bytes::from_static(CONTENT_TYPE);
            Outcome::Respond(Body::Bytes(text.into()))
        }))
    }
}

/// The metrics of the core and of every module, in the order in which they are written.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    ALL.iter().flat_map(|(_, metrics)| metrics.iter().copied())
}

/// The metrics of the core and of every module, each with its title. A module of several protocols has one set of metrics, which
/// counts for all of them.
pub static ALL: LazyLock<Vec<(&str, Vec<&Metric>)>> = LazyLock::new(|| {
    let http = tw_server::load::modules(crate::MODULES).map(|module| (module.name, module.metrics()));
    let stream =
        tw_stream::load::modules(crate::STREAM_MODULES).map(|module| (module.name, module.metrics()));
    let mail = tw_mail::load::modules(crate::MAIL_MODULES).map(|module| (module.name, module.metrics()));
    let server = [
        ("requests", tw_server::metrics::METRICS),
        ("fleet", cache::FLEET_METRICS),
        ("cache", cache::METRICS),
    ];
    let core = metrics::CORE.iter().copied().chain(server);
    let mut seen = HashSet::new();
    let mut first = |metrics: &'static [Metric]| -> Vec<&'static Metric> {
        metrics.iter().filter(|metric| seen.insert(metric.name)).collect()
    };
    core.chain(http).chain(stream).chain(mail).map(|(title, metrics)| (title, first(metrics))).collect()
});

/// Appends all metrics to `out`, in one of their forms. Others have their turns meanwhile.
pub(crate) async fn write(r: &Request, usage: ProcessUsage, format: Format, out: &mut String) {
    let event_loop = r.client().event_loop.clone();
    let generation = r.generation().clone();
    write_all(&event_loop.counts, &generation, usage, format, out).await;
}

/// [`write`], apart from requests.
pub(crate) async fn write_all(
    counts: &Counts,
    generation: &LoopGeneration,
    usage: ProcessUsage,
    format: Format,
    out: &mut String,
) {
    let scrape = Scrape::new(counts, generation, usage);
    let mut writer = MetricsWriter::new(format, all());
    while watch::operation("writing metrics", || writer.write(&scrape, out)) == WriteProgress::More {
        tw_rt::yield_now().await;
    }
}

/// Resources of this process, as far as they can be read soon.
pub(crate) async fn process_usage(r: &mut Request) -> ProcessUsage {
    let generation = r.generation().clone();
    history::process_usage(generation.disks.default_disk(), &mut r.costs.account).await
}
