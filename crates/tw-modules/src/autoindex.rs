//! `autoindex`: lists a directory that has no index file (nginx: ngx_http_autoindex_module). Content phase, after `index`.
//!
//! The directory is read by one job of the disk and the page is made by another: neither runs on the loop, however long
//! the list is.

mod page;

use std::ffi::CString;
use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_disk::{JobSource, LIST_MAX, Listing};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_server::http::Http;
use tw_server::http::body::Body;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;

use self::page::{Extent, ListingFormat, SizeFormat, TimeFormat};
use crate::static_files;

/// Longest name of a JSONP callback, bytes.
const CALLBACK_MAX: usize = 128;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Listing as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<bool>,
    exact_size: Setting<bool>,
    format: Setting<Format>,
    localtime: Setting<bool>,
}

/// Listing at one location.
#[derive(Clone, Copy)]
pub(crate) struct Autoindex {
    on: bool,
    exact_size: bool,
    format: Format,
    localtime: bool,
}

/// `autoindex_format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Html,
    /// For people; nginx has no such format.
    Page,
    Json,
    Jsonp,
    Xml,
}

impl Settings<Http> for Autoindex {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("autoindex", ALL)
            .default("off")
            .doc("Lists directories that have no index file.")
            .set(|raw, node, _| raw.on.set_flag(node)),
        record::flag("autoindex_exact_size", ALL)
            .default("on")
            .doc("Shows sizes in bytes, else rounded to kilobytes, megabytes and gigabytes; of the formats html and page.")
            .set(|raw, node, _| raw.exact_size.set_flag(node)),
        record::new("autoindex_format", "html | page | xml | json | jsonp", ALL, Args::exact(1))
            .default("html")
            .since("1.7.9")
            .doc("Format of the list; page (Tailwater 0.2) is for people with any screen, jsonp takes the name of its function from the argument callback.")
            .set(|raw, node, _| {
                let formats = [
                    ("html", Format::Html),
                    ("page", Format::Page),
                    ("json", Format::Json),
                    ("jsonp", Format::Jsonp),
                    ("xml", Format::Xml),
                ];
                raw.format.set_one_of(node, &formats)
            }),
        record::flag("autoindex_localtime", ALL)
            .default("off")
            .doc("Shows times in the local time zone instead of UTC; of the formats html and page.")
            .set(|raw, node, _| raw.localtime.set_flag(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self {
            on: raw.on.or(outer.map(|o| o.on), false),
            exact_size: raw.exact_size.or(outer.map(|o| o.exact_size), true),
            format: raw.format.or(outer.map(|o| o.format), Format::Html),
            localtime: raw.localtime.or(outer.map(|o| o.localtime), false),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.on {
            plan.add(Phase::Content, self.clone());
        }
    }
}

impl Handler for Autoindex {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.uri.path.last() != Some(&b'/') || !matches!(r.method(), Method::Get | Method::Head) {
            return Step::PASS;
        }
        Step::Wait(Box::pin(self.list(r)))
    }
}

impl Autoindex {
    async fn list(&self, r: &mut Request) -> Outcome {
        let page = match self.page(r) {
            Ok(page) => page,
            Err(status) => return Outcome::Status(status),
        };
        let path = directory(r);
        let Some(disk) = r.disk().cloned() else { return Outcome::Status(500) };
        r.costs.account.source = JobSource::of(path.to_bytes());
        let home = r.client().home.clone();
        let list = async || disk.list(&mut r.costs.account, &path, LIST_MAX).await;
        let listing = match home.retry_with_descriptor(list).await {
            Ok(listing) => listing,
            Err(error) => return static_files::refuse(r, &path, &error),
        };
        report(r, &path, &listing);
        let (content_type, charset) = page.content_type();
        let uri = r.uri.path.clone();
        let make = move || {
            let extent = if listing.truncated { Extent::Truncated } else { Extent::Whole };
            let text = page.make(&uri, listing.entries, extent);
            // DIFF(nginx): a page with names that are UTF-8 says so.
            let is_utf8 = !text.is_ascii() && std::str::from_utf8(&text).is_ok();
            (text, if is_utf8 && content_type == "text/html" { "utf-8" } else { charset })
        };
        match disk.pool().run(&mut r.costs.account, make).await {
            Ok((text, charset)) => {
                r.out.status = 200;
                r.out.content_type = Bytes::from_static(content_type.as_bytes());
                r.out.charset = Bytes::from_static(charset.as_bytes());
                Outcome::Respond(Body::Bytes(text.into()))
            }
            Err(error) => static_files::refuse(r, &path, &error),
        }
    }

    /// Format of the listing. The error is the status of a request with a bad name for the callback.
    fn page(&self, r: &Request) -> Result<ListingFormat, u16> {
        let sizes = if self.exact_size { SizeFormat::Exact } else { SizeFormat::Rounded };
        let times = if self.localtime { TimeFormat::Local } else { TimeFormat::Utc };
        Ok(match self.format {
            Format::Html => ListingFormat::Html { sizes, times },
            Format::Page => ListingFormat::People { sizes, times },
            Format::Json => ListingFormat::Json,
            Format::Jsonp => match callback(&r.uri.args) {
                Ok(b"") => ListingFormat::Json,
                Ok(name) => ListingFormat::Jsonp(name.into()),
                Err(BadCallback { what, name }) => {
                    r.log(Level::Info, format_args!("client sent {what} callback name: \"{}\"", Text(name)));
                    return Err(400);
                }
            },
            Format::Xml => ListingFormat::Xml,
        })
    }
}

/// The directory of the request, without the slash at its end.
fn directory(r: &Request) -> CString {
    let mut path = Vec::new();
    let path = r.filename(&mut path).to_bytes();
    let path = match path {
        [shorter @ .., b'/'] if !shorter.is_empty() => shorter,
        path => path,
    };
    CString::new(path).unwrap_or_default()
}

/// Logs what a listing leaves out.
fn report(r: &Request, path: &CString, listing: &Listing) {
    let shown = Text(path.to_bytes());
    if let Some(errno) = listing.hidden_by {
        let text = tw_base::Errno::from(errno);
        r.log(Level::Crit, format_args!("stat() of entries of \"{shown}\" failed ({text})"));
    }
    if listing.truncated {
        r.log(
            Level::Warn,
            format_args!("\"{shown}\" has more than {LIST_MAX} entries, the others are not listed"),
        );
    }
}

/// Why a request for JSONP is refused.
#[derive(Debug, PartialEq, Eq)]
struct BadCallback<'a> {
    what: &'static str,
    name: &'a [u8],
}

/// The name of the callback in the arguments; empty if there is none.
fn callback(args: &[u8]) -> Result<&[u8], BadCallback<'_>> {
    let name = tw_http::target::arg(args, b"callback").unwrap_or_default();
    if name.len() > CALLBACK_MAX {
        return Err(BadCallback { what: "too long", name });
    }
    match name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')) {
        true => Ok(name),
        false => Err(BadCallback { what: "invalid", name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_callbacks() {
        let long = format!("callback={}", "a".repeat(129));
        let what = |what| Err(what);
        let table: [(&str, Result<&str, &str>); 10] = [
            ("", Ok("")),
            ("a=b", Ok("")),
            ("callback", Ok("")),
            ("callback=", Ok("")),
            ("callback=f", Ok("f")),
            ("a=b&CallBack=a.b_9&callback=x", Ok("a.b_9")),
            ("xcallback=f", Ok("")),
            ("callback=f()", what("invalid")),
            ("callback=%66", what("invalid")),
            (&long, what("too long")),
        ];
        for (args, expected) in table {
            let found = callback(args.as_bytes()).map_err(|bad| bad.what);
            assert_eq!(found, expected.map(str::as_bytes), "{args}");
        }
    }
}
