//! Bodies of PROPFIND and LOCK (RFC 4918 sections 14.20 and 14.11). No I/O.
//!
//! A body is read with limits, and nothing in it is expanded: a document type, and with it every entity of its own, is
//! refused.

use quick_xml::NsReader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, Event};
use quick_xml::name::{Namespace, ResolveResult};
use tw_http::escape::push_html;

use super::locks::LockScope;
use super::props::{Prop, PropSet, RequestedProps, is_forbidden};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of the body of PROPFIND and LOCK.
    pub(super) const BODY_MAX: usize = 16 << 10, bytes, "413";
    /// Elements inside each other in such a body.
    pub(super) const XML_DEPTH_MAX: usize = 32, count, "400";
    /// Properties that a PROPFIND names.
    pub(super) const PROPERTIES_MAX: usize = 128, count, "400";
    /// Bytes of the owner of a lock.
    pub(super) const OWNER_MAX: usize = 1024, bytes, "the lock has no owner";
}

const DAV: &[u8] = b"DAV:";

/// A body that is not read: malformed, beyond a limit, or of another kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidXml;

/// Lock that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LockInfo {
    pub(super) scope: LockScope,
    /// XML that describes the owner, written anew.
    pub(super) owner: Box<[u8]>,
}

/// Part of a document.
enum Part<'x> {
    /// Begin of an element: namespace and name.
    Open(&'x [u8], &'x [u8]),
    Close,
    Text(&'x str),
}

/// Reads the properties that a PROPFIND asks for; without a body, all.
pub(super) fn propfind(body: &[u8]) -> Result<RequestedProps, InvalidXml> {
    if body.trim_ascii().is_empty() {
        return Ok(RequestedProps::All);
    }
    let mut depth = 0;
    let mut count = 0;
    let mut requested_props = None;
    let mut in_prop = false;
    walk(body, |part| {
        match part {
            Part::Close => depth -= 1,
            Part::Text(_) => {}
            Part::Open(namespace, name) => {
                match (depth, namespace, name) {
                    (0, DAV, b"propfind") => {}
                    (0, ..) => return Err(InvalidXml),
                    (1, DAV, b"allprop" | b"propname" | b"prop") => {
                        if requested_props.is_some() {
                            return Err(InvalidXml);
                        }
                        in_prop = name == b"prop";
                        requested_props = Some(match name {
                            b"allprop" => RequestedProps::All,
                            b"propname" => RequestedProps::Names,
                            _ => RequestedProps::Some { props: PropSet::default(), unknown: Vec::new() },
                        });
                    }
                    // `include` adds nothing: all properties are written anyway.
                    (1, ..) => in_prop = false,
                    (2, ..) if in_prop => {
                        count += 1;
                        add(requested_props.as_mut(), namespace, name, count)?;
                    }
                    _ => {}
                }
                depth += 1;
            }
        }
        Ok(())
    })?;
    requested_props.ok_or(InvalidXml)
}

/// Adds a property to those that are wanted.
fn add(
    requested_props: Option<&mut RequestedProps>,
    namespace: &[u8],
    name: &[u8],
    count: usize,
) -> Result<(), InvalidXml> {
    if count > PROPERTIES_MAX || !is_name(name) {
        return Err(InvalidXml);
    }
    let Some(RequestedProps::Some { props: prop_set, unknown }) = requested_props else { return Ok(()) };
    match Prop::find(name).filter(|_| namespace == DAV) {
        Some(prop) => prop_set.add(prop),
        // The name is written back as it came, with a prefix of its own.
        None if namespace.is_empty() => {
            unknown.extend_from_slice(&[b"<", name, b" xmlns=\"\"/>\n"].concat());
        }
        None => {
            unknown.extend_from_slice(&[b"<x:", name, b" xmlns:x=\""].concat());
            push_html(namespace, unknown);
            unknown.extend_from_slice(b"\"/>\n");
        }
    }
    Ok(())
}

/// Reads the lock that a LOCK asks for.
pub(super) fn lockinfo(body: &[u8]) -> Result<LockInfo, InvalidXml> {
    let mut path: Vec<Box<[u8]>> = Vec::new();
    let mut scope = None;
    let mut is_write = false;
    let mut owner = Vec::new();
    let mut href = Vec::new();
    walk(body, |part| {
        match part {
            Part::Close => {
                path.pop();
            }
            Part::Open(namespace, name) => {
                path.push(if namespace == DAV { name.into() } else { [].into() });
                let names: Vec<&[u8]> = path.iter().map(|name| &**name).collect();
                match names.as_slice() {
                    [b"lockinfo"] => {}
                    [_] => return Err(InvalidXml),
                    [_, b"lockscope", b"exclusive"] => scope = Some(LockScope::Exclusive),
                    [_, b"lockscope", b"shared"] => scope = Some(LockScope::Shared),
                    [_, b"locktype", b"write"] => is_write = true,
                    _ => {}
                }
            }
            Part::Text(text) => match path.as_slice() {
                [_, owns, inner] if **owns == *b"owner" && **inner == *b"href" => {
                    href.extend_from_slice(text.as_bytes());
                }
                [_, owns, ..] if **owns == *b"owner" => owner.extend_from_slice(text.as_bytes()),
                _ => {}
            },
        }
        Ok(())
    })?;
    match (scope, is_write) {
        (Some(scope), true) => Ok(LockInfo { scope, owner: owner_text(&owner, &href) }),
        _ => Err(InvalidXml),
    }
}

/// The owner as XML: the address if there is one, else the text. One that is too long is left out.
fn owner_text(text: &[u8], href: &[u8]) -> Box<[u8]> {
    let text = text.trim_ascii();
    let href = href.trim_ascii();
    let mut out = Vec::new();
    if href.is_empty() {
        push_html(text, &mut out);
    } else {
        out.extend_from_slice(b"<D:href>");
        push_html(href, &mut out);
        out.extend_from_slice(b"</D:href>");
    }
    if out.len() > OWNER_MAX { [].into() } else { out.into() }
}

/// Calls `visit` for each part of a document.
fn walk(body: &[u8], mut visit: impl FnMut(Part<'_>) -> Result<(), InvalidXml>) -> Result<(), InvalidXml> {
    let text = std::str::from_utf8(body).map_err(|_| InvalidXml)?;
    if text.chars().any(is_forbidden) {
        return Err(InvalidXml);
    }
    let mut reader = NsReader::from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    reader.config_mut().expand_empty_elements = true;
    let mut depth = 0;
    let mut has_root = false;
    loop {
        let (namespace, event) = reader.read_resolved_event().map_err(|_| InvalidXml)?;
        match event {
            Event::Start(element) => {
                if depth == XML_DEPTH_MAX || depth == 0 && has_root {
                    return Err(InvalidXml);
                }
                (depth, has_root) = (depth + 1, true);
                let namespace = match namespace {
                    ResolveResult::Bound(Namespace(namespace)) if !namespace.contains(&b'&') => namespace,
                    ResolveResult::Unbound => &[],
                    ResolveResult::Bound(_) | ResolveResult::Unknown(_) => return Err(InvalidXml),
                };
                visit(Part::Open(namespace, element.local_name().as_ref()))?;
            }
            Event::End(_) => {
                depth -= 1;
                visit(Part::Close)?;
            }
            Event::Text(text) => visit(Part::Text(&text.decode().map_err(|_| InvalidXml)?))?,
            Event::CData(text) => visit(Part::Text(&text.decode().map_err(|_| InvalidXml)?))?,
            Event::GeneralRef(reference) => {
                let mut buf = [0; 4];
                visit(Part::Text(resolve(&reference, &mut buf)?))?;
            }
            Event::DocType(_) => return Err(InvalidXml),
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) | Event::Empty(_) => {}
            Event::Eof => return if has_root && depth == 0 { Ok(()) } else { Err(InvalidXml) },
        }
    }
}

/// Character that a reference stands for; no entity but the five of XML itself.
fn resolve<'b>(reference: &BytesRef<'_>, buf: &'b mut [u8; 4]) -> Result<&'b str, InvalidXml> {
    match reference.resolve_char_ref() {
        Ok(Some(char)) if !is_forbidden(char) => Ok(char.encode_utf8(buf)),
        Ok(None) => {
            reference.decode().ok().and_then(|name| resolve_predefined_entity(&name)).ok_or(InvalidXml)
        }
        Ok(Some(_)) | Err(_) => Err(InvalidXml),
    }
}

/// Returns true for the name of an element that can be written back.
fn is_name(name: &[u8]) -> bool {
    let is_start = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_' || *byte >= 0x80;
    let is_inner = |byte: &u8| is_start(byte) || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    name.first().is_some_and(is_start) && name.iter().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(inner: &str) -> Result<RequestedProps, InvalidXml> {
        propfind(
            format!("<?xml version=\"1.0\"?><D:propfind xmlns:D=\"DAV:\">{inner}</D:propfind>").as_bytes(),
        )
    }

    fn some(props: &[Prop], unknown: &str) -> RequestedProps {
        let mut prop_set = PropSet::default();
        props.iter().for_each(|prop| prop_set.add(*prop));
        RequestedProps::Some { props: prop_set, unknown: unknown.into() }
    }

    #[test]
    fn propfind_bodies() {
        assert_eq!(propfind(b" \r\n"), Ok(RequestedProps::All));
        for (inner, expected) in [
            ("<D:allprop/>", RequestedProps::All),
            ("<D:allprop/><D:include><D:supported-live-property-set/></D:include>", RequestedProps::All),
            ("<D:propname/>", RequestedProps::Names),
            ("<D:prop/>", some(&[], "")),
            (
                "<D:prop><D:getetag/><D:resourcetype></D:resourcetype></D:prop>",
                some(&[Prop::ETag, Prop::ResourceType], ""),
            ),
            ("<x/><D:prop><getetag xmlns=\"DAV:\"/></D:prop>", some(&[Prop::ETag], "")),
            (
                "<D:prop><D:a-b/><Z:c xmlns:Z='http://z/?\"'/><d/></D:prop>",
                some(
                    &[],
                    "<x:a-b xmlns:x=\"DAV:\"/>\n<x:c xmlns:x=\"http://z/?&quot;\"/>\n<d xmlns=\"\"/>\n",
                ),
            ),
            (
                "<D:prop><o:getetag xmlns:o=\"other:\"><D:getetag/></o:getetag></D:prop>",
                some(&[], "<x:getetag xmlns:x=\"other:\"/>\n"),
            ),
        ] {
            assert_eq!(asked(inner), Ok(expected), "{inner}");
        }
    }

    #[test]
    fn hostile_bodies_are_refused() {
        let deep = "<a>".repeat(XML_DEPTH_MAX) + &"</a>".repeat(XML_DEPTH_MAX);
        let many = format!("<D:prop>{}</D:prop>", "<a/>".repeat(PROPERTIES_MAX + 1));
        let allowed = format!("<D:prop>{}</D:prop>", "<a/>".repeat(PROPERTIES_MAX));
        assert!(asked(&allowed).is_ok());
        for inner in [
            "",
            "<D:prop>",
            "</D:prop>",
            "<D:prop/><D:allprop/>",
            "<D:prop><u:a/></D:prop>",
            "<D:prop><a&b/></D:prop>",
            "<D:prop><a\"b/></D:prop>",
            "<D:prop><a xmlns=\"&x;\"/></D:prop>",
            "<D:prop>&x;</D:prop>",
            "<D:prop>&#0;</D:prop>",
            "<D:prop>\u{1}</D:prop>",
            &deep,
            &many,
        ] {
            assert_eq!(asked(inner), Err(InvalidXml), "{inner}");
        }
        for body in [
            "x",
            "<propfind/>",
            "<!DOCTYPE a [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><D:propfind xmlns:D=\"DAV:\"><D:prop>&x;</D:prop></D:propfind>",
            "<!DOCTYPE a><D:propfind xmlns:D=\"DAV:\"><D:allprop/></D:propfind>",
            "<D:propfind xmlns:D=\"DAV:\"><D:allprop/></D:propfind><D:propfind xmlns:D=\"DAV:\"/>",
            "<D:other xmlns:D=\"DAV:\"><D:allprop/></D:other>",
        ] {
            assert_eq!(propfind(body.as_bytes()), Err(InvalidXml), "{body}");
        }
        assert_eq!(
            propfind(b"<D:propfind xmlns:D=\"DAV:\"><D:prop>\xff</D:prop></D:propfind>"),
            Err(InvalidXml)
        );
    }

    #[test]
    fn lock_bodies() {
        let asked = |inner: &str| lockinfo(format!("<lockinfo xmlns=\"DAV:\">{inner}</lockinfo>").as_bytes());
        let scope = "<lockscope><exclusive/></lockscope><locktype><write/></locktype>";
        let shared = scope.replace("exclusive", "shared");
        let long = format!("{scope}<owner>{}</owner>", "x".repeat(OWNER_MAX + 1));
        for (inner, scope, owner) in [
            (scope, LockScope::Exclusive, ""),
            (&shared, LockScope::Shared, ""),
            (
                &format!("{scope}<owner> a &lt;b&gt;&#38; <i>c</i></owner>"),
                LockScope::Exclusive,
                "a &lt;b&gt;&amp; c",
            ),
            (
                &format!("{shared}<owner><href>http://a/&quot;</href></owner>"),
                LockScope::Shared,
                "<D:href>http://a/&quot;</D:href>",
            ),
            (&long, LockScope::Exclusive, ""),
        ] {
            assert_eq!(asked(inner), Ok(LockInfo { scope, owner: owner.as_bytes().into() }), "{inner}");
        }
        for inner in [
            "",
            "<lockscope><exclusive/></lockscope>",
            "<locktype><write/></locktype>",
            "<lockscope/><locktype><write/></locktype>",
        ] {
            assert_eq!(asked(inner), Err(InvalidXml), "{inner}");
        }
        assert_eq!(lockinfo(b""), Err(InvalidXml));
    }
}
