//! Export of spans: transports, batches, and collectors that fail.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustls::ALL_VERSIONS;
use tw_testkit::origin::counting;
use tw_testkit::otlp::{Collector, CollectorAnswer};
use tw_testkit::tls::Authority;
use tw_testkit::{Server, Signal, ports::Port, wait};

use super::traced;
use crate::support::metrics::{metric, try_metric};
use crate::support::reload::reload_until;
use crate::support::{get, page, refusal_of, server, start};

const CONTENT: &str = "location / { return 200 ok; } location = /metrics { otel_trace off; metrics; }";

/// Server that a refused configuration would have.
const LISTENS: &str = "server { listen 127.0.0.1:{port}; }";

/// Starts a server with these lines in `otel_exporter`.
fn exporting(exporter: &str) -> Server {
    start(
        server(),
        &format!(
            "otel_exporter {{ {exporter} }} otel_trace on;
             server {{ listen 127.0.0.1:{{port}}; {CONTENT} }}"
        ),
    )
}

/// Waits until so many spans have this result.
fn wait_for_spans(server: &Server, result: &str, count: u64) {
    let series = format!("otel_spans_total{{result=\"{result}\"}}");
    let find = || try_metric::<u64>(server, &series).unwrap_or(0);
    assert!(wait::until(wait::TIMEOUT, || find() == count), "{result}: {}", find());
}

#[test]
fn spans_are_exported_over_http() {
    let collector = Collector::http(Vec::new());
    let server = exporting(&format!(
        "endpoint http://{}/v1/traces; interval 10ms; header X-Token \"a secret\";",
        collector.addr
    ));
    for _ in 0..2 {
        assert_eq!(get(&server, "/a").status, 200);
        let batch = collector.batch().unwrap();
        assert_eq!(batch.path, "/v1/traces");
        assert_eq!(batch.fields["content-type"], "application/x-protobuf");
        assert_eq!(batch.fields["x-token"], "a secret");
        assert_eq!(batch.resource["service.name"], "unknown_service:nginx");
        assert_eq!(batch.spans[0].name, "/");
    }
    wait_for_spans(&server, "exported", 2);
}

#[test]
fn spans_are_exported_over_tls() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let mut config = rustls::ServerConfig::clone(&Authority::server(ALL_VERSIONS, &made));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let collector = Collector::secured_grpc(Arc::new(config));
    let start = |trusted: &Authority| {
        start(
            server().file("ca.pem", trusted.pem()),
            &format!(
                "otel_exporter {{ endpoint https://localhost:{}; trusted_certificate ../ca.pem; interval 10ms; }}
                 otel_trace on; server {{ listen 127.0.0.1:{{port}}; {CONTENT} }}",
                collector.addr.port()
            ),
        )
    };
    let server = start(&authority);
    get(&server, "/");
    assert_eq!(collector.spans(1).len(), 1, "{}", server.error_log());
    let server = start(&Authority::new());
    get(&server, "/");
    server.wait_error_log("OTel export failure").unwrap();
    assert!(collector.batches().is_empty());
}

#[test]
fn batches_are_sent_when_full_or_due() {
    let collector = Collector::grpc(Vec::new());
    let server = exporting(&format!("endpoint {}; interval 1h; batch_size 3;", collector.addr));
    (0..7).for_each(|_| assert_eq!(get(&server, "/").status, 200));
    assert_eq!([(); 2].map(|()| collector.batch().unwrap().spans.len()), [3, 3]);
    wait_for_spans(&server, "exported", 6);
    assert_eq!(metric(&server, "otel_spans_queued"), 1);
}

#[test]
fn large_batch_fits_through_flow_control() {
    let collector = Collector::grpc(Vec::new());
    let server = exporting(&format!("endpoint {}; interval 1h; batch_size 200;", collector.addr));
    let mut client = server.connect().unwrap();
    for _ in 0..200 {
        let agent = "x".repeat(900);
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: {agent}\r\n\r\n")).unwrap();
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    assert_eq!(collector.batch().unwrap().spans.len(), 200);
}

#[test]
fn spans_wait_for_a_collector_that_is_down_and_are_dropped_when_too_many() {
    let closed = Port::reserve().unwrap();
    let server = exporting(&format!(
        "endpoint 127.0.0.1:{}; interval 1h; batch_size 2; batch_count 2;",
        closed.number()
    ));
    for _ in 0..20 {
        assert_eq!(page(&server, "/"), (200, "ok".to_owned()));
    }
    server.wait_error_log("OTel export failure: connect() failed (111: Connection refused)").unwrap();
    // Six spans are kept: two full batches, and the open one.
    wait_for_spans(&server, "dropped", 14);
    assert_eq!(metric(&server, "otel_spans_queued"), 6);
    assert!(metric(&server, "otel_export_failures_total") > 0);
}

#[test]
fn failed_export_is_repeated() {
    use CollectorAnswer::{Close, Fail, Reject};
    for (collector, scheme, path) in [
        (Collector::grpc(vec![Fail(14), Close, Reject(1)]), "", ""),
        (Collector::http(vec![Fail(503), Close, Reject(1)]), "http://", "/v1/traces"),
    ] {
        let server = exporting(&format!("endpoint {scheme}{}{path}; interval 10ms;", collector.addr));
        get(&server, "/");
        let batches = [(); 3].map(|()| collector.batch().unwrap());
        assert!(batches.iter().all(|batch| batch.spans == batches[0].spans));
        wait_for_spans(&server, "rejected", 1);
        assert_eq!(metric(&server, "otel_export_failures_total"), 2);
    }
}

#[test]
fn refused_export_is_not_repeated() {
    for (collector, scheme, path, why) in [
        (Collector::grpc(vec![CollectorAnswer::Fail(3)]), "", "", "gRPC status 3"),
        (Collector::http(vec![CollectorAnswer::Fail(400)]), "http://", "/v1/traces", "HTTP status 400"),
    ] {
        let server = exporting(&format!("endpoint {scheme}{}{path}; interval 10ms;", collector.addr));
        get(&server, "/");
        wait_for_spans(&server, "failed", 1);
        server.wait_error_log(&format!("OTel export failure: {why}")).unwrap();
        get(&server, "/");
        wait_for_spans(&server, "exported", 1);
    }
}

#[test]
fn silent_collector_holds_no_request() {
    let collector = Collector::http(vec![CollectorAnswer::Silence; 8]);
    let server = exporting(&format!("endpoint http://{}/v1/traces; interval 1ms;", collector.addr));
    get(&server, "/");
    assert!(collector.batch().is_some());
    for _ in 0..20 {
        assert_eq!(page(&server, "/"), (200, "ok".to_owned()));
    }
    // A loop that ends does not wait for it for long, either.
    let mut server = server;
    let asked = Instant::now();
    server.signal(Signal::QUIT).unwrap();
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
    assert!(asked.elapsed() < Duration::from_secs(15));
}

#[test]
fn spans_are_flushed_when_the_server_quits() {
    let collector = Collector::grpc(Vec::new());
    let mut server = exporting(&format!("endpoint {}; interval 1h;", collector.addr));
    get(&server, "/");
    server.signal(Signal::QUIT).unwrap();
    assert_eq!(collector.spans(1).len(), 1);
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
}

#[test]
fn fast_stop_ends_traced_requests_without_a_panic() {
    let (silent, request_count) = counting(|_, _, _| wait::pause(Duration::from_secs(3600)));
    let collector = Collector::grpc(Vec::new());
    let content = format!("location / {{ proxy_pass http://{silent}; }}");
    let mut server = traced(&collector, "", &content);
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || request_count.load(SeqCst) == 1));
    server.signal(Signal::TERM).unwrap();
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
    assert!(!server.error_log().contains("panic"), "{}", server.error_log());
}

#[test]
fn reload_changes_the_collector_and_loses_no_span() {
    let first = Collector::grpc(Vec::new());
    let second = Collector::http(Vec::new());
    let mut server = traced(&first, "", "location / { return 200 one; }");
    get(&server, "/");
    assert_eq!(first.spans(1).len(), 1);
    let conf = |endpoint: &str, interval: &str, text: &str| {
        format!(
            "http {{ otel_exporter {{ endpoint {endpoint}; interval {interval}; }} otel_trace on;
             server {{ listen 127.0.0.1:{{port}}; location / {{ return 200 {text}; }} }} }}"
        )
    };
    // Spans that wait for the first collector when the second one takes its place are sent to the first.
    reload_until(&mut server, &conf(&first.addr.to_string(), "1h", "two"), "/", "two");
    let endpoint = format!("http://{}/v1/traces", second.addr);
    reload_until(&mut server, &conf(&endpoint, "10ms", "three"), "/", "three");
    assert!(first.spans(8).len() >= 8);
    get(&server, "/");
    assert!(!second.spans(1).is_empty());
    // Without an exporter, nothing is exported any more.
    let conf = "http { otel_trace on; server { listen 127.0.0.1:{port}; location / { return 200 four; } } }";
    reload_until(&mut server, conf, "/", "four");
}

#[test]
fn metrics_are_exported_over_both_transports() {
    for (collector, scheme, path, expected) in [
        (
            Collector::grpc(Vec::new()),
            "",
            "",
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        ),
        (Collector::http(Vec::new()), "http://", "/a/v1/traces", "/a/v1/metrics"),
    ] {
        let server = start(
            server(),
            &format!(
                "otel_exporter {{ endpoint {scheme}{}{path}; }} otel_metrics on interval=50ms; otel_service_name a;
                 server {{ listen 127.0.0.1:{{port}}; {CONTENT} }}",
                collector.addr
            ),
        );
        get(&server, "/");
        let has_counted = || {
            let batch = collector.batch().unwrap();
            assert_eq!((batch.path.as_str(), batch.resource["service.name"].as_str()), (expected, "a"));
            batch.metrics["tailwater_requests_total"] > 0
                && batch.metrics["tailwater_event_loop_blocked_seconds"] > 0
        };
        assert!(wait::until(wait::TIMEOUT, has_counted));
        let exports = || metric(&server, "otel_metric_exports_total{result=\"success\"}");
        assert!(wait::until(wait::TIMEOUT, || exports() > 0));
    }
}

#[test]
fn failed_export_of_metrics_is_counted_and_holds_no_request() {
    let closed = Port::reserve().unwrap();
    let server = start(
        server(),
        &format!(
            "otel_exporter {{ endpoint 127.0.0.1:{}; }} otel_metrics on interval=10ms;
             server {{ listen 127.0.0.1:{{port}}; {CONTENT} }}",
            closed.number()
        ),
    );
    let failed = || try_metric::<u64>(&server, "otel_metric_exports_total{result=\"failed\"}").unwrap_or(0);
    assert!(wait::until(wait::TIMEOUT, || failed() > 2));
    assert_eq!(page(&server, "/"), (200, "ok".to_owned()));
    assert_eq!(server.error_log().matches("OTel export failure").count(), 1);
}

#[test]
fn mistakes_in_the_exporter_are_reported() {
    for (exporter, error) in [
        ("", "\"otel_exporter\" requires \"endpoint\""),
        ("endpoint;", "invalid number of arguments"),
        ("endpoint a:1; endpoint a:2;", "\"endpoint\" directive is duplicate"),
        ("endpoint a:1; batch_size 0;", "invalid value \"0\""),
        ("endpoint a:1; interval soon;", "\"interval\" directive invalid value"),
        ("endpoint a:99999;", "invalid port in \"endpoint a:99999\""),
        ("endpoint a:1; header \"a b\" c;", "invalid header name \"a b\""),
        ("endpoint a:1; colour red;", "unknown directive \"colour\" in \"otel_exporter\""),
        ("endpoint https://a:1; trusted_certificate none.pem;", "none.pem"),
    ] {
        let said = refusal_of(&format!("http {{ otel_exporter {{ {exporter} }} {LISTENS} }}"));
        assert!(said.contains(error), "{exporter}: {said}");
    }
    let said = refusal_of(&format!("http {{ otel_metrics on interval=0; {LISTENS} }}"));
    assert!(said.contains("invalid parameter \"interval=0\""), "{said}");
    let said = refusal_of(&format!("http {{ otel_trace maybe; {LISTENS} }}"));
    assert!(said.contains("invalid value \"maybe\""), "{said}");
}
