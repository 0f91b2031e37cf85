//! Core settings of a location (nginx: ngx_http_core_module, location level).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_conf::{
    Args, Buffers, ConfError, Cx, Directive, HTTP, IF_IN_LOCATION, LOCATION, MAIN, Node, SERVER, Setting,
    Word, record,
};

use super::error_page::{ErrorPage, RawErrorPage};
use super::media_types::MediaTypes;
use crate::load::Resolve;
use crate::log::{LogTarget, SharedErrorLog};
use crate::module::Settings;
use crate::pools::PoolRef;
use crate::vars::Template;

const ALL: u32 = HTTP | SERVER | LOCATION;
const ALL_IF: u32 = ALL | IF_IN_LOCATION;

/// What is used for a request at one location.
pub struct Location {
    /// `root` or `alias`.
    pub root: Root,
    /// `internal`: only internal redirects may come here.
    pub access: LocationAccess,
    /// `types`.
    pub types: Arc<MediaTypes>,
    /// `default_type`.
    pub default_type: Bytes,
    /// `error_page`, in the order written; the first that names the code counts.
    pub error_pages: Arc<[ErrorPage]>,
    /// `recursive_error_pages`.
    pub recursive_error_pages: bool,
    /// `etag`.
    pub etag: bool,
    /// `if_modified_since`.
    pub if_modified_since: IfModifiedSince,
    /// `max_ranges`; 0 turns ranges off.
    pub max_ranges: u64,
    /// `chunked_transfer_encoding`.
    pub chunked_transfer_encoding: bool,
    /// `server_tokens`.
    pub server_tokens: ServerTokens,
    /// Redirects: `absolute_redirect`, `port_in_redirect`, `server_name_in_redirect`.
    pub redirect: Redirects,
    /// Disk use.
    pub files: Files,
    /// `error_log`.
    pub error_log: SharedErrorLog,
    /// `log_not_found`.
    pub log_not_found: bool,
    /// Keep-alive.
    pub keepalive: KeepAlive,
    /// Sending.
    pub send: Send,
    /// The request body.
    pub client_body: ClientBody,
    /// Lingering close.
    pub lingering: Lingering,
}

/// Where the files of a location are.
#[derive(Clone)]
pub struct Root {
    /// The directory (or file, with `alias`).
    pub path: Template,
    /// How the URI is added.
    pub kind: RootKind,
}

/// How a path is made from a root and a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKind {
    /// `root`: the URI is added.
    Root,
    /// `alias` in a prefix location: the URI without so many first bytes is added.
    Alias(usize),
    /// `alias` in a regular expression: the path is complete.
    Whole,
}

/// Who may be answered by a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocationAccess {
    /// Everybody.
    Public,
    /// `internal`.
    Internal,
}

/// `if_modified_since`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// The field is ignored.
    Off,
    /// The dates must be equal.
    Exact,
    /// The file must not be newer.
    Before,
}

/// `server_tokens`
#[derive(Clone)]
pub enum ServerTokens {
    /// Name and version.
    On,
    /// Name only.
    Off,
    /// Name, version and build.
    Build,
    /// This text; no field when it is empty.
    Text(Template),
}

/// How a redirect to this server is written.
#[derive(Debug, Clone, Copy)]
pub struct Redirects {
    /// `absolute_redirect`
    pub absolute: bool,
    /// `port_in_redirect`
    pub port: bool,
    /// `server_name_in_redirect`
    pub server_name: bool,
}

/// How files are read.
#[derive(Clone)]
pub struct Files {
    /// `aio`
    pub aio: PoolRef,
    /// `sendfile`
    pub sendfile: bool,
    /// `sendfile_max_chunk`, bytes; 0 means no limit.
    pub sendfile_max_chunk: u64,
    /// `directio`: files of at least this size are read past the page cache.
    pub directio: Option<u64>,
    /// `directio_alignment`, bytes.
    pub directio_alignment: u64,
    /// `read_ahead`, bytes; 0 leaves it to the kernel.
    pub read_ahead: u64,
    /// `output_buffers`
    pub output_buffers: Buffers,
    /// `open_file_cache`
    pub open_file_cache: Option<OpenFileCache>,
    /// `disable_symlinks`
    pub symlinks: Symlinks,
}

/// `open_file_cache` and its companions.
#[derive(Debug, Clone, Copy)]
pub struct OpenFileCache {
    /// `max`: files and failures that are kept.
    pub max: usize,
    /// `inactive`: an entry not used for so long is dropped.
    pub inactive: Duration,
    /// `open_file_cache_valid`: an entry is checked again after so long.
    pub valid: Duration,
    /// `open_file_cache_min_uses`: a descriptor stays open after so many uses within `inactive`.
    pub min_uses: u64,
    /// `open_file_cache_errors`: failures are kept too.
    pub errors: bool,
}

/// `disable_symlinks`
#[derive(Clone)]
pub enum Symlinks {
    /// Symbolic links are followed.
    Follow,
    /// A link on the way is refused.
    Refuse(Option<Template>),
    /// A link whose owner is not the owner of what it leads to is refused.
    SameOwner(Option<Template>),
}

/// Keep-alive settings.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// `keepalive_timeout`; zero turns keep-alive off.
    pub timeout: Duration,
    /// Second value of `keepalive_timeout`: sent as `Keep-Alive: timeout=`.
    pub header: Option<Duration>,
    /// `keepalive_min_timeout`
    pub min_timeout: Duration,
    /// `keepalive_requests`
    pub requests: u64,
    /// `keepalive_time`
    pub time: Duration,
    /// `keepalive_disable`: bits of [`DISABLE_MSIE6`] and [`DISABLE_SAFARI`].
    pub disable: u32,
}

/// `keepalive_disable msie6`
pub const DISABLE_MSIE6: u32 = 1;
/// `keepalive_disable safari`
pub const DISABLE_SAFARI: u32 = 2;

/// Sending settings.
#[derive(Clone)]
pub struct Send {
    /// `send_timeout`, between two successful writes.
    pub timeout: Duration,
    /// `limit_rate`: bytes per second; `None` means no limit.
    pub limit_rate: Option<Template>,
    /// `limit_rate_after`, bytes.
    pub limit_rate_after: Option<Template>,
    /// `reset_timedout_connection`
    pub reset_timedout_connection: bool,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `tcp_nopush`
    pub tcp_nopush: bool,
}

/// What happens to a request body.
#[derive(Clone)]
pub struct ClientBody {
    /// `client_max_body_size`, bytes; 0 means no limit.
    pub max_size: u64,
    /// `client_body_buffer_size`, bytes kept in memory.
    pub buffer_size: usize,
    /// `client_body_timeout`, between two reads.
    pub timeout: Duration,
    /// `client_body_in_file_only`
    pub in_file_only: InFileOnly,
    /// `client_body_temp_path`
    pub temp_path: Arc<TempPath>,
}

/// `client_body_in_file_only`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFileOnly {
    /// Bodies that fit stay in memory.
    Off,
    /// Always a file, kept.
    On,
    /// Always a file, removed after the request.
    Clean,
}

/// A directory for temporary files with hashed levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TempPath {
    /// The directory.
    pub path: std::ffi::CString,
    /// Digits of each level, 0 where there is none.
    pub levels: [u8; 3],
}

/// `lingering_close` and companions.
#[derive(Debug, Clone, Copy)]
pub struct Lingering {
    /// `lingering_close`
    pub close: LingeringClose,
    /// `lingering_time`
    pub time: Duration,
    /// `lingering_timeout`
    pub timeout: Duration,
}

/// `lingering_close`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LingeringClose {
    /// Close at once.
    Off,
    /// Read and ignore what a client may still be sending.
    On,
    /// Always.
    Always,
}

/// Core settings of a location as written.
#[derive(Default)]
pub struct Raw {
    root: Setting<(Word, bool)>,
    internal: Setting<()>,
    types: Setting<MediaTypes>,
    default_type: Setting<Box<[u8]>>,
    error_pages: Setting<Vec<RawErrorPage>>,
    recursive_error_pages: Setting<bool>,
    etag: Setting<bool>,
    if_modified_since: Setting<IfModifiedSince>,
    max_ranges: Setting<u64>,
    chunked_transfer_encoding: Setting<bool>,
    server_tokens: Setting<Word>,
    absolute_redirect: Setting<bool>,
    port_in_redirect: Setting<bool>,
    server_name_in_redirect: Setting<bool>,
    aio: Setting<Word>,
    aio_write: Setting<bool>,
    sendfile: Setting<bool>,
    sendfile_max_chunk: Setting<u64>,
    directio: Setting<Option<u64>>,
    directio_alignment: Setting<u64>,
    read_ahead: Setting<u64>,
    output_buffers: Setting<Buffers>,
    open_file_cache: Setting<Option<(usize, Duration)>>,
    open_file_cache_valid: Setting<Duration>,
    open_file_cache_min_uses: Setting<u64>,
    open_file_cache_errors: Setting<bool>,
    disable_symlinks: Setting<RawSymlinks>,
    error_log: Setting<Vec<LogTarget>>,
    log_not_found: Setting<bool>,
    keepalive_timeout: Setting<(Duration, Option<Duration>)>,
    keepalive_min_timeout: Setting<Duration>,
    keepalive_requests: Setting<u64>,
    keepalive_time: Setting<Duration>,
    keepalive_disable: Setting<u32>,
    send_timeout: Setting<Duration>,
    limit_rate: Setting<Word>,
    limit_rate_after: Setting<Word>,
    reset_timedout_connection: Setting<bool>,
    tcp_nodelay: Setting<bool>,
    tcp_nopush: Setting<bool>,
    client_max_body_size: Setting<u64>,
    client_body_buffer_size: Setting<usize>,
    client_body_timeout: Setting<Duration>,
    client_body_in_file_only: Setting<InFileOnly>,
    client_body_temp_path: Setting<TempPath>,
    lingering_close: Setting<LingeringClose>,
    lingering_time: Setting<Duration>,
    lingering_timeout: Setting<Duration>,
    without_effect: Setting<()>,
}

enum RawSymlinks {
    Off,
    On { same_owner: bool, from: Option<Word> },
}

impl Settings for Location {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("root", "path", ALL_IF, Args::exact(1))
            .default("html")
            .doc("Directory that the URI is added to.").set(|raw, node, _| set_root(raw, node, false)),
        record::new("alias", "path", LOCATION, Args::exact(1))
            .doc("Replaces the part of the URI that the location matched.").set(|raw, node, _| set_root(raw, node, true)),
        record::new("internal", "", LOCATION, Args::NONE)
            .doc("Only internal redirects may reach the location; everyone else gets 404.").set(|raw, node, _| raw.internal.set_once(node, ())),
        record::new("types", "{ … }", ALL, Args::NONE.block())
        .default("text/html html; image/gif gif; image/jpeg jpg")
        .doc("Media types by file name extension.").set(|raw, node, cx| {
            if !raw.types.is_set() {
                raw.types.replace(node, MediaTypes::default());
            }
            raw.types.get_mut().map_or(Ok(()), |types| types.add_block(node, cx))
        }),
        record::new("default_type", "mime-type", ALL, Args::exact(1))
            .default("text/plain")
            .doc("Media type of files whose extension is not listed.").set(|raw, node, _| raw.default_type.set_bytes(node)),
        record::new("error_page", "code … [=[response]] uri", ALL_IF, Args::at_least(2))
        .doc("URI that answers instead of the built-in page of a status.").set(|raw, node, _| {
            let page = RawErrorPage::parse(node)?;
            raw.error_pages.push(node, page);
            Ok(())
        }),
        record::flag("recursive_error_pages", ALL)
            .default("off")
            .doc("Whether an error page may have an error page.").set(|raw, node, _| raw.recursive_error_pages.set_flag(node)),
        record::flag("etag", ALL)
            .default("on")
            .since("1.3.3")
            .doc("Sends ETag with files.").set(|raw, node, _| raw.etag.set_flag(node)),
        record::new("if_modified_since", "off | exact | before", ALL, Args::exact(1))
        .default("exact")
        .since("0.7.24")
        .doc("How If-Modified-Since is compared with the file's date.").set(|raw, node, _| {
            raw.if_modified_since.set_one_of(
                node,
                &[
                    ("off", IfModifiedSince::Off),
                    ("exact", IfModifiedSince::Exact),
                    ("before", IfModifiedSince::Before),
                ],
            )
        }),
        record::number("max_ranges", ALL)
            .since("1.1.2")
            .doc("Ranges one request may ask for; 0 turns ranges off. Without the directive there is no limit.").set(|raw, node, _| raw.max_ranges.set_number(node)),
        record::flag("chunked_transfer_encoding", ALL)
            .default("on")
            .doc("Allows chunked responses of unknown length in HTTP/1.1.").set(|raw, node, _| raw.chunked_transfer_encoding.set_flag(node)),
        record::new("server_tokens", "on | off | build | string", ALL, Args::exact(1))
        .default("on")
        .doc("What Server and the built-in pages tell about the server.").set(|raw, node, _| {
            let word = node.arg(0)?.clone();
            raw.server_tokens.set_once(node, word)
        }),
        record::flag("absolute_redirect", ALL)
            .default("on")
            .since("1.11.8")
            .doc("Redirects name scheme and host.").set(|raw, node, _| raw.absolute_redirect.set_flag(node)),
        record::flag("port_in_redirect", ALL)
            .default("on")
            .doc("Absolute redirects name the port.").set(|raw, node, _| raw.port_in_redirect.set_flag(node)),
        record::flag("server_name_in_redirect", ALL)
            .default("off")
            .doc("Absolute redirects use the first server_name instead of the request's host.").set(|raw, node, _| raw.server_name_in_redirect.set_flag(node)),
        record::new("aio", "on | off | threads[=pool]", ALL, Args::exact(1))
        .default("threads")
        .since("0.8.11")
        .doc("Where file operations wait that cannot finish in memory: in a thread pool (its name may hold variables), in \
              io_uring (on), or in the event loop (off).").set(|raw, node, _| {
            let word = node.arg(0)?.clone();
            raw.aio.set_once(node, word)
        }),
        record::flag("aio_write", ALL)
            .default("off")
            .since("1.9.13")
            .doc("Accepted; temporary files are always written by the thread pool.").set(|raw, node, _| raw.aio_write.set_flag(node)),
        record::flag("sendfile", ALL_IF)
            .default("off")
            .doc("Lets pool threads send large pieces that are not in memory with sendfile().").set(|raw, node, _| raw.sendfile.set_flag(node)),
        record::size("sendfile_max_chunk", ALL)
            .default("2m")
            .doc("Most bytes one turn of the loop, or one sendfile() call, gives to a connection.").set(|raw, node, _| raw.sendfile_max_chunk.set_size(node)),
        record::new("directio", "size | off", ALL, Args::exact(1))
        .default("off")
        .since("0.7.7")
        .doc("Reads files of at least this size with O_DIRECT.").set(|raw, node, _| {
            raw.directio.set_with(node, |node| if node.arg(0)?.is("off") { Ok(None) } else { node.offset().map(Some) })
        }),
        record::size("directio_alignment", ALL)
            .default("512")
            .since("0.8.11")
            .doc("Alignment of O_DIRECT reads.").set(|raw, node, _| raw.directio_alignment.set_offset(node)),
        record::size("read_ahead", ALL)
            .default("0")
            .doc("Read-ahead asked of the kernel for files that are read piece by piece.").set(|raw, node, _| raw.read_ahead.set_size(node)),
        record::new("output_buffers", "number size", ALL, Args::exact(2))
        .default("2 32k")
        .doc("Number and size of the buffers of one file that is read from disk.").set(|raw, node, _| {
            raw.output_buffers.set_buffers(node)
        }),
        record::new("open_file_cache", "off | max=N [inactive=time]", ALL, Args::range(1, 2))
        .default("off")
        .doc("Keeps descriptors and what is known of files between requests, without checking them each time.").set(|raw, node, _| {
            raw.open_file_cache.set_with(node, read_open_file_cache)
        }),
        record::time("open_file_cache_valid", ALL)
            .default("60s")
            .doc("How long an entry of open_file_cache is used before the file is looked at again.").set(|raw, node, _| raw.open_file_cache_valid.set_sec(node)),
        record::number("open_file_cache_min_uses", ALL)
            .default("1")
            .doc("Uses within inactive after which a descriptor stays open.").set(|raw, node, _| raw.open_file_cache_min_uses.set_number(node)),
        record::flag("open_file_cache_errors", ALL)
            .default("off")
            .doc("Also remembers that a file could not be opened.").set(|raw, node, _| raw.open_file_cache_errors.set_flag(node)),
        record::new("disable_symlinks", "off | on | if_not_owner [from=part]", ALL, Args::range(1, 2))
        .default("off")
        .since("1.1.15")
        .doc("Refuses symbolic links in the path of a file.").set(|raw, node, _| raw.disable_symlinks.set_with(node, read_symlinks)),
        record::new("error_log", "file [level]", MAIN | ALL, Args::range(1, 2))
        .default("logs/error.log error")
        .doc("Where errors are written, and from which level.").set(|raw, node, cx| {
                let target = LogTarget::parse(node, cx)?;
                raw.error_log.push(node, target);
                Ok(())
            }),
        record::flag("log_not_found", ALL)
            .default("on")
            .doc("Writes missing files into the error log.").set(|raw, node, _| raw.log_not_found.set_flag(node)),
        record::new("keepalive_timeout", "timeout [header_timeout]", ALL, Args::range(1, 2))
        .default("75s")
        .doc("How long an idle connection stays open; the second value is told to the client.").set(|raw, node, _| {
            raw.keepalive_timeout.set_with(node, |node| {
                let header = match node.args.get(1) {
                    Some(word) => Some(word.sec().ok_or_else(|| node.error("has an invalid value"))?),
                    None => None,
                };
                Ok((node.msec()?, header))
            })
        }),
        record::time("keepalive_min_timeout", ALL)
            .default("0")
            .since("1.27.4")
            .doc("An idle connection is not closed sooner, even to make room or at shutdown.").set(|raw, node, _| raw.keepalive_min_timeout.set_msec(node)),
        record::number("keepalive_requests", ALL)
            .default("1000")
            .since("0.8.0")
            .doc("Requests after which a connection is closed.").set(|raw, node, _| raw.keepalive_requests.set_number(node)),
        record::time("keepalive_time", ALL)
            .default("1h")
            .since("1.19.10")
            .doc("Age after which a connection is closed with the next response.").set(|raw, node, _| raw.keepalive_time.set_msec(node)),
        record::new("keepalive_disable", "none | browser …", ALL, Args::at_least(1))
        .default("msie6")
        .doc("Browsers that get no keep-alive.").set(|raw, node, cx| {
            raw.keepalive_disable.add_bits(
                node,
                &[("none", 0), ("msie6", DISABLE_MSIE6), ("safari", DISABLE_SAFARI)],
                cx,
            )
        }),
        record::time("send_timeout", ALL)
            .default("60s")
            .doc("Time between two successful writes to the client.").set(|raw, node, _| raw.send_timeout.set_msec(node)),
        record::new("limit_rate", "rate", ALL_IF, Args::exact(1))
        .default("0")
        .doc("Bytes per second to one connection; may hold variables. 0 means no limit.").set(|raw, node, _| {
            let word = checked_size(node)?;
            raw.limit_rate.set_once(node, word)
        }),
        record::new("limit_rate_after", "size", ALL_IF, Args::exact(1))
        .default("0")
        .since("0.8.0")
        .doc("Bytes sent before limit_rate applies.").set(|raw, node, _| {
            let word = checked_size(node)?;
            raw.limit_rate_after.set_once(node, word)
        }),
        record::flag("reset_timedout_connection", ALL)
            .default("off")
            .doc("Resets connections that timed out, which frees their socket buffers at once.").set(|raw, node, _| raw.reset_timedout_connection.set_flag(node)),
        record::flag("tcp_nodelay", ALL)
            .default("on")
            .doc("Sets TCP_NODELAY.").set(|raw, node, _| raw.tcp_nodelay.set_flag(node)),
        record::flag("tcp_nopush", ALL)
            .default("off")
            .doc("Sets TCP_CORK while a response of several pieces is sent.").set(|raw, node, _| raw.tcp_nopush.set_flag(node)),
        record::size("client_max_body_size", ALL)
            .default("1m")
            .doc("Largest request body; 0 means no limit. A larger one gets 413.").set(|raw, node, _| raw.client_max_body_size.set_offset(node)),
        record::size("client_body_buffer_size", ALL)
            .default("16k")
            .doc("Bytes of a request body kept in memory; more goes to a temporary file.").set(|raw, node, _| raw.client_body_buffer_size.set_size(node)),
        record::time("client_body_timeout", ALL)
            .default("60s")
            .doc("Time between two reads of a request body; then 408.").set(|raw, node, _| raw.client_body_timeout.set_msec(node)),
        record::new("client_body_in_file_only", "on | clean | off", ALL, Args::exact(1))
        .default("off")
        .doc("Always writes request bodies to files; clean removes them after the request.").set(|raw, node, _| {
            raw.client_body_in_file_only.set_one_of(
                node,
                &[("on", InFileOnly::On), ("clean", InFileOnly::Clean), ("off", InFileOnly::Off)],
            )
        }),
        record::new("client_body_temp_path", "path [level1 [level2 [level3]]]", ALL, Args::range(1, 4))
        .default("client_body_temp")
        .doc("Directory of temporary files of request bodies.").set(|raw, node, cx| raw.client_body_temp_path.set_with(node, |node| TempPath::parse(node, cx))),
        record::new("lingering_close", "off | on | always", ALL, Args::exact(1))
        .default("on")
        .since("1.1.0")
        .doc("Reads and ignores what a client still sends before its connection is closed.").set(|raw, node, _| {
            raw.lingering_close.set_one_of(
                node,
                &[("off", LingeringClose::Off), ("on", LingeringClose::On), ("always", LingeringClose::Always)],
            )
        }),
        record::time("lingering_time", ALL)
            .default("30s")
            .doc("Longest lingering close.").set(|raw, node, _| raw.lingering_time.set_msec(node)),
        record::time("lingering_timeout", ALL)
            .default("5s")
            .doc("Longest silence during a lingering close.").set(|raw, node, _| raw.lingering_timeout.set_msec(node)),
        without_effect("types_hash_max_size", "size", ALL, Args::exact(1)),
        without_effect("types_hash_bucket_size", "size", ALL, Args::exact(1)),
        without_effect("postpone_output", "size", ALL, Args::exact(1)),
        without_effect("send_lowat", "size", ALL, Args::exact(1)),
        without_effect("client_body_in_single_buffer", "on | off", ALL, Args::FLAG),
        without_effect("subrequest_output_buffer_size", "size", ALL, Args::exact(1)),
        without_effect("open_file_cache_events", "on | off", ALL, Args::FLAG),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let files = resolve_files(&raw, outer.map(|o| &o.files), cx)?;
        let send = resolve_send(&raw, outer.map(|o| &o.send), cx)?;
        let root = match raw.root.take() {
            Some((word, alias)) => resolve_root(&word, alias, cx)?,
            None => match outer {
                Some(outer) => outer.root.clone(),
                None => Root { path: Template::text(&cx.full_path(b"html")), kind: RootKind::Root },
            },
        };
        let error_pages = match raw.error_pages.take() {
            Some(pages) => pages.into_iter().map(|page| page.resolve(cx)).collect::<Result<Arc<[_]>, _>>()?,
            None => outer.map_or_else(|| Arc::new([]) as Arc<[ErrorPage]>, |o| o.error_pages.clone()),
        };
        let server_tokens = match raw.server_tokens.take() {
            Some(word) => match &*word.bytes {
                b"on" => ServerTokens::On,
                b"off" => ServerTokens::Off,
                b"build" => ServerTokens::Build,
                _ => ServerTokens::Text(cx.template(&word)?),
            },
            None => outer.map_or(ServerTokens::On, |o| o.server_tokens.clone()),
        };
        let error_log = match raw.error_log.take() {
            Some(targets) => cx.error_log(targets)?,
            None => outer.map_or_else(|| cx.main_error_log(), |o| o.error_log.clone()),
        };
        let keep = outer.map(|o| o.keepalive);
        let (timeout, header) =
            raw.keepalive_timeout.or(keep.map(|k| (k.timeout, k.header)), (Duration::from_secs(75), None));
        let redirect = outer.map(|o| o.redirect);
        let linger = outer.map(|o| o.lingering);
        let body = outer.map(|o| &o.client_body);
        Ok(Self {
            root,
            access: if raw.internal.is_set() { LocationAccess::Internal } else { LocationAccess::Public },
            types: match raw.types.take() {
                Some(types) => Arc::new(types),
                None => outer.map_or_else(MediaTypes::builtin, |o| o.types.clone()),
            },
            default_type: match raw.default_type.take() {
                Some(media_type) => Bytes::from(media_type),
                None => outer.map_or(Bytes::from_static(b"text/plain"), |o| o.default_type.clone()),
            },
            error_pages,
            recursive_error_pages: raw
                .recursive_error_pages
                .or(outer.map(|o| o.recursive_error_pages), false),
            etag: raw.etag.or(outer.map(|o| o.etag), true),
            if_modified_since: raw
                .if_modified_since
                .or(outer.map(|o| o.if_modified_since), IfModifiedSince::Exact),
            max_ranges: raw.max_ranges.or(outer.map(|o| o.max_ranges), u64::MAX),
            chunked_transfer_encoding: raw
                .chunked_transfer_encoding
                .or(outer.map(|o| o.chunked_transfer_encoding), true),
            server_tokens,
            redirect: Redirects {
                absolute: raw.absolute_redirect.or(redirect.map(|r| r.absolute), true),
                port: raw.port_in_redirect.or(redirect.map(|r| r.port), true),
                server_name: raw.server_name_in_redirect.or(redirect.map(|r| r.server_name), false),
            },
            files,
            error_log,
            log_not_found: raw.log_not_found.or(outer.map(|o| o.log_not_found), true),
            keepalive: KeepAlive {
                timeout,
                header,
                min_timeout: raw.keepalive_min_timeout.or(keep.map(|k| k.min_timeout), Duration::ZERO),
                requests: raw.keepalive_requests.or(keep.map(|k| k.requests), 1000),
                time: raw.keepalive_time.or(keep.map(|k| k.time), Duration::from_secs(3600)),
                disable: raw.keepalive_disable.or(keep.map(|k| k.disable), DISABLE_MSIE6),
            },
            send,
            client_body: ClientBody {
                max_size: raw.client_max_body_size.or(body.map(|b| b.max_size), 1 << 20),
                buffer_size: raw.client_body_buffer_size.or(body.map(|b| b.buffer_size), 16 << 10),
                timeout: raw.client_body_timeout.or(body.map(|b| b.timeout), Duration::from_secs(60)),
                in_file_only: raw.client_body_in_file_only.or(body.map(|b| b.in_file_only), InFileOnly::Off),
                temp_path: match raw.client_body_temp_path.take() {
                    Some(path) => cx.temp_path(path),
                    None => match body {
                        Some(body) => body.temp_path.clone(),
                        None => {
                            let path = TempPath { path: cx.full_path_c(b"client_body_temp"), levels: [0; 3] };
                            cx.temp_path(path)
                        }
                    },
                },
            },
            lingering: Lingering {
                close: raw.lingering_close.or(linger.map(|l| l.close), LingeringClose::On),
                time: raw.lingering_time.or(linger.map(|l| l.time), Duration::from_secs(30)),
                timeout: raw.lingering_timeout.or(linger.map(|l| l.timeout), Duration::from_secs(5)),
            },
        })
    }
}

// DIFF(nginx): directives that size nginx's hash tables and buffers are accepted and change nothing.
const fn without_effect(
    name: &'static str,
    syntax: &'static str,
    contexts: u32,
    args: Args,
) -> Directive<Raw> {
    record::new(name, syntax, contexts, args)
        .doc("Accepted and without effect: there is no table or buffer here that needs this size.")
        .set(|raw, node, _| {
            raw.without_effect.replace(node, ());
            Ok(())
        })
}

fn set_root(raw: &mut Raw, node: &Node, alias: bool) -> Result<(), ConfError> {
    if let Some((_, earlier_alias)) = raw.root.get() {
        let earlier = if *earlier_alias { "alias" } else { "root" };
        return Err(match *earlier_alias == alias {
            true => node.error("is duplicate"),
            false => node.fail(format!(
                "\"{}\" directive is duplicate, \"{earlier}\" directive was specified earlier",
                node.name
            )),
        });
    }
    let word = node.arg(0)?.clone();
    for forbidden in ["$document_root", "${document_root}", "$realpath_root", "${realpath_root}"] {
        if word.bytes.windows(forbidden.len()).any(|w| w == forbidden.as_bytes()) {
            let name = forbidden.trim_matches(['$', '{', '}']);
            return Err(
                node.fail(format!("the ${name} variable cannot be used in the \"{}\" directive", node.name))
            );
        }
    }
    raw.root.set_once(node, (word, alias))
}

fn resolve_root(word: &Word, alias: bool, cx: &mut Resolve<'_>) -> Result<Root, ConfError> {
    let kind = match (alias, cx.location()) {
        (false, _) => RootKind::Root,
        (true, Some(crate::http::route::Pattern::Exact(uri))) => RootKind::Alias(uri.len()),
        (true, Some(crate::http::route::Pattern::Prefix { uri, .. })) => RootKind::Alias(uri.len()),
        (true, Some(crate::http::route::Pattern::Named(_))) => {
            return Err(ConfError::new("the \"alias\" directive cannot be used inside the named location")
                .at(word.span));
        }
        (true, _) => RootKind::Whole,
    };
    let mut text = word.bytes.to_vec();
    if kind == RootKind::Root && text.len() > 1 && text.ends_with(b"/") {
        text.pop();
    }
    let full = if text.starts_with(b"$") { text } else { cx.full_path(&text) };
    Ok(Root { path: cx.template_text(&full, Some(word.span))?, kind })
}

fn resolve_files(raw: &Raw, outer: Option<&Files>, cx: &mut Resolve<'_>) -> Result<Files, ConfError> {
    let aio = match raw.aio.get() {
        Some(word) => PoolRef::parse(word, cx)?,
        // DIFF(nginx): file operations use the default thread pool unless `aio off` says otherwise.
        None => outer.map_or(PoolRef::DEFAULT, |o| o.aio.clone()),
    };
    let cache = match raw.open_file_cache.get() {
        Some(cache) => *cache,
        None => outer.and_then(|o| o.open_file_cache).map(|c| (c.max, c.inactive)),
    };
    let old = outer.and_then(|o| o.open_file_cache);
    let open_file_cache = cache.map(|(max, inactive)| OpenFileCache {
        max,
        inactive,
        valid: pick(&raw.open_file_cache_valid, old.map(|c| c.valid), Duration::from_secs(60)),
        min_uses: pick(&raw.open_file_cache_min_uses, old.map(|c| c.min_uses), 1),
        errors: pick(&raw.open_file_cache_errors, old.map(|c| c.errors), false),
    });
    let symlinks = match raw.disable_symlinks.get() {
        Some(RawSymlinks::Off) => Symlinks::Follow,
        Some(RawSymlinks::On { same_owner, from }) => {
            let from = from.as_ref().map(|word| cx.template(word)).transpose()?;
            if *same_owner { Symlinks::SameOwner(from) } else { Symlinks::Refuse(from) }
        }
        None => outer.map_or(Symlinks::Follow, |o| o.symlinks.clone()),
    };
    Ok(Files {
        aio,
        sendfile: pick(&raw.sendfile, outer.map(|o| o.sendfile), false),
        sendfile_max_chunk: pick(&raw.sendfile_max_chunk, outer.map(|o| o.sendfile_max_chunk), 2 << 20),
        directio: pick(&raw.directio, outer.map(|o| o.directio), None),
        directio_alignment: pick(&raw.directio_alignment, outer.map(|o| o.directio_alignment), 512),
        read_ahead: pick(&raw.read_ahead, outer.map(|o| o.read_ahead), 0),
        output_buffers: pick(
            &raw.output_buffers,
            outer.map(|o| o.output_buffers),
            Buffers { count: 2, size: 32 << 10 },
        ),
        open_file_cache,
        symlinks,
    })
}

fn resolve_send(raw: &Raw, outer: Option<&Send>, cx: &mut Resolve<'_>) -> Result<Send, ConfError> {
    let mut rate = |setting: &Setting<Word>, outer: Option<&Option<Template>>| match setting.get() {
        Some(word) if &*word.bytes == b"0" => Ok(None),
        Some(word) => cx.template(word).map(Some),
        None => Ok(outer.cloned().flatten()),
    };
    Ok(Send {
        timeout: pick(&raw.send_timeout, outer.map(|o| o.timeout), Duration::from_secs(60)),
        limit_rate: rate(&raw.limit_rate, outer.map(|o| &o.limit_rate))?,
        limit_rate_after: rate(&raw.limit_rate_after, outer.map(|o| &o.limit_rate_after))?,
        reset_timedout_connection: pick(
            &raw.reset_timedout_connection,
            outer.map(|o| o.reset_timedout_connection),
            false,
        ),
        tcp_nodelay: pick(&raw.tcp_nodelay, outer.map(|o| o.tcp_nodelay), true),
        tcp_nopush: pick(&raw.tcp_nopush, outer.map(|o| o.tcp_nopush), false),
    })
}

fn pick<T: Copy>(setting: &Setting<T>, outer: Option<T>, default: T) -> T {
    setting.get().copied().or(outer).unwrap_or(default)
}

/// A size that may hold variables: checked now if it does not.
fn checked_size(node: &Node) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    if !word.bytes.contains(&b'$') && word.size().is_none() {
        return Err(node.invalid_value(word));
    }
    Ok(word.clone())
}

fn read_open_file_cache(node: &Node) -> Result<Option<(usize, Duration)>, ConfError> {
    let mut max = None;
    let mut inactive = Duration::from_secs(60);
    for word in &node.args {
        if word.is("off") {
            return Ok(None);
        }
        let bad = || node.fail(format!("invalid \"open_file_cache\" parameter \"{word}\""));
        if let Some(value) = word.param("max") {
            max = Some(tw_conf::units::number(value).filter(|n| *n > 0).ok_or_else(bad)?);
        } else if let Some(value) = word.param("inactive") {
            inactive = tw_conf::units::sec(value).ok_or_else(bad)?;
        } else {
            return Err(bad());
        }
    }
    let max = max.ok_or_else(|| node.fail("\"open_file_cache\" must have the \"max\" parameter"))?;
    Ok(Some((usize::try_from(max).unwrap_or(usize::MAX), inactive)))
}

fn read_symlinks(node: &Node) -> Result<RawSymlinks, ConfError> {
    let mut same_owner = None;
    let mut from = None;
    for word in &node.args {
        match word.param("from") {
            Some(b"") | None if word.bytes.starts_with(b"from=") => return Err(node.invalid_parameter(word)),
            Some(value) => from = Some(Word { bytes: value.into(), ..word.clone() }),
            None if word.is("off") => return Ok(RawSymlinks::Off),
            None if word.is("on") => same_owner = Some(false),
            None if word.is("if_not_owner") => same_owner = Some(true),
            None => return Err(node.invalid_parameter(word)),
        }
    }
    match same_owner {
        Some(same_owner) => Ok(RawSymlinks::On { same_owner, from }),
        None => {
            Err(node.fail("\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter"))
        }
    }
}

impl TempPath {
    fn parse(node: &Node, cx: &Cx<'_>) -> Result<Self, ConfError> {
        let mut levels = [0; 3];
        for (level, word) in levels.iter_mut().zip(node.args.iter().skip(1)) {
            let digits =
                word.number().filter(|n| (1..=3).contains(n)).ok_or_else(|| node.invalid_value(word))?;
            *level = digits as u8;
        }
        let path = crate::load::path_bytes(&cx.full_path(&node.arg(0)?.bytes));
        Ok(Self { path, levels })
    }
}
