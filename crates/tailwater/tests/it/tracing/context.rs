//! `traceparent` and `tracestate`, from clients and to upstream servers.

use tw_testkit::origin::counting;
use tw_testkit::otlp::Collector;

use super::traced;
use crate::support::{request, server, start_server};

const PARENT: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01";
const STATE: &str = "tracestate: congo=ucfJifl5GOE,rojo=00f067aa0ba902b7";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

/// Values of both fields in a head.
fn fields_of(head: &str) -> (String, String) {
    let field = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let entry = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
        entry.map_or(String::new(), |(_, value)| value.to_owned())
    };
    (field("traceparent"), field("tracestate"))
}

#[test]
fn context_is_extracted_and_injected_as_configured() {
    let (addr, _) = counting(|conn, head, _| conn.answer("", head));
    let collector = Collector::grpc(Vec::new());
    let locations: String = ["ignore", "extract", "inject", "propagate"]
        .map(|word| format!("location /{word} {{ otel_trace_context {word}; proxy_pass http://{addr}; }}"))
        .concat();
    let server = traced(&collector, "", &locations);
    for word in ["ignore", "extract", "inject", "propagate"] {
        for fields in [&[PARENT, STATE][..], &[]] {
            let case = format!("{word} {fields:?}");
            let head = request(&server, &format!("GET /{word}"), fields).text();
            let spans = collector.spans(2);
            let [root, attempt] = [2, 3].map(|kind| spans.iter().find(|span| span.kind == kind).unwrap());
            let (parent, state) = fields_of(&head);
            let has_context = !fields.is_empty();
            if has_context && matches!(word, "extract" | "propagate") {
                assert_eq!(
                    (root.trace_id.as_str(), root.parent_id.as_str()),
                    (TRACE_ID, "b9c7c989f97918e1"),
                    "{case}"
                );
                assert_eq!(format!("tracestate: {}", root.state), STATE, "{case}");
                assert_eq!(root.flags, 0x301, "{case}");
            } else {
                assert_ne!(root.trace_id, TRACE_ID, "{case}");
                assert_eq!((root.parent_id.as_str(), root.flags), ("", 0x101), "{case}");
            }
            if matches!(word, "inject" | "propagate") {
                assert_eq!(parent, format!("00-{}-{}-01", root.trace_id, attempt.span_id), "{case}");
                assert_eq!(state, root.state, "{case}");
                assert_eq!(head.to_ascii_lowercase().matches("traceparent").count(), 1, "{case}");
            } else if has_context {
                assert_eq!(
                    (format!("traceparent: {parent}"), format!("tracestate: {state}")),
                    (PARENT.to_owned(), STATE.to_owned()),
                    "{case}"
                );
            } else {
                assert_eq!((parent, state), Default::default(), "{case}");
            }
        }
    }
}

#[test]
fn each_attempt_sends_its_own_span() {
    let (bad, _) = counting(|conn, _, _| conn.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"));
    let (good, _) = counting(|conn, head, _| conn.answer("", head));
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        &format!("upstream u {{ server {bad}; server {good} backup; }}"),
        "location / { otel_trace_context inject; proxy_pass http://u; proxy_next_upstream http_503; }",
    );
    let (parent, _) = fields_of(&request(&server, "GET /", &[]).text());
    let spans = collector.spans(3);
    let second = spans.iter().find(|span| !span.attribute("http.request.resend_count").is_empty()).unwrap();
    assert_eq!(parent, format!("00-{}-{}-01", second.trace_id, second.span_id));
}

#[test]
fn unsampled_context_says_so() {
    let (addr, _) = counting(|conn, head, _| conn.answer("", head));
    let server = start_server(
        server(),
        &format!(
            "location / {{ otel_trace_context propagate; proxy_pass http://{addr};
             add_header X-Ids $otel_trace_id-$otel_span_id; }}"
        ),
    );
    let response = request(&server, "GET /", &[PARENT]);
    let (parent, _) = fields_of(&response.text());
    assert_eq!(parent, format!("00-{}-00", response.field("X-Ids").unwrap()));
    assert!(parent.starts_with(&format!("00-{TRACE_ID}-")), "{parent}");
}

#[test]
fn variables_show_the_trace() {
    let server = start_server(
        server(),
        "add_header X-Ids \"$otel_trace_id $otel_span_id $otel_parent_id $otel_parent_sampled\";
         location /extract { otel_trace_context extract; return 204; }
         location / { return 204; }",
    );
    let ids = |target: &str, fields: &[&str]| {
        let response = request(&server, &format!("GET {target}"), fields);
        response.field("X-Ids").unwrap().to_owned()
    };
    let text = ids("/extract", &[PARENT]);
    let words: Vec<_> = text.split(' ').collect();
    assert_eq!((words[0], words[1].len(), words[2], words[3]), (TRACE_ID, 16, "b9c7c989f97918e1", "1"));
    let unsampled = PARENT.replace("e1-01", "e1-00");
    assert!(ids("/extract", &[&unsampled]).ends_with("b9c7c989f97918e1 0"));
    for (target, fields) in [
        ("/", &[PARENT][..]),
        ("/extract", &[]),
        ("/extract", &["traceparent: 00-junk"]),
        ("/extract", &[PARENT, PARENT]),
    ] {
        let text = ids(target, fields);
        let words: Vec<_> = text.split(' ').collect();
        assert_eq!(
            (words[0].len(), words[1].len(), words[2], words[3]),
            (32, 16, "", "0"),
            "{target} {fields:?}"
        );
        assert_ne!(words[0], TRACE_ID, "{target} {fields:?}");
    }
}

#[test]
fn explicit_field_wins_over_the_injected_one() {
    let (addr, _) = counting(|conn, head, _| conn.answer("", head));
    let server = start_server(
        server(),
        &format!(
            "location / {{ otel_trace_context inject; proxy_pass http://{addr}; proxy_set_header traceparent mine; }}"
        ),
    );
    assert_eq!(
        fields_of(&request(&server, "GET /", &[PARENT, STATE]).text()),
        ("mine".to_owned(), String::new())
    );
}
