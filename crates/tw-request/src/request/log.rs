//! Lines of a request in the error log of its location.

use std::fmt;

use tw_core::generation::DebugLines;
use tw_core::log::visit_tags;
use tw_log::{ContextVisitor, Level, LineContext, Text};

use super::Request;

impl Request {
    /// Writes a line into the location's error log, with client, server and request as in nginx.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.client().write(&self.plan().core.error_log, level, message, Some(&Context(self)));
    }

    /// Writes a debug line into the location's error log, if that has level `debug`: one comparison if no log has.
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if self.generation().process.debug_lines == DebugLines::Possible {
            self.client().write(&self.plan().core.error_log, Level::Debug, message, None);
        }
    }
}

/// End of an error log line: `, client: …, server: …, request: "…", host: "…"`.
struct Context<'a>(&'a Request);

impl LineContext for Context<'_> {
    fn visit(&self, visitor: &mut dyn ContextVisitor) {
        let r = self.0;
        visitor.bare("client", format_args!("{}", r.client_text()));
        visitor
            .bare("server", format_args!("{}", Text(&r.generation().server(r.route.server).settings.name)));
        if !r.head.request_line().is_empty() {
            visitor.quoted("request", format_args!("{}", Text(r.head.request_line())));
        }
        if r.is_subrequest() {
            visitor.quoted("subrequest", format_args!("{}", Text(&r.uri.path)));
        }
        if let Some(url) = r.upstream.url_text() {
            visitor.quoted("upstream", format_args!("{url}"));
        }
        if let Some(host) = r.head.field_known(tw_http::HeaderName::Host) {
            visitor.quoted("host", format_args!("{}", Text(host)));
        }
        if let Some(referer) = r.head.field_known(tw_http::HeaderName::Referer) {
            visitor.quoted("referrer", format_args!("{}", Text(referer)));
        }
        let core = &r.plan().core;
        if core.error_log_request_id {
            visitor.quoted("request_id", format_args!("{:032x}", u128::from_be_bytes(r.id())));
            if let Some(trace) = r.sampled_trace() {
                visitor.quoted("trace_id", format_args!("{:032x}", u128::from_be_bytes(trace.trace_id)));
                visitor.quoted("span_id", format_args!("{:016x}", u64::from_be_bytes(trace.span_id)));
            }
        }
        visit_tags(&core.error_log_tags, r, visitor);
    }
}
