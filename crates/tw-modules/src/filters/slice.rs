//! `slice`: a response that is fetched, and cached, in parts of one size (nginx: ngx_http_slice_filter_module).
//! Preaccess phase, and first filter.
//!
//! ```text
//! $slice_range in the key and in Range ─► 206 of the slice in which the wanted range begins
//!                                                │ Slice: a 200 of the whole length
//!                                                ▼
//!                        Slices: the rest of that slice, then one subrequest for each further slice
//! ```
//! Slicing begins with the first use of `$slice_range`; a location that does not use it slices nothing. A slice is
//! requested when the client has received everything in front of it. The head of each is compared with the request, and
//! its body with its head: bytes of two files, or missing bytes, never reach a client as one response.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use tw_conf::{ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_http::range::{self, ByteRange, ContentRange};
use tw_http::{HeaderName, num};
use tw_http_cache as cache;
use tw_log::{Level, Text};
use tw_phases::subrequest::Subrequest;
use tw_request::body::{AlreadyLogged, Body, Pull};
use tw_request::generation::PlanId;
use tw_request::plan::{Handler, HeaderFilter, LocalFuture, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{After, Ranges, Request};
use tw_request::vars::{Value, VarDef};

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    size: Setting<u64>,
}

/// Slices of one location.
pub(crate) struct Slice {
    /// Bytes of each; 0 for none.
    size: u64,
}

/// The slice that a request is for.
struct RequestedSlice {
    /// Plan that it belongs to; others ignore it.
    plan: PlanId,
    /// First byte; `None` for a subrequest of a page and the like, which is fetched whole.
    start: Option<u64>,
    size: u64,
    /// Set once `$slice_range` was evaluated.
    is_seen: Cell<bool>,
}

impl Settings<Http> for Slice {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::size("slice", HTTP | SERVER | LOCATION)
        .default("0")
        .since("1.9.8")
        .doc("Bytes of the slices in which responses are fetched where $slice_range is used; 0 for none.")
        .set(|raw, node, _| raw.size.set_size(node))];

    const VARIABLES: &'static [VarDef] = &[VarDef::one(
        "slice_range",
        slice_range,
        "The range of the slice that is asked for, as Range has it: bytes=0-1048575.",
    )];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { size: raw.size.or(outer.map(|o| o.size), 0) })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.size > 0 {
            plan.add(Phase::Preaccess, self.clone());
            plan.add_first_filter(self.clone());
        }
    }
}

fn slice_range(r: &Request, out: &mut Vec<u8>) -> Value {
    let requested = r.extensions.get::<RequestedSlice>().filter(|requested| requested.plan == r.route.plan);
    let Some((requested, start)) =
        requested.and_then(|requested| Some((requested.clone(), requested.start?)))
    else {
        return Value::Missing;
    };
    let range = slice(start, requested.size);
    requested.is_seen.set(true);
    // Should this be for a key.
    r.upstream.cache.part.set(Some(range));
    out.extend_from_slice(b"bytes=");
    num::push_decimal(out, range.start);
    out.push(b'-');
    num::push_decimal(out, range.end - 1);
    Value::Found
}

/// The slice that begins with `start`.
fn slice(start: u64, size: u64) -> ByteRange {
    ByteRange { start, end: start.saturating_add(size) }
}

impl Handler for Slice {
    // DIFF(nginx): `$slice_range` has no value before this phase, when it is not known yet which location answers.
    /// Chooses the first slice: the one in which the requested range begins.
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let start = if r.is_subrequest() {
            None
        } else if r.head.has(HeaderName::IfRange) {
            Some(0)
        } else {
            let first = r.head.field_known(HeaderName::Range).map_or(0, range::first_byte);
            Some(first - first % self.size)
        };
        let requested =
            RequestedSlice { plan: r.route.plan, start, size: self.size, is_seen: Cell::new(false) };
        r.extensions.put_common(Rc::new(requested));
        Step::PASS
    }
}

impl HeaderFilter for Slice {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        let requested = r.extensions.get::<RequestedSlice>();
        let Some(requested) =
            requested.filter(|requested| requested.plan == r.route.plan && requested.is_seen.get())
        else {
            return body;
        };
        let Some(start) = requested.start.filter(|_| r.response.status == 206 && !r.is_subrequest()) else {
            return body;
        };
        let slice_head = match SliceHead::of(r, start, self.size, b"") {
            Ok(slice_head) => slice_head,
            Err(Mismatch) => {
                cache::discard(r);
                // A client could not tell this response from a valid one.
                r.state.after = After::Abort;
                return Body::Empty;
            }
        };
        r.response.set_status(200);
        r.response.fields.remove_known(HeaderName::ContentRange);
        r.response.fields.remove_known(HeaderName::AcceptRanges);
        r.state.ranges = Ranges::One;
        let first = Current { body: SliceSource::First(body), at: start, end: slice_head.end };
        Body::Pull(Box::new(Slices {
            size: self.size,
            length: slice_head.length,
            etag: slice_head.etag,
            at: 0,
            end: slice_head.length,
            first: RefCell::new(Some(first)),
            current: None,
        }))
    }
}

/// Fields of the head of a slice.
struct SliceHead {
    /// The byte behind its last one.
    end: u64,
    /// Bytes of the whole.
    length: u64,
    etag: Bytes,
}

/// The response is not the slice that was requested; the reason is logged.
struct Mismatch;

impl SliceHead {
    /// Parses the head of the slice that begins with `start`; `etag` is that of the slices before it, empty if they
    /// have none.
    fn of(r: &Request, start: u64, size: u64, etag: &[u8]) -> Result<Self, Mismatch> {
        let fail = |message: std::fmt::Arguments<'_>| {
            r.log(Level::Error, message);
            Err(Mismatch)
        };
        if r.response.status != 206 {
            return fail(format_args!("unexpected status code {} in slice response", r.response.status));
        }
        let own = r.response.fields.share(b"ETag").unwrap_or_default();
        if !etag.is_empty() && own != etag {
            return fail(format_args!("etag mismatch in slice response"));
        }
        let Some(content_range) =
            r.response.fields.get_known(HeaderName::ContentRange).and_then(ContentRange::parse)
        else {
            return fail(format_args!("invalid range in slice response"));
        };
        let Some(length) = content_range.length else {
            return fail(format_args!("no complete length in slice response"));
        };
        let byte_range = slice(start, size);
        if !content_range.is_all_of(byte_range) {
            let (ByteRange { start: from, end: to }, end) = (content_range.range, byte_range.end.min(length));
            return fail(format_args!(
                "unexpected range in slice response: {from}-{to}, expected: {start}-{end}"
            ));
        }
        Ok(Self { end: content_range.range.end, length, etag: own })
    }
}

/// A body that is made of slices, or a part of it.
struct Slices {
    /// Bytes of each slice.
    size: u64,
    /// Bytes of the whole.
    length: u64,
    etag: Bytes,
    /// The next byte of the whole that is to be sent.
    at: u64,
    /// The byte behind the last one that is to be sent.
    end: u64,
    /// Body of the first slice, until it is sent: all of it, or a part.
    first: RefCell<Option<Current>>,
    current: Option<Current>,
}

/// Slice that is being read, or its rest.
struct Current {
    body: SliceSource,
    /// Offset of its next byte in the whole.
    at: u64,
    /// Offset behind its last byte in the whole.
    end: u64,
}

/// Source of a slice.
enum SliceSource {
    First(Body),
    Further(Subrequest),
}

impl Slices {
    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        loop {
            let Some(current) = &mut self.current else {
                if self.at >= self.end {
                    return Ok(None);
                }
                self.current = Some(self.begin(r).await?);
                continue;
            };
            if self.at >= self.end && current.at < current.end {
                // The rest of it is not needed.
                self.current = None;
                continue;
            }
            let piece = match &mut current.body {
                SliceSource::First(body) => body.next(want, r).await?,
                SliceSource::Further(part) => part.next(want, r).await?,
            };
            let Some(piece) = piece else {
                if current.at < current.end {
                    return Err(broken(r, "shorter"));
                }
                self.current = None;
                continue;
            };
            let begin = current.at;
            current.at = begin.saturating_add(piece.len() as u64);
            if current.at > current.end {
                return Err(broken(r, "longer"));
            }
            // The range of the piece that the client wants, relative to the beginning of the piece. Pieces fit into
            // memory, so the casts are exact.
            let from = self.at.clamp(begin, current.at) - begin;
            let to = self.end.clamp(begin + from, current.at) - begin;
            self.at += to - from;
            return Ok(Some(piece.slice(from as usize..to as usize)));
        }
    }

    /// Slice with the next byte: the first slice, if it has that, or else a subrequest.
    async fn begin(&mut self, r: &mut Request) -> io::Result<Current> {
        let first = self.first.take();
        if let Some(first) = first.filter(|first| (first.at..first.end).contains(&self.at)) {
            return Ok(first.without(self.at));
        }
        let start = self.at - self.at % self.size;
        let size = self.size;
        let requested =
            RequestedSlice { plan: r.route.plan, start: Some(start), size, is_seen: Cell::new(true) };
        r.extensions.put_common(Rc::new(requested));
        // DIFF(nginx): a stored slice that does not fit is fetched anew, and what does not fit is not kept.
        let mut is_anew = false;
        loop {
            let part = match Subrequest::again(r, is_anew).await {
                Ok(part) => part,
                Err(refused) => {
                    let path = Text(&r.uri.path);
                    r.log(Level::Error, format_args!("{refused} while processing \"{path}\""));
                    return Err(io::Error::other(AlreadyLogged));
                }
            };
            let looked = part.request().map(|part| {
                let slice_head = self.check_head(part, start);
                let may_again = !is_anew && part.upstream.cache.is_stored_before();
                if slice_head.is_err() && !may_again {
                    cache::discard(part);
                }
                (slice_head, may_again)
            });
            match looked {
                Some((Ok(slice_head), _)) => {
                    self.etag = slice_head.etag;
                    return Ok(Current { body: SliceSource::Further(part), at: start, end: slice_head.end });
                }
                // The cached slice is one of an older version; the upstream server may have the slice that matches.
                Some((Err(Mismatch), true)) => is_anew = true,
                Some((Err(Mismatch), false)) => {
                    // The upstream server has another version, so the slices sent before are outdated.
                    cache::discard(r);
                    return Err(io::Error::other(AlreadyLogged));
                }
                None => return Err(io::Error::other(AlreadyLogged)),
            }
        }
    }

    /// Looks at the head of a further slice.
    fn check_head(&self, part: &Request, start: u64) -> Result<SliceHead, Mismatch> {
        let slice_head = SliceHead::of(part, start, self.size, &self.etag)?;
        if slice_head.length == self.length {
            return Ok(slice_head);
        }
        // DIFF(nginx): slices of contents of two lengths are not put together, tags or none.
        let length = slice_head.length;
        let expected = self.length;
        part.log(
            Level::Error,
            format_args!("unexpected complete length in slice response: {length}, expected: {expected}"),
        );
        Err(Mismatch)
    }
}

impl Current {
    /// Drops the bytes before `at`, if they need not be read.
    fn without(self, at: u64) -> Self {
        match self.body {
            SliceSource::First(body) => match body.part(at - self.at, self.end - at) {
                Some(part) => Self { body: SliceSource::First(part), at, end: self.end },
                None => Self { body: SliceSource::First(body), ..self },
            },
            SliceSource::Further(_) => self,
        }
    }
}

// DIFF(nginx): a slice whose body is not as long as its head says ends the response, so that no byte stands in the place of
// another.
fn broken(r: &Request, than: &str) -> io::Error {
    r.log(Level::Error, format_args!("slice response is {than} than its range"));
    io::Error::other(AlreadyLogged)
}

impl Pull for Slices {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.piece(want, r))
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.end - self.at)
    }

    fn part(&self, start: u64, len: u64) -> Option<Box<dyn Pull>> {
        let at = self.at.saturating_add(start).min(self.end);
        let end = at.saturating_add(len).min(self.end);
        let first = self.first.take().filter(|first| (first.at..first.end).contains(&at));
        Some(Box::new(Self {
            size: self.size,
            length: self.length,
            etag: self.etag.clone(),
            at,
            end,
            first: RefCell::new(first),
            current: None,
        }))
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        match self.current.as_mut().map(|current| &mut current.body) {
            Some(SliceSource::First(body)) => body.run_ahead(cx),
            Some(SliceSource::Further(part)) => part.run_ahead(cx),
            None => {}
        }
    }

    fn flushes(&self) -> bool {
        match self.current.as_ref().map(|current| &current.body) {
            Some(SliceSource::First(body)) => body.flushes(),
            Some(SliceSource::Further(part)) => part.flushes(),
            None => self.first.borrow().as_ref().is_some_and(|first| match &first.body {
                SliceSource::First(body) => body.flushes(),
                SliceSource::Further(part) => part.flushes(),
            }),
        }
    }
}
