//! `otel_trace` of `stream` and `mail`: one span for each session that is over. Log phase.
//!
//! ```text
//! session ─► span ─► queue of all loops ─► task of the first loop of http ─► export_task
//! ```
//! The collector is that of `otel_exporter` in `http`; a session looks for it when it is over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, STREAM, STREAM_SERVER, Setting, Word, record};
use tw_core::load::Resolve;
use tw_core::log::{LogPlan, SessionLogger};
use tw_core::module::{Protocol, Settings};
use tw_core::shared_objects::SharedObjects;
use tw_core::vars::{ProxiedSession, Template};
use tw_mail::session::MailSession;
use tw_net::listen::SocketKind;
use tw_request::request::trace::RequestTrace;
use tw_server::http::BackgroundTask;
use tw_stream::session::StreamSession;

use super::export_target::ExportTarget;
use super::export_task;
use super::protobuf::Message;
use super::queue::{SessionQueues, SpanQueues};
use super::spans::{ERROR, EncodedSpans, SAMPLED, SERVER, cut, push_attribute, unix_ns};

const EVERYWHERE: u32 = STREAM | STREAM_SERVER | MAIL | MAIL_SERVER;

/// Interval of looks for spans of sessions.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that the span of most sessions has at most.
const SIZE: usize = 512;

/// Destination of the spans of sessions.
struct SessionExporter {
    target: Arc<ExportTarget>,
    queues: Arc<SpanQueues>,
}

/// Opens the way for spans of sessions, and has a task of the first loop export them.
pub(super) fn prepare<P: Protocol>(target: &Arc<ExportTarget>, cx: &mut Resolve<'_, P>) {
    let queues = cx.keep(b"", |_| true, SessionQueues::default).0.clone();
    let exporter = SessionExporter { target: target.clone(), queues: queues.clone() };
    cx.keep(b"", |_| false, || exporter);
    let task = BackgroundTask::new(move |event_loop| {
        let queues = queues.clone();
        Box::pin(async move {
            loop {
                tw_rt::time::sleep(LOOK_INTERVAL).await;
                let generation = event_loop.generation();
                // The resolver of the first server is used, because most servers inherit that of `http`.
                let Some(first) = generation.servers.first() else { continue };
                let resolving = generation.plan(first.plan).core.resolving.clone();
                export_task::export_queued(&event_loop, &queues, resolving).await;
            }
        })
    });
    cx.keep(b"otel sessions", |_| false, || task);
}

/// Settings as written.
#[derive(Default)]
pub struct Raw {
    trace: Setting<Word>,
    span_name: Setting<Word>,
    span_attributes: Setting<Vec<(Word, Word)>>,
}

/// Settings of one block.
pub struct SessionOtel<S> {
    sampling: Sampling<S>,
    span_name: Option<Template<S>>,
    span_attributes: Arc<[SpanAttribute<S>]>,
}

/// Attribute of the configuration: its name and its value.
type SpanAttribute<S> = (Box<[u8]>, Template<S>);

/// `otel_trace`
enum Sampling<S> {
    Off,
    On,
    /// `1` or `on` is on.
    Variable(Template<S>),
}

impl<S> Clone for Sampling<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::On => Self::On,
            Self::Variable(template) => Self::Variable(template.clone()),
        }
    }
}

/// A session that has a span.
pub trait TracedSession: ProxiedSession {
    /// Objects of the configuration.
    fn shared_objects(&self) -> &SharedObjects;

    /// Time of accept.
    fn began(&self) -> Instant;

    /// Status, in the terms of HTTP.
    fn status(&self) -> u16;

    /// Bytes of the client, and bytes that it has taken.
    fn traffic(&self) -> (u64, u64);

    /// Name of the protocol: `tcp`, `udp`, `imap`, `pop3` or `smtp`.
    fn protocol(&self) -> &'static str;

    /// Address of the server behind this one; empty without one.
    fn upstream(&self) -> &str;
}

impl TracedSession for StreamSession {
    fn shared_objects(&self) -> &SharedObjects {
        &self.client.generation.process.shared_objects
    }

    fn began(&self) -> Instant {
        self.client.accepted
    }

    fn status(&self) -> u16 {
        self.status.0
    }

    fn traffic(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    fn protocol(&self) -> &'static str {
        match self.client.kind {
            SocketKind::Stream => "tcp",
            SocketKind::Datagram => "udp",
        }
    }

    fn upstream(&self) -> &str {
        let last = self.upstream.as_ref().and_then(|upstream| upstream.attempts.last());
        last.map_or("", |attempt| attempt.to.text())
    }
}

impl TracedSession for MailSession {
    fn shared_objects(&self) -> &SharedObjects {
        &self.client.generation.process.shared_objects
    }

    fn began(&self) -> Instant {
        self.client.accepted
    }

    fn status(&self) -> u16 {
        self.status.code()
    }

    fn traffic(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    fn protocol(&self) -> &'static str {
        self.server().protocol.name()
    }

    fn upstream(&self) -> &str {
        &self.upstream
    }
}

impl<P: Protocol> Settings<P> for SessionOtel<P::Session>
where
    P::Session: TracedSession,
    P::Plan: LogPlan<P::Session>,
{
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("otel_trace", "on | off | $variable", EVERYWHERE, Args::exact(1))
            .default("off")
            .since("Tailwater 0.2")
            .doc(
                "Enables a span for each session, which goes to the otel_exporter of http; with a variable, for sessions for which it is \
                 \"on\" or \"1\".",
            )
            .set(|raw, node, _| raw.trace.set_once(node, node.arg(0)?.clone())),
        record::new("otel_span_name", "name", EVERYWHERE, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("Name of the spans of sessions, with variables; without it, the protocol and \"session\".")
            .set(|raw, node, _| raw.span_name.set_once(node, node.arg(0)?.clone())),
        record::new("otel_span_attr", "name value", EVERYWHERE, Args::exact(2))
            .since("Tailwater 0.2")
            .doc("Another attribute of the spans of sessions; the value may have variables.")
            .set(|raw, node, _| {
                let [name, value] = node.words()?;
                raw.span_attributes.push(node, (name.clone(), value.clone()));
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let sampling = match raw.trace.take() {
            Some(word) => Sampling::resolve(&word, cx)?,
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
        Ok(Self { sampling, span_name, span_attributes })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut P::Plan) {
        if !matches!(self.sampling, Sampling::Off) {
            plan.add_session_logger(self.clone());
        }
    }
}

impl<S: TracedSession> Sampling<S> {
    fn resolve<P: Protocol<Session = S>>(word: &Word, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        match &*word.bytes {
            b"on" => Ok(Self::On),
            b"off" => Ok(Self::Off),
            text if text.contains(&b'$') => Ok(Self::Variable(cx.template(word)?)),
            _ => Err(super::invalid_sampling(word)),
        }
    }
}

impl<S: TracedSession> SessionLogger<S> for SessionOtel<S> {
    fn record(&self, s: &S) {
        let is_sampled = match &self.sampling {
            Sampling::Off => false,
            Sampling::On => true,
            Sampling::Variable(value) => matches!(&*value.value(s), b"on" | b"1"),
        };
        if !is_sampled {
            return;
        }
        let Some(exporter) = s.shared_objects().find::<SessionExporter>(b"") else { return };
        let mut spans = EncodedSpans::default();
        spans.reserve(SIZE);
        spans.add(|span| self.encode(s, span));
        // The task looks at the queue by itself.
        let _ = exporter.queues.of_loop(0).push(&exporter.target, &spans);
    }
}

impl<S: TracedSession> SessionOtel<S> {
    fn encode(&self, s: &S, span: &mut Message<'_>) {
        let trace = RequestTrace::default();
        let (now, wall) = (tw_rt::clock::precise(), tw_rt::clock::wall_precise());
        span.bytes(1, &trace.trace_id);
        span.bytes(2, &trace.span_id);
        match &self.span_name {
            Some(name) => span.string(5, &name.value(s)),
            None => span.string(5, format!("{} session", s.protocol()).as_bytes()),
        }
        span.varint(6, SERVER);
        span.fixed64(7, unix_ns(s.began(), now, wall));
        span.fixed64(8, unix_ns(now, now, wall));
        span.fixed32(16, SAMPLED);
        let mut attributes = SessionAttributes { span, custom: &self.span_attributes };
        attributes.facts(s);
        let mut value = Vec::new();
        for (name, template) in &*self.span_attributes {
            value.clear();
            template.eval(s, &mut value);
            push_attribute(span, 9, name, |m| m.string(1, cut(&value)));
        }
        if s.status() >= 500 {
            span.message(15, |m| m.varint(3, ERROR));
        }
    }
}

/// Writer of attributes, of which those that the configuration sets are left out.
struct SessionAttributes<'a, 'm, S> {
    span: &'a mut Message<'m>,
    custom: &'a [SpanAttribute<S>],
}

impl<S: TracedSession> SessionAttributes<'_, '_, S> {
    fn facts(&mut self, s: &S) {
        self.text("client.address", s.client_text());
        self.text("network.peer.address", s.peer_text());
        let port = |addr: Option<SocketAddr>| addr.map(|addr| u64::from(addr.port()));
        self.number("network.peer.port", port(s.peer().inet()));
        self.number("server.port", port(s.local_addr().inet()));
        let protocol = s.protocol();
        self.text("network.transport", if protocol == "udp" { "udp" } else { "tcp" });
        if !matches!(protocol, "tcp" | "udp") {
            self.text("network.protocol.name", protocol);
        }
        if !s.upstream().is_empty() {
            self.text("tailwater.upstream.address", s.upstream());
        }
        let (received, sent) = s.traffic();
        self.number("tailwater.session.status", Some(u64::from(s.status())));
        self.number("tailwater.session.received", Some(received));
        self.number("tailwater.session.sent", Some(sent));
    }

    fn is_custom(&self, key: &str) -> bool {
        self.custom.iter().any(|(name, _)| **name == *key.as_bytes())
    }

    fn text(&mut self, key: &str, value: &str) {
        if !self.is_custom(key) {
            push_attribute(self.span, 9, key.as_bytes(), |m| m.string(1, cut(value.as_bytes())));
        }
    }

    fn number(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value.filter(|_| !self.is_custom(key)) {
            push_attribute(self.span, 9, key.as_bytes(), |m| m.varint(3, value));
        }
    }
}
