//! Lines of a request in the error log of its location.

use std::fmt;

use tw_core::generation::DebugLines;
use tw_log::{Level, Text};

use super::Request;
use crate::http::upstream_state::UpstreamUrlText;

impl Request {
    /// Writes a line into the location's error log, with client, server and request as in nginx.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let message = format_args!("{message}{}", Context(self));
        self.client().write(&self.plan().core.error_log, level, message);
    }

    /// Writes a debug line into the location's error log, if that has level `debug`: one comparison if no log has.
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if self.generation().process.debug_lines == DebugLines::Possible {
            self.client().write(&self.plan().core.error_log, Level::Debug, message);
        }
    }
}

/// End of an error log line: `, client: …, server: …, request: "…", host: "…"`.
struct Context<'a>(&'a Request);

impl fmt::Display for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        write!(f, ", client: {}", r.client_text())?;
        write!(f, ", server: {}", Text(&r.generation().server(r.route.server).settings.name))?;
        if !r.head.request_line().is_empty() {
            write!(f, ", request: \"{}\"", Text(r.head.request_line()))?;
        }
        if r.is_subrequest() {
            write!(f, ", subrequest: \"{}\"", Text(&r.uri.path))?;
        }
        UpstreamUrlText(&r.facts.upstream).fmt(f)?;
        if let Some(host) = r.head.field_known(tw_http::Known::Host) {
            write!(f, ", host: \"{}\"", Text(host))?;
        }
        if let Some(referer) = r.head.field_known(tw_http::Known::Referer) {
            write!(f, ", referrer: \"{}\"", Text(referer))?;
        }
        if r.plan().core.error_log_request_id {
            write!(f, ", request_id: \"{:032x}\"", u128::from_be_bytes(r.id()))?;
            if let Some(trace) = r.sampled_trace() {
                let (trace_id, span_id) =
                    (u128::from_be_bytes(trace.trace_id), u64::from_be_bytes(trace.span_id));
                write!(f, ", trace_id: \"{trace_id:032x}\", span_id: \"{span_id:016x}\"")?;
            }
        }
        Ok(())
    }
}
