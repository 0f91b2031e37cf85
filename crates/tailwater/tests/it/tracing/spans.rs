//! Spans and their attributes.

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::otlp::{Collector, ExportedSpan};
use tw_testkit::ports::Port;
use tw_testkit::{Client, wait};

use super::{named, traced};
use crate::support::{get, request, server, start};

#[test]
fn request_has_the_attributes_of_nginx_and_of_the_conventions() {
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        "otel_service_name shop; otel_resource_attr deployment.environment test;",
        "server_name shop.example; location /ok { return 200 'fine'; } location /err { return 500; }",
    );
    let mut client = server.connect().unwrap();
    client.send("GET /ok?a=b HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: a\\test\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().text(), "fine");
    let batch = collector.batch().unwrap();
    assert_eq!(batch.path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(batch.fields["content-type"], "application/grpc");
    assert_eq!(batch.resource["service.name"], "shop");
    assert_eq!(batch.resource["deployment.environment"], "test");
    assert_eq!(batch.scope, "tailwater");
    let [span] = &batch.spans[..] else { panic!("{batch:#?}") };
    assert_eq!((span.name.as_str(), span.kind, span.status), ("/ok", 2, 0));
    assert_eq!((span.trace_id.len(), span.span_id.len(), span.parent_id.as_str()), (32, 16, ""));
    let (began, ended) = span.times;
    assert!(began > 1_600_000_000_000_000_000 && began <= ended);
    let port = server.addr().port().to_string();
    let peer = client.local_addr().unwrap().port().to_string();
    for (key, value) in [
        ("http.method", "GET"),
        ("http.target", "/ok?a=b"),
        ("http.route", "/ok"),
        ("http.scheme", "http"),
        ("http.flavor", "1.1"),
        ("http.user_agent", "a\\test"),
        ("http.request_content_length", "0"),
        ("http.response_content_length", "4"),
        ("http.status_code", "200"),
        ("net.host.name", "shop.example"),
        ("net.host.port", &port),
        ("net.sock.peer.addr", "127.0.0.1"),
        ("net.sock.peer.port", &peer),
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("url.path", "/ok"),
        ("url.query", "a=b"),
        ("url.scheme", "http"),
        ("server.address", "localhost"),
        ("server.port", "8080"),
        ("client.address", "127.0.0.1"),
        ("network.peer.address", "127.0.0.1"),
        ("network.peer.port", &peer),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "a\\test"),
        ("error.type", ""),
    ] {
        assert_eq!(span.attribute(key), value, "{key}");
    }
    assert_eq!(get(&server, "/err").status, 500);
    let [span] = &collector.spans(1)[..] else { panic!("one span") };
    assert_eq!((span.status, span.attribute("error.type")), (2, "500"));
}

#[test]
fn name_and_attributes_are_configured() {
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        "",
        "otel_span_attr of.server $server_port;
         location /a { otel_span_name \"$request_method $uri\"; return 204; }
         location /b { otel_span_attr http.response.header.x-a $sent_http_x_a; otel_span_attr http.route mine;
             add_header X-A 1; return 204; }
         location /off { otel_trace off; return 204; }",
    );
    get(&server, "/off");
    get(&server, "/a");
    let [span] = &collector.spans(1)[..] else { panic!("one span") };
    assert_eq!(span.name, "GET /a");
    assert_eq!(span.attribute("of.server"), server.addr().port().to_string());
    get(&server, "/b");
    let [span] = &collector.spans(1)[..] else { panic!("one span") };
    assert_eq!(span.name, "/b");
    assert_eq!(span.attribute("http.response.header.x-a"), "[1]");
    assert_eq!((span.attribute("http.route"), span.attribute("of.server")), ("mine", ""));
}

#[test]
fn request_lookup_attempt_and_disk_wait_are_spans_of_one_trace() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (addr, _) = counting(|conn, _, _| conn.answer("Cache-Control: max-age=60\r\n", "fresh"));
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        "proxy_cache_path cache keys_zone=one:1m;",
        &format!(
            "root {}; location / {{ try_files $uri @up; }}
             location @up {{ proxy_pass http://{addr}; proxy_cache one; }}",
            disk.path().display()
        ),
    );
    let stall = disk.on(Op::Lookup).inject(Fault::Stall);
    let mut client = server.connect().unwrap();
    client.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    stall.lift();
    assert_eq!(client.read_response().unwrap().text(), "fresh");
    let spans = collector.spans(4);
    let root = named(&spans, "@up");
    assert_eq!(root.kind, 2);
    let lookup = named(&spans, "cache lookup");
    assert_eq!((lookup.kind, lookup.attribute("tailwater.cache.status")), (1, "MISS"));
    let attempt = named(&spans, &format!("GET {addr}"));
    assert_eq!((attempt.kind, attempt.status), (3, 0));
    assert_eq!(attempt.attribute("http.response.status_code"), "200");
    assert_eq!(attempt.attribute("server.address"), "127.0.0.1");
    assert_eq!(attempt.attribute("server.port"), addr.port().to_string());
    assert_eq!(attempt.attribute("url.full"), format!("http://{addr}/a"));
    assert_eq!(attempt.events, ["connected", "response head"]);
    let waited = named(&spans, "disk wait");
    assert!(["Stat", "Open"].contains(&waited.attribute("tailwater.disk.operation")), "{waited:#?}");
    assert!(root.attribute("tailwater.disk.waits").parse::<u32>().unwrap() > 0);
    for span in &spans {
        assert_eq!(span.trace_id, root.trace_id, "{span:#?}");
        assert!(span.times.0 <= span.times.1 && root.times.0 <= span.times.0 && span.times.1 <= root.times.1);
    }
    for child in [lookup, attempt, waited] {
        assert_eq!(child.parent_id, root.span_id, "{child:#?}");
    }
    // A hit asks no upstream server.
    get(&server, "/a");
    let spans = collector.spans(2);
    assert_eq!(named(&spans, "cache lookup").attribute("tailwater.cache.status"), "HIT");
    assert!(spans.iter().all(|span| span.kind != 3), "{spans:#?}");
}

#[test]
fn each_attempt_is_a_span() {
    let (good, _) = counting(|conn, _, _| conn.answer("", "good"));
    let (bad, _) = counting(|conn, _, _| conn.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"));
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        &format!("upstream u {{ server {bad}; server {good} backup; }}"),
        "location / { proxy_pass http://u; proxy_next_upstream http_503; }",
    );
    assert_eq!(get(&server, "/").text(), "good");
    let spans = collector.spans(3);
    let first = named(&spans, &format!("GET {bad}"));
    let second = named(&spans, &format!("GET {good}"));
    assert_eq!((first.status, first.attribute("http.response.status_code")), (2, "503"));
    assert_eq!((second.status, second.attribute("http.request.resend_count")), (0, "1"));
    assert_ne!(first.span_id, second.span_id);
}

#[test]
fn attempts_of_each_pass_have_its_url() {
    let (good, _) = counting(|conn, _, _| conn.answer("", "good"));
    let (bad, _) = counting(|conn, _, _| conn.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"));
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        "",
        &format!(
            "location / {{ proxy_pass http://{bad}/first/; proxy_intercept_errors on; error_page 503 = @up; }}
             location @up {{ rewrite ^ /second break; proxy_pass http://{good}; }}"
        ),
    );
    assert_eq!(get(&server, "/a").text(), "good");
    let spans = collector.spans(3);
    let first = named(&spans, &format!("GET {bad}"));
    let second = named(&spans, &format!("GET {good}"));
    assert_eq!(first.attribute("url.full"), format!("http://{bad}/first/a"));
    assert_eq!(second.attribute("url.full"), format!("http://{good}/second"));
    // A request to the next location is not a resend of the first one.
    assert_eq!(second.attribute("http.request.resend_count"), "");
    assert_ne!(first.span_id, second.span_id);
}

#[test]
fn unreachable_server_is_an_attempt_with_an_error() {
    let closed = Port::reserve().unwrap();
    let collector = Collector::grpc(Vec::new());
    let server =
        traced(&collector, "", &format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", closed.number()));
    assert_eq!(get(&server, "/").status, 502);
    let spans = collector.spans(2);
    let attempt = spans.iter().find(|span| span.kind == 3).unwrap();
    assert_eq!((attempt.status, attempt.attribute("http.response.status_code")), (2, ""));
    assert!(attempt.attribute("error.type").contains("refused"), "{attempt:#?}");
}

#[test]
fn subrequest_is_a_span_below_its_parent() {
    let (addr, _) = counting(|conn, _, _| conn.answer("", "yes"));
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        "",
        &format!(
            "location / {{ auth_request /auth; return 200 page; }}
             location = /page {{ auth_request /auth; empty_gif; }}
             location = /auth {{ proxy_pass http://{addr}; }}"
        ),
    );
    assert_eq!(get(&server, "/page").status, 200);
    let spans = collector.spans(3);
    let root = named(&spans, "/page");
    let part = named(&spans, "/auth");
    assert_eq!((root.kind, part.kind), (2, 1));
    assert_eq!(part.parent_id, root.span_id);
    let attempt = spans.iter().find(|span| span.kind == 3).unwrap();
    assert_eq!(attempt.parent_id, part.span_id);
    let ids = |span: &ExportedSpan| span.trace_id.clone();
    assert!(spans.iter().all(|span| ids(span) == ids(root)));
}

#[test]
fn sampling_follows_a_variable() {
    let collector = Collector::grpc(Vec::new());
    let server = start(
        server(),
        &format!(
            "otel_exporter {{ endpoint {}; interval 10ms; }}
             map $arg_s $sampled {{ yes on; 1 1; default off; }}
             server {{ listen 127.0.0.1:{{port}}; otel_trace $sampled; location / {{ return 204; }} }}",
            collector.addr
        ),
    );
    for target in ["/?s=no", "/", "/?s=yes", "/?s=1"] {
        assert_eq!(Client::get(server.addr(), target).unwrap().status, 204);
    }
    let targets: Vec<_> =
        collector.spans(2).iter().map(|span| span.attribute("http.target").to_owned()).collect();
    assert_eq!(targets, ["/?s=yes", "/?s=1"]);
    assert_eq!(request(&server, "GET /", &[]).status, 204);
    assert!(collector.batches().is_empty());
}
