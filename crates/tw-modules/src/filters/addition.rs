//! `add_before_body`, `add_after_body`: responses of other locations around a body (nginx:
//! ngx_http_addition_filter_module). Header filter.
//!
//! The filters that change the text of a body do not change the additions; those that encode it do. While the addition
//! in front is pending, the body is read ahead, and the addition behind the body begins at the body's end.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_log::{Level, Text};
use tw_module_support::changed_body::{refuse_ranges, remove_length};
use tw_module_support::types::{self, RawTypes, Types};
use tw_phases::early_subrequest::EarlySubrequest;
use tw_phases::subrequest::{ParentBody, Refused};
use tw_request::body::{Body, Pull};
use tw_request::plan::{HeaderFilter, LocalFuture, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Request, Uri};

use crate::filters::ssi;

const ALL: u32 = HTTP | SERVER | LOCATION;
const TYPES: &[&str] = &["text/html"];

/// Additions as written.
#[derive(Default)]
pub(crate) struct Raw {
    before: Setting<Arc<[u8]>>,
    after: Setting<Arc<[u8]>>,
    types: RawTypes,
}

/// Additions of one location.
pub(crate) struct Addition {
    around: AdditionUris,
    types: Types,
}

/// URIs of what is added before and after a body; empty for nothing.
#[derive(Clone)]
struct AdditionUris {
    before: Arc<[u8]>,
    after: Arc<[u8]>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of a body that are read while the addition in front of it is awaited, and one piece more.
    const READ_MAX: usize = 64 << 10, bytes, "the body is read on when the addition was sent";
}

impl Settings<Http> for Addition {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("add_before_body", "uri", ALL, Args::exact(1))
            .doc("The response of this URI comes before the body.")
            .set(|raw, node, _| raw.before.set_with(node, uri)),
        record::new("add_after_body", "uri", ALL, Args::exact(1))
            .doc("The response of this URI comes after the body.")
            .set(|raw, node, _| raw.after.set_with(node, uri)),
        record::new("addition_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .since("0.7.9")
            .doc("Media types besides text/html of responses that get additions; `*` is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self {
            around: AdditionUris {
                before: raw.before.or_else(|| outer.map(|o| o.around.before.clone()), || [].into()),
                after: raw.after.or_else(|| outer.map(|o| o.around.after.clone()), || [].into()),
            },
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.around.before.is_empty() || !self.around.after.is_empty() {
            plan.add_header_filter(self.clone());
        }
    }
}

fn uri(node: &Node) -> Result<Arc<[u8]>, ConfError> {
    Ok((*node.arg(0)?.bytes).into())
}

impl HeaderFilter for Addition {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        if r.response.status != 200 || r.is_subrequest() || !self.types.contain(&r.response) {
            return body;
        }
        remove_length(r);
        refuse_ranges(r);
        r.response.weaken_etag();
        ssi::share(r);
        Body::Pull(Box::new(Surrounded::new(self.around.clone(), body)))
    }
}

/// A body with additions.
struct Surrounded {
    around: AdditionUris,
    /// The addition in front of the body, or behind it.
    before: Option<EarlySubrequest>,
    after: Option<EarlySubrequest>,
    body: Body,
    /// Pieces of the body that were read while the addition in front of it was awaited.
    read: VecDeque<Bytes>,
    /// Bytes in `read`.
    read_len: usize,
    end: End,
    stage: Stage,
}

/// The end of a body.
enum End {
    Open,
    Reached,
    /// Reading the body has failed.
    Failed(io::Error),
}

/// The part that is being sent.
enum Stage {
    Begin,
    Before,
    Body,
    After,
    End,
}

/// Something that has happened to the addition in front of a body, or to the body.
enum Event {
    Before(io::Result<Option<Bytes>>),
    Body(io::Result<Option<Bytes>>),
}

impl Surrounded {
    fn new(around: AdditionUris, body: Body) -> Self {
        Self {
            around,
            before: None,
            after: None,
            body,
            read: VecDeque::new(),
            read_len: 0,
            end: End::Open,
            stage: Stage::Begin,
        }
    }

    /// The next piece of the addition in front of the body; `None` at its end. Reads the body on meanwhile.
    async fn before(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        loop {
            let may_read = matches!(self.end, End::Open) && self.read_len < READ_MAX;
            let Self { before, after, body, .. } = self;
            let Some(part) = before else { return Ok(None) };
            let mut reading = may_read.then(|| body.next(want, r));
            let event = poll_fn(|cx| {
                if let Some(after) = &mut *after {
                    after.run_ahead(cx);
                }
                if let Poll::Ready(piece) = part.poll_piece(cx) {
                    return Poll::Ready(Event::Before(piece));
                }
                match &mut reading {
                    Some(reading) => reading.as_mut().poll(cx).map(Event::Body),
                    None => Poll::Pending,
                }
            })
            .await;
            drop(reading);
            match event {
                Event::Before(Ok(Some(piece))) => return Ok(Some(piece)),
                Event::Before(ended) => {
                    if let Some(part) = before.take() {
                        part.finish(r);
                    }
                    return ended;
                }
                Event::Body(Ok(Some(piece))) if piece.is_empty() => tw_rt::requeue().await,
                Event::Body(Ok(Some(piece))) => {
                    self.read_len += piece.len();
                    self.read.push_back(piece);
                    self.begin_after_last(r)?;
                }
                Event::Body(Ok(None)) => {
                    self.end = End::Reached;
                    self.begin_after_last(r)?;
                }
                Event::Body(Err(error)) => self.end = End::Failed(error),
            }
        }
    }

    /// The next piece of the body.
    async fn body(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        if let Some(piece) = self.read.pop_front() {
            self.read_len -= piece.len();
            return Ok(Some(piece));
        }
        match std::mem::replace(&mut self.end, End::Reached) {
            End::Open => {}
            End::Reached => return Ok(None),
            End::Failed(error) => return Err(error),
        }
        self.end = End::Open;
        let piece = self.body.next(want, r).await?;
        if piece.is_none() {
            self.end = End::Reached;
        }
        self.begin_after_last(r)?;
        Ok(piece)
    }

    /// Begins the addition behind the body, if nothing of the body is left to be read and one more may run before its turn.
    fn begin_after_last(&mut self, r: &mut Request) -> io::Result<()> {
        let is_last = matches!(self.end, End::Reached) || self.body.is_empty();
        if self.around.after.is_empty() || self.after.is_some() || !is_last {
            return Ok(());
        }
        let uri = &self.around.after;
        let begun = EarlySubrequest::begin_early(r, || to(uri), ParentBody::Visible).transpose();
        self.after = begun.map_err(|refused| refuse(refused, uri, r))?;
        Ok(())
    }

    /// Gives the addition behind the body its turn.
    fn turn_to_after(&mut self, r: &mut Request) -> io::Result<()> {
        match &mut self.after {
            Some(after) => after.take_turn(),
            None => self.after = begin(&self.around.after, r)?,
        }
        Ok(())
    }
}

impl Pull for Surrounded {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            loop {
                match self.stage {
                    Stage::Begin => {
                        self.before = begin(&self.around.before, r)?;
                        self.stage = Stage::Before;
                    }
                    Stage::Before => match self.before(want, r).await? {
                        Some(piece) => return Ok(Some(piece)),
                        None => self.stage = Stage::Body,
                    },
                    Stage::Body => match self.body(want, r).await? {
                        Some(piece) => return Ok(Some(piece)),
                        None => {
                            self.stage = Stage::After;
                            self.turn_to_after(r)?;
                        }
                    },
                    Stage::After => {
                        let Some(after) = &mut self.after else { return Ok(None) };
                        let piece = poll_fn(|cx| after.poll_piece(cx)).await;
                        if matches!(piece, Ok(Some(_))) {
                            return piece;
                        }
                        self.stage = Stage::End;
                        if let Some(after) = self.after.take() {
                            after.finish(r);
                        }
                        return piece;
                    }
                    Stage::End => return Ok(None),
                }
            }
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
        let additions = self.before.iter_mut().chain(&mut self.after);
        additions.for_each(|addition| addition.run_ahead(cx));
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

fn to(uri: &[u8]) -> Uri {
    Uri { path: uri.to_vec(), args: Vec::new() }
}

/// Begins the subrequest of the next addition.
fn begin(uri: &[u8], r: &mut Request) -> io::Result<Option<EarlySubrequest>> {
    if uri.is_empty() {
        return Ok(None);
    }
    let begun = EarlySubrequest::begin(r, to(uri), ParentBody::Visible);
    begun.map(Some).map_err(|refused| refuse(refused, uri, r))
}

/// Ends the response, as nginx does.
fn refuse(refused: Refused, uri: &[u8], r: &Request) -> io::Error {
    r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(uri)));
    io::Error::other("the response is incomplete")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Body that is sent with delays.
    struct Slow;

    impl Pull for Slow {
        fn next<'a>(
            &'a mut self,
            _: usize,
            _: &'a mut Request,
        ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
            Box::pin(std::future::pending())
        }

        fn flushes(&self) -> bool {
            true
        }
    }

    #[test]
    fn surrounded_body_still_flushes() {
        let flushes = |body| {
            let around = AdditionUris { before: (*b"/a").into(), after: [].into() };
            Surrounded::new(around, body).flushes()
        };
        assert!(flushes(Body::Pull(Box::new(Slow))));
        assert!(!flushes(Body::Empty));
    }
}
