//! Core settings of a location (nginx: ngx_http_core_module, location level).
//!
//! What belongs together is a part with a file of its own: its settings as used, as written, their records, and how they
//! resolve.

mod access;
mod aio;
mod client_body;
mod compression;
mod contexts;
mod files;
mod keepalive;
mod lingering;
mod min_rate;
mod msie;
mod resolver;
mod root;
mod send;
mod temp_path;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_conf::{
    Args, ConfError, Directive, IF_IN_SERVER, IneffectiveDirectives, LOCATION, MAIN, Node, Setting, Word,
    record,
};
use tw_connect::Resolving;
use tw_connect::resolving::RawResolving;
use tw_core::log::{LogTarget, RawLogTag, SharedErrorLog};
use tw_core::module::Settings;
use tw_core::reach::Reach;

use self::contexts::{ALL, ALL_IF};
use super::error_page::{ErrorPage, RawErrorPage};
use super::media_types::MediaTypes;
use crate::protocol::{Http, Resolve};
use crate::vars::{LogTags, Template};

pub use access::{Access, Satisfy};
pub use client_body::{ClientBody, InFileOnly};
pub use compression::{
    Compression, PROXIED_ANY, PROXIED_AUTH, PROXIED_EXPIRED, PROXIED_NO_CACHE, PROXIED_NO_ETAG,
    PROXIED_NO_LAST_MODIFIED, PROXIED_NO_STORE, PROXIED_OFF, PROXIED_PRIVATE,
};
pub use files::{FileSettings, OpenFileCache, Symlinks};
pub use keepalive::{DISABLE_MSIE6, DISABLE_SAFARI, KeepAlive};
pub use lingering::{Lingering, LingeringClose};
pub use min_rate::MinRate;
pub use msie::Msie;
pub use root::{Root, RootKind};
pub use send::Send;
pub use temp_path::TempPath;

/// Settings of one location.
pub struct Location {
    /// `root` or `alias`.
    pub root: Root,
    /// `internal`: only internal redirects may come here.
    pub visibility: Visibility,
    /// Combination of the handlers of the access phase: `satisfy`, `auth_delay`.
    pub access: Access,
    /// `types`.
    pub types: Arc<MediaTypes>,
    /// `default_type`.
    pub default_type: Bytes,
    /// `error_page`, in the order written; the first that names the code counts.
    pub error_pages: Arc<[ErrorPage]>,
    /// `recursive_error_pages`.
    pub recursive_error_pages: bool,
    /// `post_action`: the URI, or the named location, that the request goes on with after its response.
    pub post_action: Option<Arc<[u8]>>,
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
    pub files: FileSettings,
    /// `error_log`.
    pub error_log: SharedErrorLog,
    /// `error_log_tag`
    pub error_log_tags: LogTags,
    /// `log_not_found`.
    pub log_not_found: bool,
    /// `error_log_request_id`: lines of the error log name the request and its trace.
    pub error_log_request_id: bool,
    /// `log_subrequest`: whether subrequests are logged, too.
    pub log_subrequest: bool,
    /// `subrequest_output_buffer_size`: longest body of a subrequest that is kept in memory, in bytes.
    pub subrequest_buffer_size: usize,
    /// `uninitialized_variable_warn`
    pub uninitialized_variable_warn: bool,
    /// `request_timeout`: time of a whole request from its begin; `None` means no limit.
    pub request_timeout: Option<Duration>,
    /// Keep-alive.
    pub keepalive: KeepAlive,
    /// Sending.
    pub send: Send,
    /// The request body.
    pub client_body: ClientBody,
    /// Lingering close.
    pub lingering: Lingering,
    /// Workarounds for Internet Explorer.
    pub msie: Msie,
    /// Name resolution while requests are served.
    pub resolving: Resolving,
    /// `early_hints`: early hints of an upstream are passed on if all of these are neither empty nor `0`.
    pub early_hints: Arc<[Template]>,
    /// Conditions for a compressed response.
    pub compression: Compression,
}

/// Kinds of requests that a location serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
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

/// Form of a redirect to this server.
#[derive(Debug, Clone, Copy)]
pub struct Redirects {
    /// `absolute_redirect`
    pub absolute: bool,
    /// `port_in_redirect`
    pub port: bool,
    /// `server_name_in_redirect`
    pub server_name: bool,
}

/// Core settings of a location as written.
#[derive(Default)]
pub struct Raw {
    root: root::Raw,
    access: access::Raw,
    files: files::Raw,
    keepalive: keepalive::Raw,
    lingering: lingering::Raw,
    msie: msie::Raw,
    resolving: RawResolving,
    early_hints: Setting<Vec<Word>>,
    send: send::Raw,
    client_body: client_body::Raw,
    compression: compression::Raw,
    internal: Setting<()>,
    types: Setting<MediaTypes>,
    default_type: Setting<Box<[u8]>>,
    error_pages: Setting<Vec<RawErrorPage>>,
    recursive_error_pages: Setting<bool>,
    post_action: Setting<Box<[u8]>>,
    etag: Setting<bool>,
    if_modified_since: Setting<IfModifiedSince>,
    max_ranges: Setting<u64>,
    chunked_transfer_encoding: Setting<bool>,
    server_tokens: Setting<Word>,
    absolute_redirect: Setting<bool>,
    port_in_redirect: Setting<bool>,
    server_name_in_redirect: Setting<bool>,
    error_log: Setting<Vec<LogTarget>>,
    error_log_tags: Setting<Vec<RawLogTag>>,
    log_not_found: Setting<bool>,
    error_log_request_id: Setting<bool>,
    log_subrequest: Setting<bool>,
    subrequest_buffer_size: Setting<usize>,
    uninitialized_variable_warn: Setting<bool>,
    request_timeout: Setting<Option<Duration>>,
    without_effect: IneffectiveDirectives,
}

/// Lends a part of the settings as written to the file that reads it.
macro_rules! lend {
    ($($part:ty => $field:ident,)*) => {$(
        impl AsMut<$part> for Raw {
            fn as_mut(&mut self) -> &mut $part {
                &mut self.$field
            }
        }
    )*};
}

lend! {
    root::Raw => root,
    access::Raw => access,
    files::Raw => files,
    keepalive::Raw => keepalive,
    lingering::Raw => lingering,
    msie::Raw => msie,
    RawResolving => resolving,
    send::Raw => send,
    client_body::Raw => client_body,
    compression::Raw => compression,
}

tw_base::limits! {
    /// The limits of all parts of a location.
    pub(crate) const LIMITS;

    use client_body::LIMITS;
    /// Ranges of one request.
    directive "max_ranges", "the whole file is sent";
    /// Time of a whole request, with its retries, internal redirects and subrequests.
    directive "request_timeout",
        "408 while the client sends the request, 504 before the response begins; then the connection or the stream is reset";
    use send::LIMITS;
    use keepalive::LIMITS;
    use lingering::LIMITS;
}

/// The records of all parts of a location.
const LISTS: &[&[Directive<Raw>]] = &[
    root::Records::ALL,
    DIRECTIVES,
    access::Records::ALL,
    files::Records::ALL,
    keepalive::Records::ALL,
    send::Records::ALL,
    client_body::Records::ALL,
    lingering::Records::ALL,
    msie::Records::ALL,
    resolver::Records::ALL,
    compression::Records::ALL,
    WITHOUT_EFFECT,
];

/// Records of what has no part of its own.
const DIRECTIVES: &[Directive<Raw>] = &[
    record::new("internal", "", LOCATION, Args::NONE)
        .doc("Only internal redirects may reach the location; everyone else gets 404.")
        .set(|raw, node, _| raw.internal.set_once(node, ())),
    record::new("types", "{ … }", ALL, Args::NONE.block())
        .default("text/html html; image/gif gif; image/jpeg jpg")
        .doc("Media types by file name extension.")
        .set(|raw, node, cx| {
            if !raw.types.is_set() {
                raw.types.replace(node, MediaTypes::default());
            }
            raw.types.get_mut().map_or(Ok(()), |types| types.add_block(node, cx))
        }),
    record::new("default_type", "mime-type", ALL, Args::exact(1))
        .default("text/plain")
        .doc("Media type of files whose extension is not listed.")
        .set(|raw, node, _| raw.default_type.set_bytes(node)),
    record::new("error_page", "code … [=[response]] uri", ALL_IF, Args::at_least(2))
        .doc("URI that answers instead of the built-in page of a status.")
        .set(|raw, node, _| {
            let page = RawErrorPage::parse(node)?;
            raw.error_pages.push(node, page);
            Ok(())
        }),
    record::flag("recursive_error_pages", ALL)
        .default("off")
        .doc("Allows an error page to have an error page.")
        .set(|raw, node, _| raw.recursive_error_pages.set_flag(node)),
    record::new("post_action", "uri", ALL_IF, Args::exact(1))
        .doc("A URI, or a named location, that the request goes on with after its response, for nobody to see.")
        .set(|raw, node, _| raw.post_action.set_bytes(node)),
    record::flag("etag", ALL)
        .default("on")
        .since("1.3.3")
        .doc("Sends ETag with files.")
        .set(|raw, node, _| raw.etag.set_flag(node)),
    record::new("if_modified_since", "off | exact | before", ALL, Args::exact(1))
        .default("exact")
        .since("0.7.24")
        .doc("Compares If-Modified-Since with the time of the file: not at all (off), exactly, or as not before it.")
        .set(|raw, node, _| {
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
        .doc("Ranges one request may ask for; 0 turns ranges off. Without the directive there is no limit.")
        .set(|raw, node, _| raw.max_ranges.set_number(node)),
    record::flag("chunked_transfer_encoding", ALL)
        .default("on")
        .doc("Allows chunked responses of unknown length in HTTP/1.1.")
        .set(|raw, node, _| raw.chunked_transfer_encoding.set_flag(node)),
    record::new("server_tokens", "on | off | build | string", ALL, Args::exact(1))
        .default("on")
        .doc("Sets the text about the server in the field Server and in the built-in pages.")
        .set(|raw, node, _| {
            let word = node.arg(0)?.clone();
            raw.server_tokens.set_once(node, word)
        }),
    record::flag("absolute_redirect", ALL)
        .default("on")
        .since("1.11.8")
        .doc("Redirects name scheme and host.")
        .set(|raw, node, _| raw.absolute_redirect.set_flag(node)),
    record::flag("port_in_redirect", ALL)
        .default("on")
        .doc("Absolute redirects name the port.")
        .set(|raw, node, _| raw.port_in_redirect.set_flag(node)),
    record::flag("server_name_in_redirect", ALL)
        .default("off")
        .doc("Absolute redirects use the first server_name instead of the request's host.")
        .set(|raw, node, _| raw.server_name_in_redirect.set_flag(node)),
    record::new("error_log", "file | stderr | syslog:… | memory:size [level] [json]", MAIN | ALL, Args::at_least(1))
        .default("logs/error.log error")
        .doc("Log file or syslog server for errors, and the minimum level; with json, each line is an object.")
        .set(|raw, node, cx| {
            let target = LogTarget::parse(node, cx)?;
            raw.error_log.push(node, target);
            Ok(())
        }),
    record::new("error_log_tag", "name value", ALL, Args::exact(2))
        .since("1.29.8")
        .doc("Adds a name and a value, which may hold variables, to the tags of lines in an error log in JSON. Inherited if the block has none of its own.")
        .set(|raw, node, _| RawLogTag::read(&mut raw.error_log_tags, node)),
    record::flag("log_not_found", ALL)
        .default("on")
        .doc("Logs missing files to the error log.")
        .set(|raw, node, _| raw.log_not_found.set_flag(node)),
    record::flag("error_log_request_id", ALL)
        .default("off")
        .since("Tailwater 0.1")
        .doc("Adds $request_id to lines of the error log, and the identifiers of the trace and the span if the request is traced.")
        .set(|raw, node, _| raw.error_log_request_id.set_flag(node)),
    record::flag("log_subrequest", ALL)
        .default("off")
        .doc("Logs subrequests to the access log.")
        .set(|raw, node, _| raw.log_subrequest.set_flag(node)),
    record::new("request_timeout", "time | off", ALL, Args::exact(1))
        .default("off")
        .since("Tailwater 0.2")
        .doc("Time from the first byte of a request to the last one of its response, with all retries, internal redirects and subrequests. Then the client gets 408 if it is still sending the request, 504 if the response has not begun; else the connection or the stream is reset. A switch to another protocol (WebSocket) ends the limit.")
        .set(|raw, node, _| raw.request_timeout.set_with(node, read_request_timeout)),
    record::new("early_hints", "string …", ALL, Args::at_least(1))
        .since("1.29.0")
        .doc("Passes early hints (103) of upstream servers to clients if no string is empty or 0.")
        .set(|raw, node, _| {
            node.args.iter().for_each(|word| raw.early_hints.push(node, word.clone()));
            Ok(())
        }),
    record::size("subrequest_output_buffer_size", ALL)
        .default("4k|8k")
        .since("1.13.10")
        .doc("Longest body of a subrequest that is kept in memory, as that of an include of SSI whose result is a variable.")
        .set(|raw, node, _| raw.subrequest_buffer_size.set_size(node)),
    record::flag("uninitialized_variable_warn", ALL_IF | IF_IN_SERVER)
        .default("on")
        .doc("Writes a warning when a variable is used before `set` gave it a value.")
        .set(|raw, node, _| raw.uninitialized_variable_warn.set_flag(node)),
];

// DIFF(nginx): directives that size nginx's hash tables and buffers are accepted and change nothing.
const WITHOUT_EFFECT: &[Directive<Raw>] = &[
    without_effect("types_hash_max_size", "size"),
    without_effect("types_hash_bucket_size", "size"),
    without_effect("postpone_output", "size"),
    without_effect("send_lowat", "size"),
    without_effect("client_body_in_single_buffer", "on | off"),
    without_effect("open_file_cache_events", "on | off"),
];

impl Settings<Http> for Location {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        if let (Some(uri), Some(span)) = (raw.post_action.get(), raw.post_action.span()) {
            cx.block.use_named_location(uri, span);
        }
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
        let early_hints = match raw.early_hints.take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<Arc<[_]>, _>>()?,
            None => outer.map_or_else(|| Arc::new([]) as Arc<[Template]>, |o| o.early_hints.clone()),
        };
        let redirect = outer.map(|o| o.redirect);
        Ok(Self {
            root: Root::resolve(raw.root, outer.map(|o| &o.root), cx)?,
            // The locations inside of an internal one are internal, too.
            visibility: match raw.internal.is_set() {
                true => Visibility::Internal,
                false => outer.map_or(Visibility::Public, |o| o.visibility),
            },
            access: Access::resolve(raw.access, outer.map(|o| &o.access)),
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
            post_action: match raw.post_action.take() {
                Some(target) => Some(target.into()),
                None => outer.and_then(|o| o.post_action.clone()),
            },
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
            files: FileSettings::resolve(raw.files, outer.map(|o| &o.files), cx)?,
            error_log,
            error_log_tags: RawLogTag::resolve(raw.error_log_tags, outer.map(|o| &o.error_log_tags), cx)?,
            log_not_found: raw.log_not_found.or(outer.map(|o| o.log_not_found), true),
            error_log_request_id: raw.error_log_request_id.or(outer.map(|o| o.error_log_request_id), false),
            log_subrequest: raw.log_subrequest.or(outer.map(|o| o.log_subrequest), false),
            subrequest_buffer_size: raw
                .subrequest_buffer_size
                .or(outer.map(|o| o.subrequest_buffer_size), rustix::param::page_size()),
            uninitialized_variable_warn: raw
                .uninitialized_variable_warn
                .or(outer.map(|o| o.uninitialized_variable_warn), true),
            request_timeout: raw.request_timeout.or(outer.map(|o| o.request_timeout), None),
            keepalive: KeepAlive::resolve(raw.keepalive, outer.map(|o| &o.keepalive)),
            send: Send::resolve(raw.send, outer.map(|o| &o.send), cx)?,
            client_body: ClientBody::resolve(raw.client_body, outer.map(|o| &o.client_body), cx),
            lingering: Lingering::resolve(raw.lingering, outer.map(|o| &o.lingering)),
            msie: Msie::resolve(raw.msie, outer.map(|o| &o.msie)),
            resolving: Resolving::resolve(raw.resolving, outer.map(|o| &o.resolving), cx),
            early_hints,
            compression: Compression::resolve(raw.compression, outer.map(|o| &o.compression), cx)?,
        })
    }

    fn are_shared(&self) -> bool {
        self.visibility == Visibility::Public
    }

    fn reach(&self, _core: &Self, reach: &mut Reach) {
        reach.reads(&self.root.path, self.root.at);
        reach.changes(&Template::text(self.client_body.temp_path.path.to_bytes()), None);
    }
}

/// Reads `off` or a time above 0.
fn read_request_timeout(node: &Node) -> Result<Option<Duration>, ConfError> {
    if node.arg(0)?.is("off") {
        return Ok(None);
    }
    Ok(Some(node.msec()?).filter(|time| !time.is_zero()))
}

const fn without_effect(name: &'static str, syntax: &'static str) -> Directive<Raw> {
    record::new(name, syntax, ALL, Args::exact(1))
        .doc("Accepted and without effect: there is no table or buffer here that needs this size.")
        .set(|raw, node, _| {
            if node.name.is("client_body_in_single_buffer") || node.name.is("open_file_cache_events") {
                node.flag()?;
            } else {
                node.size()?;
            }
            raw.without_effect.set_once(node)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_in_the_list() {
        let names: Vec<_> = Location::DIRECTIVES.iter().map(|record| record.name).collect();
        for name in ["alias", "etag", "aio", "keepalive_time", "send_timeout", "client_max_body_size"] {
            assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{name}");
        }
        assert_eq!(names.last(), Some(&"open_file_cache_events"));
        assert!(!names.contains(&""));
    }
}
