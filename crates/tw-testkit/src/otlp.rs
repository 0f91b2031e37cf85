//! Scripted OpenTelemetry collectors over gRPC and HTTP, and a decoder of what they receive that shares nothing with the encoder
//! under test.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use h2::server::Builder;
use http::Response;
use rustls::ServerConfig;

use crate::http2::take;
use crate::http2_origin::{OriginRequest, http2_origin, secured_http2_origin, trailers};
use crate::origin;
use crate::wait;

/// Answer of a collector to one request.
#[derive(Debug, Clone)]
pub enum CollectorAnswer {
    /// Success.
    Accept,
    /// Success, with this many spans rejected.
    Reject(u8),
    /// Failure: `grpc-status` over gRPC, the status of the response over HTTP.
    Fail(u16),
    /// No answer.
    Silence,
    /// End of the connection.
    Close,
}

/// Collector that has a list of answers; after the last one it accepts.
pub struct Collector {
    /// Address of the collector.
    pub addr: SocketAddr,
    received: Receiver<ExportedBatch>,
}

/// Request that a collector has received.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportedBatch {
    /// Head of the request: path, then fields in lower case.
    pub path: String,
    /// Fields of the request.
    pub fields: BTreeMap<String, String>,
    /// Attributes of the resource.
    pub resource: BTreeMap<String, String>,
    /// Name of the instrumentation scope.
    pub scope: String,
    /// Spans.
    pub spans: Vec<ExportedSpan>,
    /// Sums of the points of each metric; of a histogram, those of its counts.
    pub metrics: BTreeMap<String, u64>,
}

/// Span as a collector has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportedSpan {
    /// Identifiers in hexadecimal; empty if there is none.
    pub trace_id: String,
    /// Identifier of the span.
    pub span_id: String,
    /// Identifier of the parent.
    pub parent_id: String,
    /// `tracestate`
    pub state: String,
    /// Name.
    pub name: String,
    /// Kind: 1 internal, 2 server, 3 client.
    pub kind: u64,
    /// Begin and end in nanoseconds since 1970.
    pub times: (u64, u64),
    /// Attributes; a list is written as `[a]`.
    pub attributes: BTreeMap<String, String>,
    /// Names of the events.
    pub events: Vec<String>,
    /// Code of the status: 2 is an error.
    pub status: u64,
    /// Flags.
    pub flags: u64,
}

type Script = Arc<Mutex<Box<dyn Iterator<Item = CollectorAnswer> + Send>>>;

fn script(answers: Vec<CollectorAnswer>) -> Script {
    Arc::new(Mutex::new(Box::new(answers.into_iter())))
}

fn next(script: &Script) -> CollectorAnswer {
    let mut answers = script.lock().unwrap_or_else(PoisonError::into_inner);
    answers.next().unwrap_or(CollectorAnswer::Accept)
}

impl Collector {
    /// Starts a collector that speaks gRPC.
    #[must_use]
    pub fn grpc(answers: Vec<CollectorAnswer>) -> Self {
        let (sender, received) = channel();
        let script = script(answers);
        let addr =
            http2_origin(Builder::new(), move |request| answer_grpc(request, sender.clone(), next(&script)));
        Self { addr, received }
    }

    /// Starts a collector that speaks gRPC over TLS.
    #[must_use]
    pub fn secured_grpc(config: Arc<ServerConfig>) -> Self {
        let (sender, received) = channel();
        let addr = secured_http2_origin(config, move |request| {
            answer_grpc(request, sender.clone(), CollectorAnswer::Accept)
        });
        Self { addr, received }
    }

    /// Starts a collector that speaks HTTP.
    #[must_use]
    pub fn http(answers: Vec<CollectorAnswer>) -> Self {
        let (sender, received) = channel();
        let script = script(answers);
        let (addr, _) = origin::counting(move |conn, head, _| {
            let (path, fields) = read_head(head);
            let length = fields.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length];
            if conn.reader.read_exact(&mut body).is_err() {
                return;
            }
            // A test that has ended wants nothing more.
            let _ = sender.send(decode(path, fields, &body));
            match next(&script) {
                CollectorAnswer::Accept => conn.answer("Content-Type: application/x-protobuf\r\n", ""),
                CollectorAnswer::Reject(spans) => conn.answer("", [0x0a, 2, 0x08, spans]),
                CollectorAnswer::Fail(status) => {
                    conn.send(format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n"));
                }
                CollectorAnswer::Silence => wait::pause(Duration::from_secs(3600)),
                CollectorAnswer::Close => {
                    // The next request on this connection finds it closed.
                    let _ = conn.reader.get_ref().shutdown(std::net::Shutdown::Both);
                }
            }
        });
        Self { addr, received }
    }

    /// The next request; `None` if none comes in time.
    pub fn batch(&self) -> Option<ExportedBatch> {
        self.received.recv_timeout(wait::TIMEOUT).ok()
    }

    /// Requests that have come already.
    pub fn batches(&self) -> Vec<ExportedBatch> {
        self.received.try_iter().collect()
    }

    /// Spans of the next requests, as soon as there are `count` of them or none comes in time.
    pub fn spans(&self, count: usize) -> Vec<ExportedSpan> {
        let mut spans = Vec::new();
        while spans.len() < count {
            let Some(batch) = self.batch() else { break };
            spans.extend(batch.spans);
        }
        spans
    }
}

async fn answer_grpc(mut request: OriginRequest, sender: Sender<ExportedBatch>, answer: CollectorAnswer) {
    let path = request.head.uri().path().to_owned();
    let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.as_str().to_owned(), value.to_str().unwrap_or_default().to_owned())
    };
    let fields = request.head.headers().iter().map(field).collect();
    let Ok((message, _)) = take(request.body).await else { return };
    // A test that has ended wants nothing more.
    let _ = sender.send(decode(path, fields, message.get(5..).unwrap_or_default()));
    let (status, rejected) = match answer {
        CollectorAnswer::Accept => (0, 0),
        CollectorAnswer::Reject(spans) => (0, spans),
        CollectorAnswer::Fail(status) => (status, 0),
        CollectorAnswer::Silence => return std::future::pending().await,
        CollectorAnswer::Close => {
            // A connection that is gone already is closed, too.
            let _ = request.commands.send(crate::http2_origin::ConnectionCommand::Abort);
            return;
        }
    };
    let head = Response::builder().header("content-type", "application/grpc").body(());
    let Ok(mut body) = request.respond.send_response(head.expect("a response"), false) else { return };
    let message: &[u8] = if rejected > 0 { &[0, 0, 0, 0, 4, 0x0a, 2, 0x08, rejected] } else { &[0; 5] };
    // The client may be gone.
    let _ = body.send_data(message.to_vec().into(), false);
    let _ = body.send_trailers(trailers(&[("grpc-status", &status.to_string())]));
}

fn read_head(head: &str) -> (String, BTreeMap<String, String>) {
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    (path, head.lines().skip(1).filter_map(field).collect())
}

/// Fields of a message by number, in order; the value is a number or bytes.
fn message(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let (first, rest) = bytes.split_first().expect("a varint has an end");
            *bytes = rest;
            value |= u64::from(first & 127) << shift;
            shift += 7;
            if first & 128 == 0 {
                return value;
            }
        }
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let length = match tag & 7 {
            0 => {
                fields.push((tag >> 3, varint(&mut bytes), Vec::new()));
                continue;
            }
            1 => 8,
            5 => 4,
            2 => varint(&mut bytes) as usize,
            wire => panic!("wire type {wire}"),
        };
        let (value, rest) = bytes.split_at(length);
        bytes = rest;
        let number = value.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        fields.push((tag >> 3, if tag & 7 == 2 { 0 } else { number }, value.to_vec()));
    }
    fields
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("strings are UTF-8")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn any_value(bytes: &[u8]) -> String {
    let fields = message(bytes);
    let (field, number, value) = fields.first().expect("a value");
    match field {
        1 => text(value),
        3 => number.to_string(),
        4 => f64::from_bits(*number).to_string(),
        5 => {
            let values: Vec<_> = message(value).iter().map(|(_, _, value)| any_value(value)).collect();
            format!("[{}]", values.join(","))
        }
        other => panic!("value {other}"),
    }
}

fn attribute(bytes: &[u8], into: &mut BTreeMap<String, String>) {
    let mut key = String::new();
    let mut found_text = String::new();
    for (field, _, value) in message(bytes) {
        match field {
            1 => key = text(&value),
            2 => found_text = any_value(&value),
            other => panic!("field {other} of an attribute"),
        }
    }
    assert!(into.insert(key.clone(), found_text).is_none(), "{key} is there twice");
}

fn span(bytes: &[u8]) -> ExportedSpan {
    let mut span = ExportedSpan::default();
    for (field, number, value) in message(bytes) {
        match field {
            1 => span.trace_id = hex(&value),
            2 => span.span_id = hex(&value),
            3 => span.state = text(&value),
            4 => span.parent_id = hex(&value),
            5 => span.name = text(&value),
            6 => span.kind = number,
            7 => span.times.0 = number,
            8 => span.times.1 = number,
            9 => attribute(&value, &mut span.attributes),
            11 => {
                let of_event = message(&value).into_iter().filter(|(field, ..)| *field == 2);
                span.events.extend(of_event.map(|(_, _, name)| text(&name)));
            }
            15 => {
                span.status =
                    message(&value).iter().find(|(field, ..)| *field == 3).map_or(0, |(_, code, _)| *code)
            }
            16 => span.flags = number,
            other => panic!("field {other} of a span"),
        }
    }
    span
}

/// Name of a metric, and the sum of its points.
fn metric(bytes: &[u8]) -> (String, u64) {
    let mut name = String::new();
    let mut sum = 0;
    for (field, _, value) in message(bytes) {
        match field {
            1 => name = text(&value),
            2 | 3 => drop(text(&value)),
            // Points of a gauge or a sum have integers in field 6, those of a histogram their count in field 4.
            5 | 7 | 9 => {
                let number = if field == 9 { 4 } else { 6 };
                let of_point =
                    |point: Vec<u8>| message(&point).into_iter().filter(move |(field, ..)| *field == number);
                sum = message(&value)
                    .into_iter()
                    .filter(|(field, ..)| *field == 1)
                    .flat_map(|(_, _, point)| of_point(point))
                    .map(|(_, value, _)| value)
                    .sum();
            }
            other => panic!("field {other} of a metric"),
        }
    }
    (name, sum)
}

/// Decodes an `ExportTraceServiceRequest`, or one of metrics.
fn decode(path: String, fields: BTreeMap<String, String>, body: &[u8]) -> ExportedBatch {
    let has_metrics = path.to_ascii_lowercase().contains("metrics");
    let mut batch = ExportedBatch {
        path,
        fields,
        resource: BTreeMap::new(),
        scope: String::new(),
        spans: Vec::new(),
        metrics: BTreeMap::new(),
    };
    for (field, _, resource_spans) in message(body) {
        assert_eq!(field, 1, "a request has resource_spans");
        for (field, _, value) in message(&resource_spans) {
            match field {
                1 => message(&value).iter().for_each(|(_, _, pair)| attribute(pair, &mut batch.resource)),
                2 => {
                    for (field, _, value) in message(&value) {
                        match field {
                            1 => {
                                batch.scope =
                                    message(&value).first().map_or(String::new(), |(_, _, name)| text(name))
                            }
                            2 if has_metrics => batch.metrics.extend([metric(&value)]),
                            2 => batch.spans.push(span(&value)),
                            other => panic!("field {other} of scope_spans"),
                        }
                    }
                }
                other => panic!("field {other} of resource_spans"),
            }
        }
    }
    batch
}

impl ExportedSpan {
    /// Value of an attribute; empty if there is none.
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}
