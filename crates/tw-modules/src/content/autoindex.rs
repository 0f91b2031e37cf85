//! `autoindex`: lists a directory that has no index file (nginx: ngx_http_autoindex_module). Content phase, after `index`.
//!
//! `directory` and `page` also serve other modules that list directories.

mod directory;
mod page;

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_http::Method;
use tw_log::{Level, Text};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

use self::page::ListingFormat;

pub(crate) use self::directory::{Directory, EntryLinks};
#[cfg(test)]
pub(crate) use self::page::tests::entry;
pub(crate) use self::page::{Extent, SizeFormat, TimeFormat, is_dir, measure, modern};

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
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.uri.path.last() != Some(&b'/') || !matches!(r.method(), Method::Get | Method::Head) {
            return Step::PASS;
        }
        Step::Wait(Box::pin(self.list(r)))
    }
}

impl Autoindex {
    async fn list(&self, r: &mut Request) -> Outcome {
        let format = match self.page(r) {
            Ok(format) => format,
            Err(status) => return Outcome::Status(status),
        };
        let directory = match Directory::read(r, EntryLinks::Followed).await {
            Ok(directory) => directory,
            Err(outcome) => return outcome,
        };
        let (content_type, charset) = format.content_type();
        let uri = r.uri.path.clone();
        match directory.page(r, move |entries, extent| format.make(&uri, entries, extent)).await {
            Ok(page) => Outcome::Respond(page.respond(r, content_type, charset)),
            Err(outcome) => outcome,
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
    if name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')) {
        Ok(name)
    } else {
        Err(BadCallback { what: "invalid", name })
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
            let result = callback(args.as_bytes()).map_err(|bad| bad.what);
            assert_eq!(result, expected.map(str::as_bytes), "{args}");
        }
    }
}
