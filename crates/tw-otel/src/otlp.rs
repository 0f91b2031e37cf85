//! OTLP: requests that export spans, over gRPC or HTTP, and what their responses say.

use std::time::Duration;

use bytes::Bytes;
use tw_http::Fields;
use tw_log::Text;
use tw_proxy::own_request::OwnResponse;

use super::protobuf::{FieldValue, Message, next_field};

/// Transport of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// gRPC: HTTP/2, each message behind its length.
    Grpc,
    /// HTTP with Protocol Buffers.
    Http,
}

/// Kind of data that is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    /// Method of the service of gRPC.
    pub(super) fn grpc_path(self) -> &'static str {
        match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }

    /// Path of HTTP, if `traces` is that of traces.
    pub(super) fn http_path(self, traces: &str) -> String {
        match (self, traces.strip_suffix("/v1/traces")) {
            (Self::Metrics, Some(base)) => format!("{base}/v1/metrics"),
            _ => traces.to_owned(),
        }
    }
}

/// Bytes in front of a message of gRPC.
const GRPC_PREFIX: usize = 5;

/// Answer of a collector.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExportOutcome {
    /// The spans are taken, except as many as are rejected.
    Accepted { rejected: u64, message: String },
    /// The spans may be sent again later.
    Retry { after: Option<Duration>, why: String },
    /// The spans are not taken.
    Refused { why: String },
}

/// Body of a request for spans, which are fields of `ScopeSpans`; `resource` is the beginning of `ResourceSpans`, and `scope`
/// that of `ScopeSpans`. Spans are copied once: there may be megabytes of them. Messages of metrics have the same fields.
pub(super) fn body(transport: Transport, resource: &[u8], scope: &[u8], spans: &[u8]) -> Bytes {
    let mut of_scope = Vec::new();
    let mut of_resource = Vec::new();
    Message(&mut of_scope).length(2, scope.len() + spans.len());
    let resource_size = resource.len() + of_scope.len() + scope.len() + spans.len();
    Message(&mut of_resource).length(1, resource_size);
    let size = of_resource.len() + resource_size;
    let mut out = Vec::with_capacity(GRPC_PREFIX + size);
    if transport == Transport::Grpc {
        // The prefix of a gRPC message: the compressed flag, which is 0, and the length.
        out.push(0);
        out.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
    }
    for part in [&of_resource, resource, &of_scope, scope, spans] {
        out.extend_from_slice(part);
    }
    out.into()
}

/// Reads a response.
pub(super) fn outcome(transport: Transport, response: &OwnResponse) -> ExportOutcome {
    let OwnResponse { head, body } = response;
    match transport {
        Transport::Grpc => {
            // A failure may have no body: then the status stands in the head.
            let has_trailers = head.trailers.get(b"grpc-status").is_some();
            grpc(head.status, if has_trailers { &head.trailers } else { &head.fields }, body)
        }
        Transport::Http => http(head.status, &head.fields, body),
    }
}

/// Codes of gRPC after which the same spans may be sent again, as the specification of OTLP has them: CANCELLED,
/// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
const RETRYABLE_CODES: [u64; 7] = [1, 4, 8, 10, 11, 14, 15];

fn grpc(http_status: u16, fields: &Fields, body: &[u8]) -> ExportOutcome {
    let status = fields.get(b"grpc-status");
    let Some(code) = status.and_then(|status| str::from_utf8(status).ok()?.parse::<u64>().ok()) else {
        let why = format!("response with status {http_status} and without \"grpc-status\"");
        // A proxy in front of the collector answers without `grpc-status` while the collector is unavailable.
        return match http_status {
            429 | 502..=504 => ExportOutcome::Retry { after: None, why },
            _ => ExportOutcome::Refused { why },
        };
    };
    if code == 0 {
        return accepted(body.get(GRPC_PREFIX..).unwrap_or_default());
    }
    let message = fields.get(b"grpc-message").unwrap_or_default();
    let why = format!("gRPC status {code}: {}", Text(message));
    if RETRYABLE_CODES.contains(&code) {
        ExportOutcome::Retry { after: None, why }
    } else {
        ExportOutcome::Refused { why }
    }
}

fn http(status: u16, fields: &Fields, body: &[u8]) -> ExportOutcome {
    let why = || format!("HTTP status {status}");
    match status {
        200..=299 => accepted(body),
        429 | 502..=504 => {
            let seconds = fields.get(b"retry-after").and_then(|text| str::from_utf8(text).ok()?.parse().ok());
            ExportOutcome::Retry { after: seconds.map(Duration::from_secs), why: why() }
        }
        _ => ExportOutcome::Refused { why: why() },
    }
}

/// Reads `ExportTraceServiceResponse` or its like: field 1 says what was rejected (1: spans or points, 2: message).
fn accepted(mut body: &[u8]) -> ExportOutcome {
    let mut rejected = 0;
    let mut message = String::new();
    while let Some(field) = next_field(&mut body) {
        let (1, FieldValue::Bytes(mut partial)) = field else { continue };
        while let Some(field) = next_field(&mut partial) {
            match field {
                (1, FieldValue::Number(spans)) => rejected = spans,
                (2, FieldValue::Bytes(text)) => message = Text(text).to_string(),
                _ => {}
            }
        }
    }
    ExportOutcome::Accepted { rejected, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(list: &[(&'static str, &'static str)]) -> Fields {
        let mut fields = Fields::default();
        list.iter().for_each(|(name, value)| fields.append(*name, *value));
        fields
    }

    #[test]
    fn bodies_nest_spans_in_scope_and_resource() {
        let http = body(Transport::Http, b"\x0a\x00", b"\x0a\x00", b"\x12\x01s");
        assert_eq!(&http[..], b"\x0a\x09\x0a\x00\x12\x05\x0a\x00\x12\x01s");
        let grpc = body(Transport::Grpc, b"\x0a\x00", b"\x0a\x00", b"\x12\x01s");
        assert_eq!(&grpc[..5], [0, 0, 0, 0, 11]);
        assert_eq!(grpc[5..], http);
    }

    #[test]
    fn responses_tell_retries_from_refusals() {
        let retry = |outcome: &ExportOutcome| match outcome {
            ExportOutcome::Accepted { .. } => None,
            ExportOutcome::Retry { after, .. } => Some((true, *after)),
            ExportOutcome::Refused { .. } => Some((false, None)),
        };
        for (status, expected) in [
            (Some("0"), None),
            (Some("14"), Some((true, None))),
            (Some("3"), Some((false, None))),
            (Some("x"), Some((false, None))),
            (None, Some((false, None))),
        ] {
            let said: Vec<_> = status.iter().map(|status| ("grpc-status", *status)).collect();
            let export_outcome = grpc(200, &fields(&said), b"");
            assert_eq!(retry(&export_outcome), expected, "{status:?}");
        }
        assert_eq!(retry(&grpc(503, &fields(&[]), b"")), Some((true, None)));
        let after = fields(&[("Retry-After", "7")]);
        for (status, expected) in [
            (200, None),
            (429, Some((true, Some(Duration::from_secs(7))))),
            (503, Some((true, Some(Duration::from_secs(7))))),
            (500, Some((false, None))),
            (404, Some((false, None))),
        ] {
            assert_eq!(retry(&http(status, &after, b"")), expected, "{status}");
        }
        let message = fields(&[("grpc-status", "7"), ("grpc-message", "not today")]);
        let export_outcome = grpc(200, &message, b"");
        assert_eq!(export_outcome, ExportOutcome::Refused { why: "gRPC status 7: not today".to_owned() });
    }

    #[test]
    fn partial_success_is_read() {
        let body = b"\x0a\x07\x08\x03\x12\x03bad";
        let expected = ExportOutcome::Accepted { rejected: 3, message: "bad".to_owned() };
        assert_eq!(accepted(body), expected);
        let expected = ExportOutcome::Accepted { rejected: 0, message: String::new() };
        assert_eq!(accepted(b""), expected);
        assert_eq!(accepted(b"\xff\xff"), expected);
    }
}
