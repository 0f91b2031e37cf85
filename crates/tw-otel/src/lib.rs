//! `otel_trace` and its like: spans of requests for OpenTelemetry (nginx: ngx_otel_module). Rewrite phase, and the end of a request.
//!
//! ```text
//! otel_trace ─► context (W3C) ─► request, with the trace of tw-server ─► spans ─► queue of the loop ─► export_task ─► otlp
//! ```
//! Spans beside those of nginx: of subrequests, lookups in caches, upstream attempts, and waits for the disk; and of the sessions of
//! `stream` and `mail` (file `session.rs`).

pub mod context;
mod export_target;
mod export_task;
mod metric_points;
mod metrics_task;
mod otlp;
mod protobuf;
mod queue;
mod session;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, Word, record, units};
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::num;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::request::trace::{RequestTrace, SpanSink};
use tw_request::vars::{Template, Value, VarDef};

use self::export_target::{ExportTarget, RawExporter};
use self::metrics_task::MetricExports;
use self::queue::SpanQueues;
pub use self::session::SessionOtel;
use self::spans::SpanSettings;

const EVERYWHERE: u32 = HTTP | SERVER | LOCATION;

/// nginx's default of `otel_service_name`.
const SERVICE_NAME: &[u8] = b"unknown_service:nginx";

/// As in the SDKs of OpenTelemetry.
const METRICS_INTERVAL: Duration = Duration::from_secs(60);

/// Settings as written.
#[derive(Default)]
pub struct Raw {
    exporter: Setting<RawExporter>,
    service_name: Setting<Box<[u8]>>,
    resource_attributes: Setting<Vec<(Word, Word)>>,
    trace: Setting<Word>,
    context: Setting<Propagation>,
    span_name: Setting<Word>,
    span_attributes: Setting<Vec<(Word, Word)>>,
    metrics: Setting<MetricsSwitch>,
}

/// `otel_metrics`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricsSwitch {
    Off,
    Every(Duration),
}

/// Settings of one block.
pub struct Otel {
    /// Receiver of the spans; `None` without `otel_exporter`.
    exporter: Option<Arc<Exporter>>,
    sampling: Sampling,
    context: Propagation,
    span_name: Option<Template>,
    span_attributes: Arc<[(Box<[u8]>, Template)]>,
}

/// `otel_trace`
#[derive(Clone)]
enum Sampling {
    Off,
    On,
    /// `1` or `on` is on.
    Variable(Template),
}

/// `otel_trace_context`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Propagation {
    Ignore,
    Extract,
    Inject,
    Propagate,
}

impl Propagation {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("ignore", Self::Ignore),
        ("extract", Self::Extract),
        ("inject", Self::Inject),
        ("propagate", Self::Propagate),
    ];

    fn extracts(self) -> bool {
        matches!(self, Self::Extract | Self::Propagate)
    }

    fn injects(self) -> bool {
        matches!(self, Self::Inject | Self::Propagate)
    }
}

/// Exporter of one configuration.
struct Exporter {
    target: Arc<ExportTarget>,
    queues: Arc<SpanQueues>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use queue::LIMITS;
    use export_task::LIMITS;
    use export_target::LIMITS;
    use spans::LIMITS;
    use context::LIMITS;
}

impl Settings<Http> for Otel {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const METRICS: &'static [Metric] =
        &[queue::SPANS, queue::QUEUED_SPANS, queue::EXPORT_FAILURES, metrics_task::METRIC_EXPORTS];

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("otel_exporter", "{ … }", HTTP, Args::NONE.block())
            .doc(
                "Destination of spans: endpoint [(http|https)://]host:port for OTLP over gRPC, with a path behind it \
                 (http://host:4318/v1/traces) OTLP over HTTP; trusted_certificate file; header name value; interval time (5s); \
                 batch_size number (512); batch_count number (4). Sizes are those of each loop.",
            )
            .set(|raw, node, _| raw.exporter.set_with(node, RawExporter::read)),
        record::new("otel_service_name", "name", HTTP, Args::exact(1))
            .default("unknown_service:nginx")
            .doc("The attribute service.name of the resource.")
            .set(|raw, node, _| raw.service_name.set_once(node, node.arg(0)?.bytes.clone())),
        record::new("otel_resource_attr", "name value", HTTP, Args::exact(2))
            .doc("Another attribute of the resource.")
            .set(|raw, node, _| {
                let [name, value] = node.words()?;
                raw.resource_attributes.push(node, (name.clone(), value.clone()));
                Ok(())
            }),
        record::new("otel_trace", "on | off | $variable", EVERYWHERE, Args::exact(1))
            .default("off")
            .doc("Whether requests have spans; with a variable, those have for which it is \"on\" or \"1\".")
            .set(|raw, node, _| raw.trace.set_once(node, node.arg(0)?.clone())),
        record::new("otel_trace_context", "extract | inject | propagate | ignore", EVERYWHERE, Args::exact(1))
            .default("ignore")
            .doc(
                "Handling of the fields traceparent and tracestate: extract continues the trace of the client, inject sends \
                 upstream servers a context in the place of the client's, propagate does both.",
            )
            .set(|raw, node, _| raw.context.set_one_of(node, Propagation::WORDS)),
        record::new("otel_span_name", "name", EVERYWHERE, Args::exact(1))
            .doc("Name of the spans of requests, with variables; without it, the name of the location.")
            .set(|raw, node, _| raw.span_name.set_once(node, node.arg(0)?.clone())),
        record::new("otel_span_attr", "name value", EVERYWHERE, Args::exact(2))
            .doc("Another attribute of the spans of requests; the value may have variables.")
            .set(|raw, node, _| {
                let [name, value] = node.words()?;
                raw.span_attributes.push(node, (name.clone(), value.clone()));
                Ok(())
            }),
        record::new("otel_metrics", "on | off [interval=time]", HTTP, Args::range(1, 2))
            .default("off")
            .since("Tailwater 0.1")
            .doc("Exports the metrics of the process every minute, or in this interval, to the endpoint of otel_exporter.")
            .set(|raw, node, _| raw.metrics.set_with(node, read_metrics)),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one(
            "otel_trace_id",
            |r, out| {
                num::push_hex(&trace_of(r).trace_id, out);
                Value::Found
            },
            "Identifier of the trace, 32 digits.",
        ),
        VarDef::one(
            "otel_span_id",
            |r, out| {
                num::push_hex(&trace_of(r).span_id, out);
                Value::Found
            },
            "Identifier of the request's span, 16 digits.",
        ),
        VarDef::one(
            "otel_parent_id",
            parent_id,
            "Identifier of the client's span, 16 digits, if its context is extracted.",
        ),
        VarDef::one(
            "otel_parent_sampled",
            |r, out| {
                let is_sampled = trace_of(r).parent.is_some_and(|parent| parent.is_sampled);
                out.push(if is_sampled { b'1' } else { b'0' });
                Value::Found
            },
            "`1` if the client's span is sampled, else `0`.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let has_metrics = matches!(raw.metrics.get(), Some(MetricsSwitch::Every(_)));
        if let (Some(span), true, false) = (raw.metrics.span(), has_metrics, raw.exporter.is_set()) {
            cx.warn(span, "\"otel_metrics\" has no effect without \"otel_exporter\"");
        }
        let metrics = raw.metrics.take();
        let exporter = match (raw.exporter.take(), outer) {
            (_, Some(outer)) => outer.exporter.clone(),
            (None, None) => None,
            (Some(exporter), None) => {
                let service = raw.service_name.or_else(|| None, || SERVICE_NAME.into());
                let attributes = raw.resource_attributes.take().unwrap_or_default();
                let target = Arc::new(exporter.resolve(&service, &attributes, cx)?);
                let queues = cx.keep(b"", |_| true, SpanQueues::default);
                session::prepare(&target, cx);
                if let Some(MetricsSwitch::Every(interval)) = metrics {
                    let counts = cx.keep(b"", |_| true, MetricExports::default);
                    // Each configuration has a task of its own.
                    cx.keep(b"otel", |_| false, || metrics_task::task(target.clone(), interval, counts));
                }
                Some(Arc::new(Exporter { target, queues }))
            }
        };
        let sampling = match raw.trace.take() {
            Some(word) => {
                let sampling = Sampling::resolve(&word, cx)?;
                if exporter.is_none() && !matches!(sampling, Sampling::Off) {
                    cx.warn(word.span, "\"otel_trace\" has no effect without \"otel_exporter\"");
                }
                sampling
            }
            None => outer.map_or(Sampling::Off, |outer| outer.sampling.clone()),
        };
        let span_name = match raw.span_name.take() {
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|outer| outer.span_name.clone()),
        };
        let span_attributes = match (raw.span_attributes.take(), outer) {
            (Some(written_values), _) => {
                let attribute = |(name, value): &(Word, Word)| Ok((name.bytes.clone(), cx.template(value)?));
                written_values.iter().map(attribute).collect::<Result<_, ConfError>>()?
            }
            (None, Some(outer)) => outer.span_attributes.clone(),
            (None, None) => Arc::new([]),
        };
        let context = raw.context.or(outer.map(|outer| outer.context), Propagation::Ignore);
        Ok(Self { exporter, sampling, context, span_name, span_attributes })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.exporter.is_some() || self.context != Propagation::Ignore {
            // A request that began elsewhere may end here.
            plan.parts.put(self.clone());
        }
        if self.is_on() {
            plan.add(Phase::Rewrite, self.clone());
        }
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        if self.exporter.is_some() {
            reach.connects();
            tw_connect::resolving::reach(reach);
        }
    }
}

/// Reads `otel_metrics`.
fn read_metrics(node: &Node) -> Result<MetricsSwitch, ConfError> {
    let mut interval = METRICS_INTERVAL;
    for word in node.args.iter().skip(1) {
        let value = word.param("interval").and_then(units::msec).filter(|value| !value.is_zero());
        interval = value.ok_or_else(|| node.invalid_parameter(word))?;
    }
    Ok(if node.flag()? { MetricsSwitch::Every(interval) } else { MetricsSwitch::Off })
}

impl Sampling {
    fn resolve(word: &Word, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        match &*word.bytes {
            b"on" => Ok(Self::On),
            b"off" => Ok(Self::Off),
            text if text.contains(&b'$') => Ok(Self::Variable(cx.template(word)?)),
            _ => Err(invalid_sampling(word)),
        }
    }
}

/// Error of an `otel_trace` with this argument.
fn invalid_sampling(word: &Word) -> ConfError {
    let text = "directive, it must be \"on\", \"off\" or a variable";
    ConfError::new(format!("invalid value \"{word}\" in \"otel_trace\" {text}")).at(word.span)
}

impl Otel {
    fn is_on(&self) -> bool {
        self.context.injects() || !matches!(self.sampling, Sampling::Off)
    }
}

// DIFF(nginx): the first location with `otel_trace` decides for the whole request, also if it is reached by an internal redirect.
impl Handler for Otel {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Now(self.begin(r))
    }
}

impl Otel {
    fn begin(&self, r: &mut Request) -> Outcome {
        if r.is_subrequest() || r.context.trace.get().is_some_and(|trace| trace.is_decided) {
            return Outcome::Pass;
        }
        let is_sampled = match &self.sampling {
            Sampling::Off => false,
            Sampling::On => true,
            Sampling::Variable(value) => matches!(&*value.value(r), b"on" | b"1"),
        };
        trace_of(r);
        if let Some(trace) = r.context.trace.get_mut() {
            (trace.is_decided, trace.is_injected) = (true, self.context.injects());
        }
        if let (true, Some(exporter)) = (is_sampled, &self.exporter) {
            r.sample_trace(exporter.clone());
        }
        Outcome::Pass
    }
}

/// Trace of a request, which begins by the settings of its location when it is first needed.
fn trace_of(r: &Request) -> &RequestTrace {
    r.context.trace.get_or_init(|| {
        let settings = r.plan().parts.get::<Otel>();
        let extracts = settings.is_some_and(|settings| settings.context.extracts());
        let extracted = if extracts { context::extract(&r.head) } else { None };
        Box::new(extracted.unwrap_or_default())
    })
}

fn parent_id(r: &Request, out: &mut Vec<u8>) -> Value {
    let Some(parent) = trace_of(r).parent else { return Value::Missing };
    num::push_hex(&parent.id, out);
    Value::Found
}

impl SpanSink for Exporter {
    fn record(&self, r: &Request, trace: &RequestTrace) {
        let settings = r.plan().parts.get::<Otel>();
        let spans = SpanSettings {
            name: settings.as_ref().and_then(|settings| settings.span_name.as_ref()),
            attributes: settings.as_ref().map_or(&[], |settings| &settings.span_attributes),
        };
        let event_loop = &r.client().event_loop;
        let queue = self.queues.of_loop(event_loop.index);
        if queue.push(&self.target, &spans::encode(r, trace, &spans)) {
            export_task::start(event_loop, &self.queues, r.plan().core.resolving.clone());
        }
    }
}
