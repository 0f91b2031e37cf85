//! Traces of requests (`otel_trace`).

mod context;
mod export;
mod sessions;
mod spans;

use tw_testkit::Server;
use tw_testkit::otlp::{Collector, ExportedSpan};

use crate::support::{server, start};

/// Starts a server of one loop that exports to `collector` after 10 ms, with `http` and `content` in its blocks.
fn traced(collector: &Collector, http: &str, content: &str) -> Server {
    start(
        server(),
        &format!(
            "otel_exporter {{ endpoint {}; interval 10ms; }} otel_trace on; {http}
             server {{ listen 127.0.0.1:{{port}}; {content} }}",
            collector.addr
        ),
    )
}

/// The span of this name.
fn named<'a>(spans: &'a [ExportedSpan], name: &str) -> &'a ExportedSpan {
    let exported_span = spans.iter().find(|span| span.name == name);
    exported_span.unwrap_or_else(|| panic!("there is no span {name} among {spans:#?}"))
}
