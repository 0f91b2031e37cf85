//! `add_header`, `add_trailer`, `expires`: fields of every response of a location (nginx:
//! ngx_http_headers_filter_module). Header and trailer filter.
//!
//! Without `always` they are added only to responses with the usual codes of success and redirection.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tw_conf::{
    Args, ConfError, Cx, Directive, HTTP, IF_IN_LOCATION, LOCATION, Node, SERVER, Setting, Word, record,
    units,
};
use tw_core::module::Settings;
use tw_http::{HeaderName, ResponseHead, date, hop};
use tw_phases::prepare_response;
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan, TrailerFilter};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Ranges, Request};
use tw_request::vars::Template;

const ALL_IF: u32 = HTTP | SERVER | LOCATION | IF_IN_LOCATION;

/// `Thu, 31 Dec 2037 23:55:55 GMT`, for `expires max`.
const MAX_AT: i64 = 2_145_916_555;
/// Ten years, for `expires max`.
const MAX_AGE: i64 = 315_360_000;
const DAY: i64 = 86_400;

/// Fields as written.
#[derive(Default)]
pub(crate) struct Raw {
    added: Setting<Vec<RawField>>,
    added_inherit: Setting<Inherit>,
    trailers: Setting<Vec<RawField>>,
    trailers_inherit: Setting<Inherit>,
    expires: Setting<RawExpires>,
}

struct RawField {
    name: Word,
    value: Word,
    always: bool,
}

enum RawExpires {
    Fixed(Option<When>),
    Variable(Since, Word),
}

/// Inheritance of the fields of the enclosing block (`add_header_inherit`, `add_trailer_inherit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inherit {
    /// Inherits them unless the block has its own.
    On,
    /// Drops them.
    Off,
    /// Appends them to the block's own.
    Merge,
}

const INHERIT: &[(&str, Inherit)] = &[("on", Inherit::On), ("off", Inherit::Off), ("merge", Inherit::Merge)];

/// Fields of one location.
pub(crate) struct Headers {
    added: Added,
    trailers: Added,
    expires: Expires,
}

/// The fields of `add_header` or `add_trailer`.
#[derive(Clone)]
struct Added {
    fields: Arc<[Field]>,
    inherit: Inherit,
}

/// One `add_header` or `add_trailer`.
#[derive(Clone)]
struct Field {
    name: Bytes,
    kind: Kind,
    value: Value,
    /// Set if it is added whatever the status.
    always: bool,
}

/// Meaning of adding a field: of some there is only one, which is replaced, and removed by an empty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Line,
    LastModified,
    ETag,
}

#[derive(Clone)]
enum Value {
    Constant(Bytes),
    Template(Template),
}

/// `expires`
#[derive(Clone)]
enum Expires {
    Off,
    At(When),
    Variable(Since, Template),
}

/// Start of a time of `expires`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// The response.
    Access,
    /// `Last-Modified`.
    Modified,
}

/// Expiry of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// The epoch: already expired.
    Epoch,
    /// In years.
    Max,
    /// Seconds after the start.
    After(Since, i64),
    /// At this second of the day, local time; 0 to 86400.
    Daily(i64),
}

impl Settings<Http> for Headers {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("add_header", "name value [always]", ALL_IF, Args::range(2, 3))
            .doc("Adds a field to responses with the codes 200, 201, 204, 206, 301, 302, 303, 304, 307 and 308, or to all.")
            .set(|raw, node, cx| {
                raw.added.extend(node, RawField::read(node, cx)?);
                Ok(())
            }),
        record::new("add_header_inherit", "on | off | merge", ALL_IF, Args::exact(1))
            .default("on")
            .since("1.29.3")
            .doc("Inherits the fields of the enclosing block if there are none here (on), never (off), or in addition to those here (merge).")
            .set(|raw, node, _| raw.added_inherit.set_one_of(node, INHERIT)),
        record::new("add_trailer", "name value [always]", ALL_IF, Args::range(2, 3))
            .since("1.13.2")
            .doc("Adds a field behind the body of responses with the codes of add_header, or of all. The body is chunked then.")
            .set(|raw, node, cx| {
                raw.trailers.extend(node, RawField::read(node, cx)?);
                Ok(())
            }),
        record::new("add_trailer_inherit", "on | off | merge", ALL_IF, Args::exact(1))
            .default("on")
            .since("1.29.3")
            .doc("Inherits add_trailer as add_header_inherit does add_header.")
            .set(|raw, node, _| raw.trailers_inherit.set_one_of(node, INHERIT)),
        record::new("expires", "[modified] time | epoch | max | off", ALL_IF, Args::range(1, 2))
            .default("off")
            .doc("Sets Expires and Cache-Control: so long after the response or the modification, or at @time of the day.")
            .set(|raw, node, _| raw.expires.set_with(node, read_expires)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let added = Added::resolve(raw.added, raw.added_inherit, outer.map(|o| &o.added), cx)?;
        let trailers = Added::resolve(raw.trailers, raw.trailers_inherit, outer.map(|o| &o.trailers), cx)?;
        let expires = match raw.expires.take() {
            Some(RawExpires::Fixed(when)) => when.map_or(Expires::Off, Expires::At),
            Some(RawExpires::Variable(since, word)) => Expires::Variable(since, cx.template(&word)?),
            None => outer.map_or(Expires::Off, |outer| outer.expires.clone()),
        };
        Ok(Self { added, trailers, expires })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let has_trailers = !self.trailers.fields.is_empty();
        if !self.added.fields.is_empty() || has_trailers || !matches!(self.expires, Expires::Off) {
            plan.add_header_filter(self.clone());
        }
        if has_trailers {
            plan.add_trailer_filter(self.clone());
        }
    }
}

impl Added {
    fn resolve(
        fields: Setting<Vec<RawField>>,
        inherit: Setting<Inherit>,
        outer: Option<&Self>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let inherit = inherit.or(outer.map(|o| o.inherit), Inherit::On);
        let inherited = outer.map(|o| &o.fields).filter(|_| inherit != Inherit::Off);
        let Some(fields) = fields.take() else {
            return Ok(Self { fields: inherited.map_or_else(|| [].into(), Arc::clone), inherit });
        };
        let own = fields.iter().map(|raw| raw.resolve(cx));
        let behind =
            inherited.filter(|_| inherit == Inherit::Merge).into_iter().flat_map(|fields| fields.iter());
        Ok(Self { fields: own.chain(behind.cloned().map(Ok)).collect::<Result<_, _>>()?, inherit })
    }
}

impl RawField {
    /// Reads a directive; `None`, and a warning, if it names a field that the server alone may write.
    fn read(node: &Node, cx: &mut Cx<'_>) -> Result<Option<Self>, ConfError> {
        let always = match node.args.get(2) {
            Some(word) if word.is("always") => true,
            Some(word) => return Err(node.invalid_parameter(word)),
            None => false,
        };
        let name = node.arg(0)?;
        // DIFF(nginx): what frames a message is not for the configuration to say, or one response becomes two.
        if HeaderName::find(&name.bytes).is_some_and(hop::is_framing) {
            cx.warn(
                name.span,
                format!("\"{name}\" frames the response and is written by the server, ignored"),
            );
            return Ok(None);
        }
        Ok(Some(Self { name: name.clone(), value: node.arg(1)?.clone(), always }))
    }

    fn resolve(&self, cx: &mut Resolve<'_>) -> Result<Field, ConfError> {
        let value = cx.template(&self.value)?;
        Ok(Field {
            name: Bytes::copy_from_slice(&self.name.bytes),
            kind: Kind::of(&self.name.bytes),
            value: match value.constant() {
                Some(text) => Value::Constant(Bytes::copy_from_slice(text)),
                None => Value::Template(value),
            },
            always: self.always,
        })
    }
}

impl Kind {
    fn of(name: &[u8]) -> Self {
        match HeaderName::find(name) {
            Some(HeaderName::LastModified) => Self::LastModified,
            Some(HeaderName::ETag) => Self::ETag,
            _ => Self::Line,
        }
    }
}

impl HeaderFilter for Headers {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        if r.is_subrequest() {
            return body;
        }
        let usual = is_usual(r.response.status);
        // nginx finds out that a range is not there when its fields are added to the whole already.
        let is_replaced = r.response.status == 416 && r.state.ranges == Ranges::NotSatisfiable;
        let when = match &self.expires {
            _ if !usual => None,
            Expires::Off => None,
            Expires::At(when) => Some(*when),
            // A value that is no time changes nothing, as in nginx.
            Expires::Variable(since, text) => read_when(&text.value(r), *since).unwrap_or(None),
        };
        if let Some(when) = when {
            let now = tw_rt::clock::unix().secs;
            let (at, max_age) = when.lifetime(now, r.response.last_modified, tw_log::time::zone());
            set_lifetime(&mut r.response, at, max_age);
        }
        let is_added = |field: &&Field| {
            field.always || usual || is_replaced && !prepare_response::is_of_stored_content(&field.name)
        };
        for field in self.added.fields.iter().filter(is_added) {
            field.put(field.value(r), &mut r.response);
        }
        if self.trailers.fields.iter().any(|field| usual || field.always) {
            r.response.trailers.get_or_insert_default();
        }
        body
    }
}

impl TrailerFilter for Headers {
    fn fill(&self, r: &mut Request) {
        let usual = is_usual(r.response.status);
        for field in self.trailers.fields.iter().filter(|field| usual || field.always) {
            // Values are evaluated one by one, because each may refer to the trailers before it.
            let value = field.value(r);
            if let Some(trailers) = r.response.trailers.as_mut().filter(|_| !value.is_empty()) {
                trailers.append(field.name.clone(), value);
            }
        }
    }
}

/// Returns `true` if a response with this status gets fields without `always`.
fn is_usual(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
}

impl Field {
    fn value(&self, r: &Request) -> Bytes {
        match &self.value {
            Value::Constant(value) => value.clone(),
            Value::Template(text) => text.value(r).into(),
        }
    }

    fn put(&self, value: Bytes, out: &mut ResponseHead) {
        if self.kind == Kind::LastModified {
            out.last_modified = date::parse(&value);
        }
        match (self.kind, value.is_empty()) {
            // DIFF(nginx): a field the server writes itself is replaced instead of sent twice.
            (Kind::Line, false) => out.fields.append(self.name.clone(), value),
            (Kind::Line, true) => {}
            (Kind::LastModified | Kind::ETag, false) => out.fields.set(self.name.clone(), value),
            (Kind::LastModified | Kind::ETag, true) => {
                out.fields.remove(&self.name);
            }
        }
    }
}

fn set_lifetime(out: &mut ResponseHead, at: i64, max_age: Option<i64>) {
    out.fields.set(HeaderName::Expires, Bytes::copy_from_slice(&date::format(at)));
    match max_age {
        Some(age) => out.fields.set(HeaderName::CacheControl, Bytes::from(format!("max-age={age}"))),
        None => out.fields.set(HeaderName::CacheControl, "no-cache"),
    }
}

fn read_expires(node: &Node) -> Result<RawExpires, ConfError> {
    let first = node.arg(0)?;
    let (since, word) = match node.args.get(1) {
        None => (Since::Access, first),
        Some(word) if first.is("modified") => (Since::Modified, word),
        Some(_) => return Err(node.error("invalid value")),
    };
    if word.bytes.contains(&b'$') {
        return Ok(RawExpires::Variable(since, word.clone()));
    }
    read_when(&word.bytes, since).map(RawExpires::Fixed).map_err(|what| node.error(what))
}

/// Reads a time of `expires`; `None` is `off`. The error says what is wrong with it.
fn read_when(text: &[u8], since: Since) -> Result<Option<When>, &'static str> {
    const INVALID: &str = "invalid value";
    let seconds = |text| units::sec(text).and_then(|span| i64::try_from(span.as_secs()).ok()).ok_or(INVALID);
    match (text, since) {
        (b"epoch", Since::Access) => Ok(Some(When::Epoch)),
        (b"max", Since::Access) => Ok(Some(When::Max)),
        (b"off", Since::Access) => Ok(None),
        ([b'@', ..], Since::Modified) => Err("daily time cannot be used with \"modified\" parameter"),
        ([b'@', text @ ..], Since::Access) => match seconds(text)? {
            at @ 0..=DAY => Ok(Some(When::Daily(at))),
            _ => Err("daily time value must be less than 24 hours"),
        },
        ([b'-', text @ ..], _) => Ok(Some(When::After(since, -seconds(text)?))),
        ([b'+', text @ ..], _) | (text, _) => Ok(Some(When::After(since, seconds(text)?))),
    }
}

impl When {
    /// `Expires` in seconds since 1970 and `max-age` in seconds; no age means `no-cache`. Times are seconds since 1970.
    fn lifetime(self, now: i64, last_modified: Option<i64>, zone: &TimeZone) -> (i64, Option<i64>) {
        let (at, age) = match (self, last_modified) {
            (Self::Epoch, _) => return (1, None),
            (Self::Max, _) => return (MAX_AT, Some(MAX_AGE)),
            (Self::After(_, 0), _) => (now, 0),
            (Self::Daily(second), _) => {
                let at = next_time_of_day(now, second, zone).unwrap_or(now);
                (at, at - now)
            }
            (Self::After(Since::Modified, span), Some(modified)) => {
                let at = modified.saturating_add(span);
                (at, at.saturating_sub(now))
            }
            (Self::After(_, span), _) => (now.saturating_add(span), span),
        };
        let is_past = age < 0 || matches!(self, Self::After(_, span) if span < 0);
        (at, (!is_past).then_some(age))
    }
}

/// The next moment after `now` at which the local clock shows this second of the day; `None` at the end of time.
fn next_time_of_day(now: i64, second: i64, zone: &TimeZone) -> Option<i64> {
    let today = zone.to_datetime(Timestamp::from_second(now).ok()?).date();
    let mut date = if second == DAY { today.tomorrow().ok()? } else { today };
    let of = |unit: i64| i8::try_from(unit).ok();
    let second = second % DAY;
    let hour = of(second / 3600)?;
    let minute = of(second / 60 % 60)?;
    let second = of(second % 60)?;
    loop {
        let at = zone.to_timestamp(date.at(hour, minute, second, 0)).ok()?.as_second();
        if at > now {
            return Some(at);
        }
        date = date.tomorrow().ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_written() {
        let daily = "daily time cannot be used with \"modified\" parameter";
        let after = |since, span| Ok(Some(When::After(since, span)));
        let table = [
            ("epoch", Since::Access, Ok(Some(When::Epoch))),
            ("max", Since::Access, Ok(Some(When::Max))),
            ("off", Since::Access, Ok(None)),
            ("0", Since::Access, after(Since::Access, 0)),
            ("30d", Since::Access, after(Since::Access, 30 * DAY)),
            ("+1h30m", Since::Modified, after(Since::Modified, 5400)),
            ("-1", Since::Access, after(Since::Access, -1)),
            ("@15h30m", Since::Access, Ok(Some(When::Daily(55_800)))),
            ("@24h", Since::Access, Ok(Some(When::Daily(DAY)))),
            ("@24h1s", Since::Access, Err("daily time value must be less than 24 hours")),
            ("@1h", Since::Modified, Err(daily)),
            ("epoch", Since::Modified, Err("invalid value")),
            ("max", Since::Modified, Err("invalid value")),
            ("+-1", Since::Access, Err("invalid value")),
            ("@", Since::Access, Err("invalid value")),
            ("", Since::Access, Err("invalid value")),
            ("soon", Since::Access, Err("invalid value")),
        ];
        for (text, since, expected) in table {
            assert_eq!(read_when(text.as_bytes(), since), expected, "{text} {since:?}");
        }
    }

    #[test]
    fn lifetimes() {
        const NOW: i64 = 1_700_000_000; // Tue, 14 Nov 2023 22:13:20 GMT
        let after = |since, span| When::After(since, span);
        let table = [
            (When::Epoch, None, (1, None)),
            (When::Max, None, (MAX_AT, Some(MAX_AGE))),
            (after(Since::Access, 0), None, (NOW, Some(0))),
            (after(Since::Modified, 0), Some(5), (NOW, Some(0))),
            (after(Since::Access, 60), Some(5), (NOW + 60, Some(60))),
            (after(Since::Access, -60), None, (NOW - 60, None)),
            (after(Since::Modified, 60), None, (NOW + 60, Some(60))),
            (after(Since::Modified, 60), Some(NOW - 20), (NOW + 40, Some(40))),
            (after(Since::Modified, 60), Some(NOW - 90), (NOW - 30, None)),
            (after(Since::Modified, -60), Some(NOW + 90), (NOW + 30, None)),
            (When::Daily(23 * 3600), None, (1_700_002_800, Some(2_800))),
            (When::Daily(22 * 3600), None, (1_700_085_600, Some(85_600))),
            (When::Daily(80_000), None, (NOW + DAY, Some(DAY))),
            (When::Daily(DAY), None, (1_700_006_400, Some(6_400))),
            (When::Daily(0), None, (1_700_006_400, Some(6_400))),
        ];
        for (when, modified, expected) in table {
            assert_eq!(when.lifetime(NOW, modified, &TimeZone::UTC), expected, "{when:?} {modified:?}");
        }
        assert_eq!(date::format(MAX_AT), *b"Thu, 31 Dec 2037 23:55:55 GMT");
    }

    #[test]
    fn the_time_of_day_is_local() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        // Saturday, 28 March 2026, 12:00:00 UTC: in the night after it summer time begins.
        let now = 1_774_699_200;
        assert_eq!(next_time_of_day(now, 13 * 3600 + 1, &berlin), Some(now + 1));
        assert_eq!(next_time_of_day(now, 13 * 3600, &berlin), Some(now + 23 * 3600));
        // 02:30 does not exist on that day: it is 03:30, as mktime() has it.
        assert_eq!(next_time_of_day(now, 9_000, &berlin), Some(1_774_747_800));
    }

    #[test]
    fn single_fields_are_replaced() {
        let field = |name: &'static str| Field {
            name: Bytes::from_static(name.as_bytes()),
            kind: Kind::of(name.as_bytes()),
            value: Value::Constant(Bytes::new()),
            always: false,
        };
        let mut out = ResponseHead::new(200);
        out.last_modified = Some(1);
        out.set_etag("\"a\"");
        field("etag").put(Bytes::from_static(b"\"b\""), &mut out);
        assert_eq!(out.etag(), Some(&b"\"b\""[..]));
        field("ETag").put(Bytes::new(), &mut out);
        assert_eq!(out.etag(), None);
        field("Last-Modified").put(Bytes::from_static(b"Sun, 06 Nov 1994 08:49:37 GMT"), &mut out);
        assert_eq!(out.last_modified, Some(784_111_777));
        field("last-modified").put(Bytes::new(), &mut out);
        assert_eq!((out.last_modified, out.fields.is_empty()), (None, true));
        field("Link").put(Bytes::from_static(b"a"), &mut out);
        field("Link").put(Bytes::from_static(b"b"), &mut out);
        field("X").put(Bytes::new(), &mut out);
        assert_eq!(out.fields.get_all(b"link").collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(out.fields.len(), 2);
    }
}
