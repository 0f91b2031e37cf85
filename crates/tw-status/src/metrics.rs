//! `metrics`: what the process counts, as Prometheus text. Content phase. No counterpart in nginx's open source.
//!
//! The numbers are the records of `tw_core::metrics` and of every module ([`Settings::METRICS`]). A scrape copies
//! counters and histograms; it takes no lock that a request takes.

use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::metrics::{CONTENT_TYPE, Format};
use tw_core::module::Settings;
use tw_http::Method;
use tw_module_support::metrics_output;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

/// `metrics` as written.
#[derive(Default)]
pub struct Raw {
    on: Setting<()>,
}

/// Set if a location answers with metrics; not inherited.
pub struct Metrics {
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
            let usage = metrics_output::process_usage(r).await;
            let mut text = String::with_capacity(64 << 10);
            metrics_output::write(r, usage, Format::Prometheus, &mut text).await;
            r.response.status = 200;
            r.response.content_type = Bytes::from_static(CONTENT_TYPE);
            Outcome::Respond(Body::Bytes(text.into()))
        }))
    }
}
