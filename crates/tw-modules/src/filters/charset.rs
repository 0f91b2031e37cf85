//! `charset`, `charset_map`: names the charset of a response, and recodes its body (nginx:
//! ngx_http_charset_filter_module). Header filter.

mod table;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use tw_conf::{
    Args, ConfError, Directive, HTTP, IF_IN_LOCATION, LOCATION, Node, SERVER, Setting, Span, Word, record,
};
use tw_core::module::Settings;
use tw_http::HeaderName;
use tw_log::{Level, Text};
use tw_module_support::changed_body::remove_length;
use tw_module_support::types::{self, RawTypes, Types};
use tw_request::body::{Body, Pull};
use tw_request::plan::{HeaderFilter, LocalFuture, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Template, Value};

use self::table::{CharsetMap, Recoder, RecodingTable};

const ALL: u32 = HTTP | SERVER | LOCATION;
const ALL_IF: u32 = ALL | IF_IN_LOCATION;
/// Types whose charset is named without `charset_types`.
const TYPES: &[&str] = &[
    "text/html",
    "text/xml",
    "text/plain",
    "text/vnd.wap.wml",
    "application/javascript",
    "application/rss+xml",
];
/// Type whose charset is named whatever `charset_types` lists.
const TYPES_ALWAYS: &[&str] = &["text/html"];
const UTF_8: &[u8] = b"utf-8";

/// Charsets as written.
#[derive(Default)]
pub(crate) struct Raw {
    charset: Setting<RawName>,
    source: Setting<RawName>,
    replaces: Setting<bool>,
    maps: Vec<NamedMap>,
    types: RawTypes,
}

#[derive(Clone)]
enum RawName {
    Off,
    Is(Word),
}

/// Charsets of one location.
pub(crate) struct Charset {
    charset: Name,
    source: Name,
    /// Set if `charset` replaces one that the response has already.
    replaces: bool,
    maps: Arc<[NamedMap]>,
    types: Types,
}

/// A charset.
#[derive(Clone)]
enum Name {
    Off,
    Is(Bytes),
    Variable(Template),
}

/// A `charset_map`.
struct NamedMap {
    from: Box<[u8]>,
    to: Box<[u8]>,
    map: CharsetMap,
}

/// The charset of the main response, which its parts are recoded to.
struct MainCharset(Bytes);

impl Settings<Http> for Charset {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("charset", "charset | off", ALL_IF, Args::exact(1))
            .default("off")
            .doc("Names the charset in Content-Type, and recodes the body from source_charset.")
            .set(|raw, node, _| {
                raw.charset.set_with(node, |node| {
                    let word = node.arg(0)?;
                    Ok(if word.is("off") { RawName::Off } else { RawName::Is(word.clone()) })
                })
            }),
        record::new("source_charset", "charset", ALL_IF, Args::exact(1))
            .doc("The charset a body is in, if it is another than that of `charset`.")
            .set(|raw, node, _| raw.source.set_with(node, |node| Ok(RawName::Is(node.arg(0)?.clone())))),
        record::flag("override_charset", ALL_IF)
            .default("off")
            .doc("Recodes also what comes with a charset from a proxied server.")
            .set(|raw, node, _| raw.replaces.set_flag(node)),
        record::new("charset_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html text/xml text/plain text/vnd.wap.wml application/javascript application/rss+xml")
            .since("0.7.9")
            .doc("Media types besides text/html whose charset is named; `*` is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES_ALWAYS, cx);
                Ok(())
            }),
        record::new("charset_map", "charset1 charset2 { … }", HTTP, Args::exact(2).block())
            .doc("A table from one charset to another, in hexadecimal digits: a code of the first, then one of the second.")
            .set(|raw, node, _| {
                let map = read_map(node, &raw.maps)?;
                raw.maps.push(map);
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let span = raw.charset.span().or(raw.source.span());
        let mut name = |raw: Setting<RawName>, outer: Option<&Name>| match raw.take() {
            None => Ok(outer.cloned().unwrap_or(Name::Off)),
            Some(RawName::Off) => Ok(Name::Off),
            Some(RawName::Is(word)) if word.bytes.starts_with(b"$") => cx.template(&word).map(Name::Variable),
            Some(RawName::Is(word)) => Ok(Name::Is(Bytes::copy_from_slice(&word.bytes))),
        };
        let settings = Self {
            charset: name(raw.charset, outer.map(|o| &o.charset))?,
            source: name(raw.source, outer.map(|o| &o.source))?,
            replaces: raw.replaces.or(outer.map(|o| o.replaces), false),
            maps: outer.map_or_else(|| raw.maps.into(), |o| o.maps.clone()),
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
        };
        settings.check(span)?;
        Ok(settings)
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        // An upstream server may choose the charset of the client, whatever is configured (`X-Accel-Charset`).
        if !matches!((&self.charset, &self.source), (Name::Off, Name::Off)) || !self.maps.is_empty() {
            plan.add_header_filter(self.clone());
        }
    }
}

/// Reads a `charset_map`. `named_maps` are those before it.
fn read_map(node: &Node, named_maps: &[NamedMap]) -> Result<NamedMap, ConfError> {
    let [from, to] = node.words()?;
    if from.bytes.eq_ignore_ascii_case(&to.bytes) {
        return Err(node.fail(format!("\"charset_map\" between the same charsets \"{from}\" and \"{to}\"")));
    }
    if from.bytes.eq_ignore_ascii_case(UTF_8) {
        return Err(node.fail("\"charset_map\" with \"utf-8\" charset should be given in the second column"));
    }
    if named_maps.iter().any(|map| map.table(&from.bytes, &to.bytes).is_some()) {
        return Err(node.fail(format!("duplicate \"charset_map\" between \"{from}\" and \"{to}\"")));
    }
    let mut map =
        if to.bytes.eq_ignore_ascii_case(UTF_8) { CharsetMap::of_utf8() } else { CharsetMap::of_bytes() };
    for line in node.children()? {
        let (code, [value]) = (&line.name.bytes, &*line.args) else {
            return Err(line.fail("invalid parameters number"));
        };
        map.add(code, &value.bytes)
            .map_err(|word| line.fail(format!("invalid value \"{}\"", String::from_utf8_lossy(word))))?;
    }
    Ok(NamedMap { from: from.bytes.clone(), to: to.bytes.clone(), map })
}

impl NamedMap {
    /// The table from one of its charsets to the other.
    fn table(&self, from: &[u8], to: &[u8]) -> Option<&RecodingTable> {
        let is = |one: &[u8], other: &[u8]| one.eq_ignore_ascii_case(other);
        if is(&self.from, from) && is(&self.to, to) {
            Some(&self.map.forth)
        } else if is(&self.from, to) && is(&self.to, from) {
            Some(&self.map.back)
        } else {
            None
        }
    }
}

fn missing_map(from: &[u8], to: &[u8]) -> String {
    format!("no \"charset_map\" between the charsets \"{}\" and \"{}\"", Text(from), Text(to))
}

impl Charset {
    /// The table from a charset to another, and where it is.
    fn table(&self, from: &[u8], to: &[u8]) -> Option<(usize, &RecodingTable)> {
        self.maps.iter().enumerate().find_map(|(at, map)| Some((at, map.table(from, to)?)))
    }

    /// Two charsets that are not variables must have a map between them.
    fn check(&self, written_span: Option<Span>) -> Result<(), ConfError> {
        let (Name::Is(to), Name::Is(from)) = (&self.charset, &self.source) else { return Ok(()) };
        if from.eq_ignore_ascii_case(to) || self.table(from, to).is_some() {
            return Ok(());
        }
        let error = ConfError::new(missing_map(from, to));
        Err(match written_span {
            Some(span) => error.at(span),
            None => error,
        })
    }

    /// The charset the client is to get.
    fn destination(&self, r: &mut Request, own: Option<&Bytes>) -> Option<Bytes> {
        if r.is_subrequest() {
            return r.extensions.get::<MainCharset>().map(|main| main.0.clone());
        }
        if let Some(upstream) = &r.upstream.charset {
            return Some(upstream.clone()).filter(|upstream| !upstream.is_empty());
        }
        let is_meant = if own.is_some() { self.replaces } else { self.types.contain(&r.response) };
        if r.response.content_type.is_empty() || !is_meant {
            return None;
        }
        // DIFF(nginx): an empty value is no charset.
        self.charset.value(r)
    }

    /// Names the charset of a response, but not of a part.
    fn set_charset(&self, r: &mut Request, charset: Bytes) {
        if r.is_subrequest() {
            return;
        }
        r.response.cut_charset();
        self.remember(r, charset.clone());
        // As in nginx: old browsers apply the charset of a redirect to the target page.
        r.response.charset = if matches!(r.response.status, 301 | 302) { Bytes::new() } else { charset };
    }

    /// Keeps the charset of a response for its parts. Without a map none of them can be recoded.
    fn remember(&self, r: &mut Request, charset: Bytes) {
        if !self.maps.is_empty() {
            r.extensions.put(Rc::new(MainCharset(charset)));
        }
    }
}

impl Name {
    fn value(&self, r: &Request) -> Option<Bytes> {
        match self {
            Self::Off => None,
            Self::Is(name) => Some(name.clone()),
            Self::Variable(text) => {
                let mut out = Vec::new();
                let mut is_found = true;
                text.eval_each(r, &mut out, |_, _, value| is_found &= value == Value::Found);
                is_found.then(|| out.into())
            }
        }
    }
}

impl HeaderFilter for Charset {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        let own = r.response.own_charset();
        let Some(to) = self.destination(r, own.as_ref()) else {
            if let Some(own) = own.filter(|_| !r.is_subrequest()) {
                self.remember(r, own);
            }
            return body;
        };
        let Some(from) = own.or_else(|| self.source.value(r)).filter(|from| !from.eq_ignore_ascii_case(&to))
        else {
            self.set_charset(r, to);
            return body;
        };
        if r.response.fields.has(HeaderName::ContentEncoding) {
            return body;
        }
        let Some((at, table)) = self.table(&from, &to) else {
            r.log(Level::Error, format_args!("{}", missing_map(&from, &to)));
            return body;
        };
        self.set_charset(r, to);
        let length = if let RecodingTable::Bytes(_) = table { Length::Same } else { Length::Changed };
        if length == Length::Changed {
            remove_length(r);
        }
        let maps = self.maps.clone();
        let forth = std::ptr::eq(table, &maps[at].map.forth);
        Body::Pull(Box::new(Recoded { maps, at, forth, recoder: Recoder::default(), length, body }))
    }
}

/// Effect of a conversion on the length of the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    Same,
    Changed,
}

/// A body in another charset.
struct Recoded {
    maps: Arc<[NamedMap]>,
    /// The map, and whether it is used from its first charset to its second.
    at: usize,
    forth: bool,
    recoder: Recoder,
    length: Length,
    body: Body,
}

impl Pull for Recoded {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            let Some(piece) = self.body.next(want, r).await? else { return Ok(None) };
            let map = &self.maps[self.at].map;
            let mut out = Vec::with_capacity(piece.len());
            self.recoder.push(if self.forth { &map.forth } else { &map.back }, &piece, &mut out);
            Ok(Some(out.into()))
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn remaining(&self) -> Option<u64> {
        if self.length == Length::Same { self.body.len() } else { None }
    }

    fn part(&self, start: u64, len: u64) -> Option<Box<dyn Pull>> {
        // If each byte is recoded on its own, any part of the body can be made.
        if self.length == Length::Changed {
            return None;
        }
        let maps = self.maps.clone();
        let body = self.body.part(start, len)?;
        Some(Box::new(Self { maps, recoder: Recoder::default(), body, ..*self }))
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Body that records the parts requested of it, and is never read.
    #[derive(Clone, Default)]
    struct RecordingBody(Rc<RefCell<Vec<(u64, u64)>>>);

    impl Pull for RecordingBody {
        fn next<'a>(
            &'a mut self,
            _: usize,
            _: &'a mut Request,
        ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }

        fn remaining(&self) -> Option<u64> {
            Some(1 << 40)
        }

        fn part(&self, start: u64, len: u64) -> Option<Box<dyn Pull>> {
            self.0.borrow_mut().push((start, len));
            Some(Box::new(self.clone()))
        }
    }

    #[test]
    fn recoded_parts_read_the_same_parts_of_the_body() {
        let body_log = RecordingBody::default();
        let recoded = |length| {
            let map = NamedMap { from: (*b"a").into(), to: (*b"b").into(), map: CharsetMap::of_bytes() };
            let maps = Arc::from([map]);
            let body = Body::Pull(Box::new(body_log.clone()));
            Recoded { maps, at: 0, forth: true, recoder: Recoder::default(), length, body }
        };
        assert!(recoded(Length::Changed).part(0, 1).is_none());
        assert!(body_log.0.borrow().is_empty());
        let same = recoded(Length::Same);
        for part in [(1 << 39, 1), (7, 100)] {
            assert!(same.part(part.0, part.1).is_some());
            assert_eq!(body_log.0.borrow().last(), Some(&part));
        }
    }
}
