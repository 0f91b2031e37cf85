//! The handler that shows the counters.

use std::sync::Arc;

use bytes::Bytes;
use tw_core::metrics::CONTENT_TYPE;
use tw_http::Method;
use tw_module_support::cross_origin::is_cross_origin;
use tw_module_support::page_policy;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::random_id::random_id;
use tw_request::request::Request;

use super::control::ControlRequest;
use super::directives::DisplayFormat;
use super::report::Report;
use super::settings::Vts;
use super::traffic_zone::TrafficZone;

/// The page; `@NONCE@` is replaced by the policy's nonce.
const PAGE: &str = include_str!("page.html");

/// Object that the end of a path names.
#[derive(Debug, PartialEq, Eq)]
enum Endpoint {
    /// None of the others.
    Default,
    Format(DisplayFormat),
    Control,
}

impl Endpoint {
    fn of(path: &[u8]) -> Self {
        if path.ends_with(b"/control") {
            return Self::Control;
        }
        let ends =
            |word: &str| path.strip_suffix(word.as_bytes()).is_some_and(|rest| rest.ends_with(b"/format/"));
        let named = DisplayFormat::WORDS.iter().find(|(word, _)| ends(word));
        named.map_or(Self::Default, |(_, format)| Self::Format(*format))
    }
}

/// Handler of the content phase.
pub(super) struct Display(pub(super) Arc<Vts>);

impl Handler for Display {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        let Some(zone) = &self.0.zone else { return Step::status(500) };
        r.response.status = 200;
        for (name, value) in [("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")] {
            r.response.fields.append(name, value);
        }
        let format = match Endpoint::of(&r.uri.path) {
            Endpoint::Control => return Step::Wait(Box::pin(control(&self.0, zone, r))),
            Endpoint::Format(format) => format,
            Endpoint::Default => self.0.format,
        };
        if format == DisplayFormat::Html {
            let nonce = random_id().map(|byte| format!("{byte:02x}")).concat();
            r.response.fields.append_copy("Content-Security-Policy", page_policy::policy(&nonce).as_bytes());
            return respond(r, b"text/html; charset=utf-8", PAGE.replace(page_policy::NONCE, &nonce));
        }
        Step::Wait(Box::pin(async move {
            let vts = &self.0;
            let mut report = Report::new(r, &self.0, zone);
            let mut out = String::with_capacity(16 << 10);
            let content_type: &'static [u8] = match format {
                DisplayFormat::Prometheus => {
                    report.write_prometheus(&mut out).await;
                    CONTENT_TYPE
                }
                DisplayFormat::Jsonp => {
                    out.push_str(&String::from_utf8_lossy(&vts.jsonp));
                    out.push('(');
                    report.write(&mut out).await;
                    out.push(')');
                    b"application/javascript"
                }
                DisplayFormat::Json | DisplayFormat::Html => {
                    report.write(&mut out).await;
                    b"application/json"
                }
            };
            r.response.content_type = Bytes::from_static(content_type);
            Outcome::Respond(Body::Bytes(out.into()))
        }))
    }
}

fn respond<'a>(r: &mut Request, content_type: &'static [u8], body: String) -> Step<'a> {
    r.response.content_type = Bytes::from_static(content_type);
    Step::Now(Outcome::Respond(Body::Bytes(body.into())))
}

async fn control(vts: &Vts, zone: &TrafficZone, r: &mut Request) -> Outcome {
    let request = ControlRequest::of(&r.uri.args);
    // DIFF(nginx): the module changes counters for the pages of others, too.
    if request.changes() && is_cross_origin(&r.head) {
        return Outcome::Status(403);
    }
    let mut report = Report::new(r, vts, zone);
    let mut out = String::new();
    request.run(&mut report, &mut out).await;
    r.response.content_type = Bytes::from_static(b"application/json");
    Outcome::Respond(Body::Bytes(out.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of the page.
    const PAGE_MAX: usize = 16 << 10;

    #[test]
    fn end_of_a_path_names_the_format() {
        for (path, expected) in [
            ("/status", Endpoint::Default),
            ("/status/", Endpoint::Default),
            ("/status/format/json", Endpoint::Format(DisplayFormat::Json)),
            ("/status/format/jsonp", Endpoint::Format(DisplayFormat::Jsonp)),
            ("/format/html", Endpoint::Format(DisplayFormat::Html)),
            ("/a/b/format/prometheus", Endpoint::Format(DisplayFormat::Prometheus)),
            ("/status/format/xml", Endpoint::Default),
            ("/status/json", Endpoint::Default),
            ("/status/control", Endpoint::Control),
        ] {
            assert_eq!(Endpoint::of(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn page_is_small_and_self_contained() {
        assert!(PAGE.len() < PAGE_MAX, "{} bytes", PAGE.len());
        assert_eq!(PAGE.matches(page_policy::NONCE).count(), 2);
        for outside in
            ["http:", "https:", "src=", "url(", "@import", " style=", "onclick", "innerHTML", "eval("]
        {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }
}
