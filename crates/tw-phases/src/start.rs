//! Begin of a request: its head determines the server and the URI.

use tw_core::generation::DebugLines;
use tw_core::regex::BacktrackLimit;
use tw_core::session::Session;
use tw_log::{Level, Text};

use tw_request::generation::ListenGroup;
use tw_request::request::{Request, Route};

/// Takes the host over from the head and chooses the server by it.
pub fn choose_server(r: &mut Request, group: &ListenGroup) {
    let Request { head, route: Route { host, .. }, bindings, .. } = &mut *r;
    host.extend_from_slice(head.host().unwrap_or_default());
    match group.names.find(host, bindings.captures.get_mut()) {
        Ok(Some((server, regex))) => {
            r.route.server = server;
            if let Some(regex) = regex {
                r.store_named_captures(regex);
            }
        }
        Ok(None) => {}
        Err(BacktrackLimit) => {
            r.log(Level::Error, format_args!("regex of a server name exceeded its limit of backtracking"));
        }
    }
    r.route.plan = r.generation().server(r.route.server).plan;
}

/// Takes the URI over from the head.
pub fn set_uri(r: &mut Request) {
    let now = r.client().event_loop.files.borrow_mut().tick();
    r.context.read_at = now;
    let Request { head, uri, .. } = &mut *r;
    uri.path.extend_from_slice(head.path());
    uri.args.extend_from_slice(head.args());
    for line in r.head.ignored_lines() {
        r.log(
            Level::Info,
            format_args!(
                "client sent invalid header line: \"{}\" while reading {}",
                Text(line),
                r.head.reading()
            ),
        );
    }
    if r.generation().process.debug_lines == DebugLines::Possible {
        debug_head(r);
    }
}

/// Writes the request line and the fields into the debug log.
fn debug_head(r: &Request) {
    r.debug(format_args!("http request line: \"{}\"", Text(r.head.request_line())));
    for (name, value) in r.head.fields() {
        r.debug(format_args!("http header: \"{}: {}\"", Text(name), Text(value)));
    }
    r.debug(format_args!("http uri: \"{}\"", Text(&r.uri.path)));
    r.debug(format_args!("http args: \"{}\"", Text(&r.uri.args)));
    let name = &r.generation().server(r.route.server).settings.name;
    r.debug(format_args!("using server \"{}\"", Text(name)));
}
