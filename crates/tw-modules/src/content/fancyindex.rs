//! `fancyindex`: lists a directory that has no index file as a table that can be sorted (nginx: third-party module
//! ngx_http_fancyindex_module). Content phase, before `autoindex`.
//!
//! ```text
//! header: built in, or fancyindex_header     response of a URI, or a local file
//! path and table                             made by a job of the pool
//! footer: built in, or fancyindex_footer
//! ```

mod page;
mod sort;

use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, Span, record};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_core::regex::{Caseless, Regex};
use tw_disk::{Errno, FileKind, Op};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_module_support::date_format::DateZone;
use tw_module_support::file_response;
use tw_phases::subrequest::{ParentBody, Subrequest};
use tw_request::body::Body;
use tw_request::config::location::Location;
use tw_request::files;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Request, Uri};
use tw_request::vars::Template;

use self::page::FancyPage;
use self::sort::{Column, Order, Sorting};
use crate::content::autoindex::{Directory, EntryLinks, SizeFormat};

const ALL: u32 = HTTP | SERVER | LOCATION;
/// Format of times if none is given.
const TIME_FORMAT: &[u8] = b"%Y-%b-%d %H:%M";

/// Listing as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<bool>,
    default_sort: Setting<Sorting>,
    case_sensitive: Setting<bool>,
    directories_first: Setting<bool>,
    css_href: Setting<Arc<[u8]>>,
    exact_size: Setting<bool>,
    name_length: Setting<usize>,
    header: Setting<RawPart>,
    footer: Setting<RawPart>,
    show_path: Setting<bool>,
    show_dotfiles: Setting<bool>,
    ignore: Setting<Vec<(Box<[u8]>, Span)>>,
    hide_symlinks: Setting<bool>,
    hide_parent_dir: Setting<bool>,
    localtime: Setting<bool>,
    time_format: Setting<Arc<[u8]>>,
}

/// `fancyindex_header` or `fancyindex_footer` as written; an empty path is that of the part that is built in.
struct RawPart {
    path: Box<[u8]>,
    source: PartSource,
    span: Span,
}

/// Source of a header or footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartSource {
    Subrequest,
    Local,
}

/// Listing at one location.
pub(crate) struct FancyIndex {
    on: bool,
    sorting: Sorting,
    header: Part,
    footer: Part,
    /// Rules about symbolic links.
    links: EntryLinks,
    look: Arc<Look>,
}

/// Settings that only the page needs, in the job that makes it.
#[derive(Clone)]
struct Look {
    case_sensitive: bool,
    directories_first: bool,
    css_href: Arc<[u8]>,
    sizes: SizeFormat,
    /// Columns of a name; a longer one is cut.
    name_length: Option<usize>,
    show_path: bool,
    show_dotfiles: bool,
    /// Names that are not listed.
    ignore: Arc<[Arc<Regex>]>,
    hide_symlinks: bool,
    hide_parent_dir: bool,
    zone: DateZone,
    time_format: Arc<[u8]>,
}

/// Header or footer.
#[derive(Clone)]
enum Part {
    BuiltIn,
    /// Response of a URI of this server: path and arguments.
    Response(Arc<[u8]>),
    /// File, and the place of its directive.
    File(Template, Span),
}

/// A flag of the look: its directive and its documentation.
macro_rules! flag {
    ($name:literal, $default:literal, $field:ident, $doc:literal) => {
        record::flag($name, ALL).default($default).doc($doc).set(|raw, node, _| raw.$field.set_flag(node))
    };
}

impl Settings<Http> for FancyIndex {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        flag!("fancyindex", "off", on, "Lists directories that have no index file, in a table that can be sorted."),
        record::new("fancyindex_default_sort", "name | size | date | name_desc | size_desc | date_desc", ALL, Args::exact(1))
            .default("name")
            .doc("Order of a list for which a request names none; `?C=N&O=A` names one: column N, S or M, order A or D.")
            .set(|raw, node, _| raw.default_sort.set_one_of(node, sort::WORDS)),
        flag!("fancyindex_case_sensitive", "on", case_sensitive, "Sorts names by their bytes, else without regard to capitals."),
        flag!("fancyindex_directories_first", "on", directories_first, "Lists directories before files."),
        record::new("fancyindex_css_href", "uri", ALL, Args::exact(1))
            .default("\"\"")
            .doc("Style sheet of the built-in header, applied after the built-in style.")
            .set(|raw, node, _| raw.css_href.set_with(node, |node| Ok((*node.arg(0)?.bytes).into()))),
        flag!("fancyindex_exact_size", "on", exact_size, "Shows sizes in bytes, else rounded to kilobytes, megabytes and gigabytes."),
        record::number("fancyindex_name_length", ALL)
            .doc("Length at which names are cut; without it they are shown in full.")
            .set(|raw, node, _| raw.name_length.set_number(node)),
        record::new("fancyindex_header", "path [subrequest | local]", ALL, Args::range(1, 2))
            .default("\"\"")
            .doc("Replaces what comes before the path: the response of a URI, or a local file; empty for the built-in header.")
            .set(|raw, node, _| raw.header.set_with(node, read_part)),
        record::new("fancyindex_footer", "path [subrequest | local]", ALL, Args::range(1, 2))
            .default("\"\"")
            .doc("Replaces what comes after the table: the response of a URI, or a local file; empty for the built-in footer.")
            .set(|raw, node, _| raw.footer.set_with(node, read_part)),
        flag!("fancyindex_show_path", "on", show_path, "Writes the path and `</h1>` after the header; off needs a header of your own."),
        flag!("fancyindex_show_dotfiles", "off", show_dotfiles, "Lists names that begin with a dot."),
        record::new("fancyindex_ignore", "regex …", ALL, Args::at_least(1))
            .doc("Regular expressions of names that are not listed.")
            .set(|raw, node, _| {
                let words = node.args.iter().map(|word| (word.bytes.clone(), word.span));
                raw.ignore.extend(node, words);
                Ok(())
            }),
        flag!("fancyindex_hide_symlinks", "off", hide_symlinks, "Does not list symbolic links."),
        flag!("fancyindex_hide_parent_dir", "off", hide_parent_dir, "Shows no link to the directory above."),
        flag!("fancyindex_localtime", "off", localtime, "Shows times in the local time zone instead of UTC."),
        record::new("fancyindex_time_format", "format", ALL, Args::exact(1))
            .default("\"%Y-%b-%d %H:%M\"")
            .doc("Format of times, as strftime() has it.")
            .set(|raw, node, _| raw.time_format.set_with(node, |node| Ok((*node.arg(0)?.bytes).into()))),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let path_at = raw.show_path.span();
        let look = outer.map(|o| &*o.look);
        let on_or_off = |raw: Setting<bool>, of: fn(&Look) -> bool, default| raw.or(look.map(of), default);
        let exact_size = on_or_off(raw.exact_size, |o| o.sizes == SizeFormat::Exact, true);
        let localtime = on_or_off(raw.localtime, |o| o.zone == DateZone::Local, false);
        let hide_symlinks = on_or_off(raw.hide_symlinks, |o| o.hide_symlinks, false);
        let ignore = match raw.ignore.take() {
            Some(words) => compile(words, cx)?,
            None => look.map_or_else(|| [].into(), |o| o.ignore.clone()),
        };
        let header = Part::resolve(raw.header, outer.map(|o| &o.header), cx)?;
        let look = Look {
            case_sensitive: on_or_off(raw.case_sensitive, |o| o.case_sensitive, true),
            directories_first: on_or_off(raw.directories_first, |o| o.directories_first, true),
            css_href: raw.css_href.or_else(|| look.map(|o| o.css_href.clone()), || [].into()),
            sizes: if exact_size { SizeFormat::Exact } else { SizeFormat::Rounded },
            name_length: raw.name_length.take().or(look.and_then(|o| o.name_length)),
            show_path: on_or_off(raw.show_path, |o| o.show_path, true),
            show_dotfiles: on_or_off(raw.show_dotfiles, |o| o.show_dotfiles, false),
            ignore,
            hide_symlinks,
            hide_parent_dir: on_or_off(raw.hide_parent_dir, |o| o.hide_parent_dir, false),
            zone: if localtime { DateZone::Local } else { DateZone::Gmt },
            time_format: raw
                .time_format
                .or_else(|| look.map(|o| o.time_format.clone()), || TIME_FORMAT.into()),
        };
        if let (Some(at), false, Part::BuiltIn) = (path_at, look.show_path, &header) {
            let message = "\"fancyindex_show_path off\" needs a \"fancyindex_header\"";
            return Err(ConfError::new(message).at(at));
        }
        Ok(Self {
            on: raw.on.or(outer.map(|o| o.on), false),
            sorting: raw
                .default_sort
                .or(outer.map(|o| o.sorting), Sorting { by: Column::Name, order: Order::Ascending }),
            header,
            footer: Part::resolve(raw.footer, outer.map(|o| &o.footer), cx)?,
            links: if hide_symlinks { EntryLinks::Shown } else { EntryLinks::Followed },
            look: Arc::new(look),
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

    fn reach(&self, _: &Location, reach: &mut Reach) {
        for part in [&self.header, &self.footer] {
            if let (true, Part::File(path, at)) = (self.on, part) {
                reach.reads_file(path, Some(*at));
            }
        }
    }
}

fn read_part(node: &Node) -> Result<RawPart, ConfError> {
    let source = match node.args.get(1) {
        None => PartSource::Subrequest,
        Some(word) => word
            .one_of(&[("subrequest", PartSource::Subrequest), ("local", PartSource::Local)])
            .ok_or_else(|| node.invalid_parameter(word))?,
    };
    Ok(RawPart { path: node.arg(0)?.bytes.clone(), source, span: node.span })
}

fn compile(words: Vec<(Box<[u8]>, Span)>, cx: &mut Resolve<'_>) -> Result<Arc<[Arc<Regex>]>, ConfError> {
    let compile = |(word, span): (Box<[u8]>, Span)| {
        cx.regex(&word, Caseless::No).map_err(|error| {
            ConfError::new(format!("regex compilation failed: {error} in \"{}\"", Text(&word))).at(span)
        })
    };
    words.into_iter().map(compile).collect()
}

impl Part {
    fn resolve(raw: Setting<RawPart>, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let Some(RawPart { path, source, span }) = raw.take() else {
            return Ok(outer.cloned().unwrap_or(Self::BuiltIn));
        };
        Ok(match source {
            _ if path.is_empty() => Self::BuiltIn,
            PartSource::Subrequest => Self::Response((*path).into()),
            PartSource::Local => {
                let path = cx.full_path(&path);
                Self::File(cx.template_text(&path, Some(span))?, span)
            }
        })
    }

    /// The part as a body; `None` stands for the one that is built in, also where this one cannot be had.
    async fn body(&self, r: &mut Request) -> Option<Body> {
        match self {
            Self::BuiltIn => None,
            Self::Response(uri) => response(r, uri).await,
            Self::File(path, _) => file(r, path).await,
        }
    }
}

/// Body of the response of a URI, if that succeeds.
// DIFF(nginx): the module sends the page of an error in the middle of its own.
async fn response(r: &mut Request, uri: &[u8]) -> Option<Body> {
    let mut parts = uri.splitn(2, |byte| *byte == b'?').map(<[u8]>::to_vec);
    let to = Uri { path: parts.next().unwrap_or_default(), args: parts.next().unwrap_or_default() };
    match Subrequest::run(r, to, ParentBody::Hidden).await {
        Ok(part) if part.status() == 200 => Some(Body::Pull(Box::new(part))),
        Ok(part) => {
            let uri = Text(uri);
            let status = part.status();
            r.log(Level::Error, format_args!("\"{uri}\" for a listing was answered with {status}"));
            part.end(r).await;
            None
        }
        Err(refused) => {
            r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(uri)));
            None
        }
    }
}

/// Content of a local file, if it can be opened.
async fn file(r: &mut Request, path: &Template) -> Option<Body> {
    let path = CString::new(path.value(r)).unwrap_or_default();
    let opened = match files::open(r, &path).await {
        Ok(file) if file.meta().kind == FileKind::File => Ok(file),
        Ok(_) => Err(Op::Open.failed(Errno::ISDIR)),
        Err(error) => Err(error),
    };
    match opened {
        Ok(file) => Some(file_response::content(r, &file)),
        Err(error) => {
            file_response::refuse(r, &path, &error);
            None
        }
    }
}

impl Handler for FancyIndex {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.uri.path.last() != Some(&b'/') || !matches!(r.method(), Method::Get | Method::Head) {
            return Step::PASS;
        }
        Step::Wait(Box::pin(self.list(r)))
    }
}

impl FancyIndex {
    async fn list(&self, r: &mut Request) -> Outcome {
        let directory = match Directory::read(r, self.links).await {
            Ok(directory) => directory,
            Err(outcome) => return outcome,
        };
        let header = self.header.body(r).await;
        let footer = self.footer.body(r).await;
        let page = FancyPage {
            look: self.look.clone(),
            uri: r.uri.path.clone(),
            asked: Sorting::of_args(&r.uri.args),
            default: self.sorting,
            has_header: header.is_some(),
            has_footer: footer.is_some(),
        };
        let page = match directory.page(r, move |entries, extent| page.make(entries, extent)).await {
            Ok(page) => page.respond(r, "text/html", ""),
            Err(outcome) => return outcome,
        };
        Outcome::Respond(match (header, footer) {
            (None, None) => page,
            (header, footer) => {
                Body::Parts(VecDeque::from_iter(header.into_iter().chain([page]).chain(footer)))
            }
        })
    }
}
