//! Spans of sessions of `stream` and `mail`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use tw_testkit::Server;
use tw_testkit::otlp::Collector;

use super::named;
use crate::support::metrics::try_metric;
use crate::support::server;

/// Starts a server that exports to `collector`, with these blocks beside `http`.
fn traced(collector: &Collector, blocks: &str) -> Server {
    let http = format!(
        "http {{ otel_exporter {{ endpoint {}; interval 10ms; }}
         server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} }} }}",
        collector.addr
    );
    server().start(&format!("{http} {blocks}")).unwrap()
}

/// Sends a line, and reads to the end of the connection.
fn talk(server: &Server, index: usize, line: &str) -> String {
    let mut stream = TcpStream::connect(server.addr_of(index)).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    BufReader::new(stream).lines().map_while(Result::ok).collect::<Vec<_>>().join("|")
}

#[test]
fn sessions_have_one_span_each() {
    let collector = Collector::grpc(Vec::new());
    let server = traced(
        &collector,
        "stream {
             otel_trace on;
             server { listen 127.0.0.1:{port1}; return hello; }
             server { listen 127.0.0.1:{port2}; otel_trace off; return hello; }
         }
         mail {
             auth_http 127.0.0.1:1; otel_trace $traced; otel_span_name mail; otel_span_attr user.name $mail_user;
             map $remote_addr $traced { 127.0.0.1 on; }
             server { listen 127.0.0.1:{port3}; protocol pop3; }
         }",
    );
    assert_eq!(talk(&server, 2, ""), "hello");
    assert_eq!(talk(&server, 1, ""), "hello");
    let answer = talk(&server, 3, "USER joe\r\nPASS secret\r\n");
    assert!(answer.ends_with("-ERR internal server error"), "{answer}");
    let spans = collector.spans(2);
    let stream = named(&spans, "tcp session");
    assert_eq!(stream.attributes["client.address"], "127.0.0.1");
    assert_eq!(stream.attributes["tailwater.session.status"], "200");
    assert_eq!(stream.attributes["tailwater.session.sent"], "5");
    assert_eq!((stream.status, stream.kind), (0, 2));
    let mail = named(&spans, "mail");
    assert_eq!(mail.attributes["network.protocol.name"], "pop3");
    assert_eq!(mail.attributes["user.name"], "joe");
    assert_eq!(mail.attributes["tailwater.session.status"], "502");
    assert_eq!(mail.status, 2);
    assert_ne!(mail.trace_id, stream.trace_id);
    let exported = || try_metric::<u64>(&server, "otel_spans_total{result=\"exported\"}").unwrap_or(0);
    assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, || exported() == 2), "{}", exported());
}
