//! Properties of WebDAV (RFC 4918 section 15), and the `response` elements that tell them. No I/O and no clock.
//!
//! Links are percent-encoded bytes, so that every name can be asked for; texts are characters that XML allows.

use std::sync::Arc;

use bytes::Bytes;
use tw_disk::{FileKind, FileMeta};
use tw_http::condition::Etag;
use tw_http::escape::{Escape, push_html};
use tw_http::{date, num, target};
use tw_module_support::date_format::push_iso8601;
use tw_request::config::media_types::MediaTypes;

/// Property that this server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prop {
    CreationDate,
    DisplayName,
    ContentLength,
    ContentType,
    ETag,
    LastModified,
    ResourceType,
    LockDiscovery,
    SupportedLock,
}

impl Prop {
    /// Properties in the order in which they are written, with their names.
    const ALL: [(Self, &'static str); 9] = [
        (Self::CreationDate, "creationdate"),
        (Self::DisplayName, "displayname"),
        (Self::ContentLength, "getcontentlength"),
        (Self::ContentType, "getcontenttype"),
        (Self::ETag, "getetag"),
        (Self::LastModified, "getlastmodified"),
        (Self::ResourceType, "resourcetype"),
        (Self::LockDiscovery, "lockdiscovery"),
        (Self::SupportedLock, "supportedlock"),
    ];

    /// The property of this name.
    pub(super) fn find(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, candidate)| candidate.as_bytes() == name).map(|(prop, _)| prop)
    }
}

/// A set of properties.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PropSet(u16);

impl PropSet {
    /// Adds one.
    pub(super) fn add(&mut self, prop: Prop) {
        self.0 |= 1 << prop as u16;
    }

    fn has(self, prop: Prop) -> bool {
        self.0 & 1 << prop as u16 != 0
    }
}

/// Properties that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestedProps {
    All,
    /// Only the names.
    Names,
    Some {
        props: PropSet,
        /// Empty elements of properties that nothing has.
        unknown: Vec<u8>,
    },
}

/// Resource whose properties are told.
pub(super) struct Resource<'a> {
    /// Path; that of a collection ends with a slash.
    pub(super) uri: &'a [u8],
    pub(super) meta: &'a FileMeta,
    /// `activelock` elements of the locks that cover it.
    pub(super) locks: &'a [&'a [u8]],
}

/// Properties as one request wants them, and the settings of its location.
#[derive(Clone)]
pub(super) struct PropWriter {
    pub(super) requested: RequestedProps,
    pub(super) types: Arc<MediaTypes>,
    pub(super) default_type: Bytes,
    /// True if files have entity tags.
    pub(super) has_etags: bool,
    /// True if resources can be locked.
    pub(super) has_locks: bool,
}

/// Begin of a response to PROPFIND.
pub(super) const MULTISTATUS: &[u8] =
    b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n";
/// End of such a response.
pub(super) const MULTISTATUS_END: &[u8] = b"</D:multistatus>\n";

const LOCK_ENTRIES: &[u8] = b"<D:lockentry><D:lockscope><D:exclusive/></D:lockscope>\
<D:locktype><D:write/></D:locktype></D:lockentry>\
<D:lockentry><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>";

impl PropWriter {
    /// Writes the `response` element of a resource.
    pub(super) fn push(&self, resource: &Resource<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"<D:response>\n<D:href>");
        push_href(resource.uri, out);
        out.extend_from_slice(b"</D:href>\n");
        let mut missing = Vec::new();
        let start = out.len();
        out.extend_from_slice(b"<D:propstat>\n<D:prop>\n");
        let empty = out.len();
        for (prop, name) in Prop::ALL {
            match &self.requested {
                RequestedProps::Some { props: prop_set, .. } if !prop_set.has(prop) => {}
                RequestedProps::Some { .. } if !self.exists(prop, resource) => push_empty(name, &mut missing),
                RequestedProps::Names if self.exists(prop, resource) => push_empty(name, out),
                RequestedProps::All | RequestedProps::Some { .. } if self.exists(prop, resource) => {
                    self.push_prop(prop, name, resource, out);
                }
                _ => {}
            }
        }
        if let RequestedProps::Some { unknown, .. } = &self.requested {
            missing.extend_from_slice(unknown);
        }
        if out.len() == empty && !missing.is_empty() {
            out.truncate(start);
        } else {
            out.extend_from_slice(b"</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n");
        }
        if !missing.is_empty() {
            out.extend_from_slice(b"<D:propstat>\n<D:prop>\n");
            out.extend_from_slice(&missing);
            out.extend_from_slice(b"</D:prop>\n<D:status>HTTP/1.1 404 Not Found</D:status>\n</D:propstat>\n");
        }
        out.extend_from_slice(b"</D:response>\n");
    }

    fn exists(&self, prop: Prop, resource: &Resource<'_>) -> bool {
        let is_file = resource.meta.kind == FileKind::File;
        match prop {
            Prop::ContentLength | Prop::ContentType => is_file,
            Prop::ETag => is_file && self.has_etags,
            Prop::LockDiscovery | Prop::SupportedLock => self.has_locks,
            Prop::CreationDate | Prop::DisplayName | Prop::LastModified | Prop::ResourceType => true,
        }
    }

    fn push_prop(&self, prop: Prop, name: &str, resource: &Resource<'_>, out: &mut Vec<u8>) {
        let Resource { uri, meta, locks } = *resource;
        out.extend_from_slice(format!("<D:{name}>").as_bytes());
        match prop {
            // File systems know no better one that a copy keeps.
            Prop::CreationDate => push_iso8601(meta.ctime_sec.min(meta.mtime_sec), out),
            Prop::DisplayName => push_text(last_name(uri), out),
            Prop::ContentLength => num::push_decimal(out, meta.size),
            Prop::ContentType => {
                let bytes = self.types.find(target::exten(uri));
                push_text(bytes.unwrap_or(&self.default_type), out);
            }
            Prop::ETag => push_html(Etag::of_file(meta.mtime_sec, meta.size).as_bytes(), out),
            Prop::LastModified => out.extend_from_slice(&date::format(meta.mtime_sec)),
            Prop::ResourceType if meta.kind == FileKind::Directory => {
                out.extend_from_slice(b"<D:collection/>")
            }
            Prop::ResourceType => {}
            Prop::LockDiscovery => locks.iter().for_each(|locks| out.extend_from_slice(locks)),
            Prop::SupportedLock => out.extend_from_slice(LOCK_ENTRIES),
        }
        out.extend_from_slice(format!("</D:{name}>\n").as_bytes());
    }
}

fn push_empty(name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("<D:{name}/>\n").as_bytes());
}

/// Writes the path of a URI as the content of an element.
pub(super) fn push_href(uri: &[u8], out: &mut Vec<u8>) {
    let mut escaped = Vec::with_capacity(uri.len());
    Escape::Uri.push(uri, &mut escaped);
    push_html(&escaped, out);
}

/// Writes bytes as text: what is no UTF-8, and what XML does not allow, as U+FFFD.
fn push_text(bytes: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(bytes);
    if text.chars().any(is_forbidden) {
        let text: String =
            text.chars().map(|char| if is_forbidden(char) { '\u{fffd}' } else { char }).collect();
        push_html(text.as_bytes(), out);
    } else {
        push_html(text.as_bytes(), out);
    }
}

/// Last name of a path.
fn last_name(uri: &[u8]) -> &[u8] {
    let uri = uri.strip_suffix(b"/").unwrap_or(uri);
    uri.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns true for a character that XML does not allow.
pub(super) fn is_forbidden(char: char) -> bool {
    char.is_control() && !matches!(char, '\t' | '\n' | '\r') || matches!(char, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(requested_props: RequestedProps) -> PropWriter {
        let default_type = Bytes::from_static(b"text/plain");
        PropWriter {
            requested: requested_props,
            types: MediaTypes::builtin(),
            default_type,
            has_etags: true,
            has_locks: true,
        }
    }

    fn xml_of(writer: &PropWriter, uri: &[u8], kind: FileKind) -> String {
        let meta = meta(kind);
        let mut out = Vec::new();
        writer.push(&Resource { uri, meta: &meta, locks: &[b"LOC", b"KS"] }, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn meta(kind: FileKind) -> FileMeta {
        FileMeta {
            dev: 1,
            ino: 1,
            size: 5,
            mtime_sec: 784_111_777,
            mtime_nsec: 0,
            ctime_sec: 0,
            ctime_nsec: 0,
            mode: 0o644,
            kind,
            nlink: 1,
            uid: 0,
            gid: 0,
            blocks: 0,
        }
    }

    fn some(props: &[Prop], unknown: &[u8]) -> RequestedProps {
        let mut prop_set = PropSet::default();
        props.iter().for_each(|prop| prop_set.add(*prop));
        RequestedProps::Some { props: prop_set, unknown: unknown.to_vec() }
    }

    #[test]
    fn all_properties_of_files_and_collections() {
        let file = xml_of(&writer(RequestedProps::All), b"/d/a&b c.html", FileKind::File);
        for expected in [
            "<D:href>/d/a&amp;b%20c.html</D:href>",
            "<D:creationdate>1970-01-01T00:00:00Z</D:creationdate>",
            "<D:displayname>a&amp;b c.html</D:displayname>",
            "<D:getcontentlength>5</D:getcontentlength>",
            "<D:getcontenttype>text/html</D:getcontenttype>",
            "<D:getetag>&quot;2ebc98a1-5&quot;</D:getetag>",
            "<D:getlastmodified>Sun, 06 Nov 1994 08:49:37 GMT</D:getlastmodified>",
            "<D:resourcetype></D:resourcetype>",
            "<D:lockdiscovery>LOCKS</D:lockdiscovery>",
            "<D:supportedlock><D:lockentry>",
            "<D:status>HTTP/1.1 200 OK</D:status>",
        ] {
            assert!(file.contains(expected), "{expected}\n{file}");
        }
        let collection = xml_of(&writer(RequestedProps::All), b"/d/", FileKind::Directory);
        assert!(collection.contains("<D:resourcetype><D:collection/></D:resourcetype>"), "{collection}");
        assert!(!collection.contains("getcontentlength") && !collection.contains("404"), "{collection}");
        let names = xml_of(&writer(RequestedProps::Names), b"/d/", FileKind::Directory);
        assert!(names.contains("<D:displayname/>\n") && !names.contains("getetag"), "{names}");
        let without = PropWriter { has_locks: false, has_etags: false, ..writer(RequestedProps::All) };
        let without = xml_of(&without, b"/f", FileKind::File);
        assert!(!without.contains("lock") && !without.contains("getetag"), "{without}");
    }

    #[test]
    fn missing_properties_are_not_found() {
        let requested_props = some(&[Prop::ContentLength, Prop::ResourceType], b"<x:a xmlns:x=\"u:\"/>\n");
        let text = xml_of(&writer(requested_props), b"/d/", FileKind::Directory);
        assert!(
            text.ends_with(
                "<D:propstat>\n<D:prop>\n<D:resourcetype><D:collection/></D:resourcetype>\n</D:prop>\n\
                 <D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n\
                 <D:propstat>\n<D:prop>\n<D:getcontentlength/>\n<x:a xmlns:x=\"u:\"/>\n</D:prop>\n\
                 <D:status>HTTP/1.1 404 Not Found</D:status>\n</D:propstat>\n</D:response>\n"
            ),
            "{text}"
        );
        let text = xml_of(&writer(some(&[Prop::ETag], b"")), b"/d/", FileKind::Directory);
        assert!(!text.contains("200 OK") && text.contains("404 Not Found"), "{text}");
        let text = xml_of(&writer(some(&[], b"")), b"/d/", FileKind::Directory);
        assert!(text.contains("<D:prop>\n</D:prop>\n<D:status>HTTP/1.1 200 OK"), "{text}");
    }

    #[test]
    fn odd_names_stay_well_formed() {
        let text = xml_of(&writer(RequestedProps::All), b"/a\x01\xff<]]>\x7f\n\xc3\xa4?", FileKind::File);
        assert!(text.contains("<D:href>/a%01%FF%3C]]%3E%7F%0A%C3%A4%3F</D:href>"), "{text}");
        assert!(
            text.contains("<D:displayname>a\u{fffd}\u{fffd}&lt;]]&gt;\u{fffd}\n\u{e4}?</D:displayname>"),
            "{text}"
        );
        assert_eq!(last_name(b"/"), b"");
    }
}
