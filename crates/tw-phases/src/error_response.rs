//! Responses made from a status: error pages, redirects, the built-in pages (nginx: special responses).

use bytes::Bytes;
use tw_http::escape::Escape;
use tw_http::{HeaderName, Method, Version, status_page};

use crate::user_agent;
use tw_request::body::Body;
use tw_request::config::error_page::{ErrorPage, ErrorPageStatus, Target};
use tw_request::config::location::ServerTokens;
use tw_request::generation::LoopGeneration;
use tw_request::plan::Outcome;
use tw_request::request::{After, ErrorPages, Request};

/// Makes a page longer than the 512 bytes under which Internet Explorer and Chrome show a page of their own.
const PADDING: [&[u8]; 6] =
    [b"<!-- padding, so that browsers show this page instead of their own -->\r\n"; 6];

/// Response to an error status.
pub enum ErrorResponse {
    /// A response.
    Respond(Body),
    /// Another step of the request: the error page.
    Again(Outcome),
}

/// Answers `r` with `status`: by its error page if it has one, else with the built-in page.
pub fn respond(r: &mut Request, status: u16, generation: &LoopGeneration) -> ErrorResponse {
    if matches!(status, 408 | 444 | 499) || r.state.after == After::Abort {
        // The client is gone, or gets no response (408, 444): the status is only for the access log.
        if status != 499
            && r.plan().core.send.reset_timedout_connection
            && let Some(wire) = r.wire().get()
        {
            wire.reset_on_close();
        }
        r.state.after = After::Abort;
        r.response.status = status;
        return ErrorResponse::Respond(Body::Empty);
    }
    r.state.error_status = Some(status);
    match status {
        400 | 413 | 414 | 494..=497 | 500 | 501 => r.state.after = r.state.after.or_close(),
        _ => {}
    }
    r.response.content_type = Bytes::new();
    r.response.charset = Bytes::new();
    // The error page replaces the response found, so the encoding of that response does not apply to it.
    r.response.fields.remove_known(HeaderName::ContentEncoding);
    if r.state.error_pages == ErrorPages::Allowed {
        let core = generation.plan(r.route.plan).core.clone();
        if !core.recursive_error_pages && !core.error_pages.is_empty() {
            r.state.error_pages = ErrorPages::Used;
        }
        if let Some(page) = core.error_pages.iter().find(|page| page.codes.contains(&status)) {
            return error_page(r, page, status);
        }
    }
    if matches!(status, 301 | 302) && is_refreshed(r) {
        return ErrorResponse::Respond(refresh(r));
    }
    ErrorResponse::Respond(builtin(r, status))
}

/// Returns true if a redirect is sent as a page to this browser.
fn is_refreshed(r: &Request) -> bool {
    r.plan().core.msie.refresh && user_agent::is_msie(user_agent(r))
}

/// A page that goes to where a redirect leads.
fn refresh(r: &mut Request) -> Body {
    let mut page = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    Escape::Refresh.push(&std::mem::take(&mut r.response.location), &mut page);
    page.extend_from_slice(b"\"></head><body></body></html>\r\n");
    html(r, 200, page)
}

fn user_agent(r: &Request) -> &[u8] {
    r.head.field_known(HeaderName::UserAgent).unwrap_or_default()
}

/// The built-in page of `status`, or nothing for a status without one.
pub fn builtin(r: &mut Request, status: u16) -> Body {
    let shown = status_page::wire_status(status);
    let mut page = Vec::new();
    if status_page::push(status, &String::from_utf8_lossy(&server_name(r)), &mut page) {
        let may_be_hidden =
            status >= 400 && r.plan().core.msie.padding && r.head.version() != Version::HTTP_09;
        if may_be_hidden && user_agent::shows_own_pages(user_agent(r)) {
            page.extend(PADDING.concat());
        }
        return html(r, shown, page);
    }
    head(r, shown);
    Body::Empty
}

/// Makes `page` the response.
fn html(r: &mut Request, status: u16, page: Vec<u8>) -> Body {
    head(r, status);
    r.response.content_type = Bytes::from_static(b"text/html");
    Body::Bytes(page.into())
}

/// Resets the head of the response to that of a built-in page.
fn head(r: &mut Request, status: u16) {
    r.state.error_status = Some(status);
    r.response.set_status(status);
    r.response.last_modified = None;
    r.response.fields.remove(b"ETag");
    r.response.fields.remove(b"Accept-Ranges");
}

/// The redirect from `/dir` to `/dir/`.
pub fn add_slash(r: &mut Request) -> Outcome {
    let mut location = Vec::with_capacity(r.uri.path.len() + 1);
    Escape::Uri.push(&r.uri.path, &mut location);
    location.push(b'/');
    if !r.uri.args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&r.uri.args);
    }
    r.response.location = location.into();
    Outcome::Status(301)
}

/// The name of the server as `Server` and the pages show it.
pub fn server_name(r: &Request) -> Bytes {
    match &r.plan().core.server_tokens {
        ServerTokens::On => Bytes::from_static(concat!("tailwater/", env!("CARGO_PKG_VERSION")).as_bytes()),
        ServerTokens::Build => {
            Bytes::from_static(concat!("tailwater/", env!("CARGO_PKG_VERSION"), " (Linux)").as_bytes())
        }
        ServerTokens::Off => Bytes::from_static(b"tailwater"),
        ServerTokens::Text(text) => match text.value(r) {
            value if value == b"off" => Bytes::from_static(b"tailwater"),
            value => value.into(),
        },
    }
}

fn error_page(r: &mut Request, page: &ErrorPage, status: u16) -> ErrorResponse {
    match page.answer {
        ErrorPageStatus::Same => r.state.error_status = Some(status_page::wire_status(status)),
        ErrorPageStatus::Own => r.state.error_status = None,
        ErrorPageStatus::Code(code) => r.state.error_status = Some(code),
    }
    let text = match &page.target {
        Target::Named(name) => return ErrorResponse::Again(Outcome::Named(name.clone())),
        Target::Path(text) | Target::Url(text) => text.value(r),
    };
    if text.first() == Some(&b'/') {
        if r.method() != Method::Head {
            r.state.method = Some(Method::Get);
        }
        let (path, args) = match text.iter().position(|b| *b == b'?') {
            Some(at) => (text[..at].to_vec(), text[at + 1..].to_vec()),
            None => (text, Vec::new()),
        };
        return ErrorResponse::Again(Outcome::Redirect { path, args });
    }
    if text.first() == Some(&b'@') {
        return ErrorResponse::Again(Outcome::Named(text.into()));
    }
    r.response.location = text.into();
    let redirect = match page.answer {
        ErrorPageStatus::Code(code @ (301 | 302 | 303 | 307 | 308)) => code,
        _ => 302,
    };
    if is_refreshed(r) {
        return ErrorResponse::Respond(refresh(r));
    }
    ErrorResponse::Respond(builtin(r, redirect))
}
