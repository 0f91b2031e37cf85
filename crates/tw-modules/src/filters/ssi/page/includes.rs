//! Includes of a page that are being sent: responses of subrequests, and blocks that stand in for them.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_log::{Level, Text};
use tw_phases::early_subrequest::{EarlySubrequest, MadeBy, SubrequestHead};
use tw_phases::subrequest::{ParentBody, Refused, SUBREQUEST_DEPTH_MAX};
use tw_request::body::{Body, Pull};
use tw_request::request::{Request, Uri};

use super::super::Errors;
use super::super::queue::Include;
use super::{End, Parsing, Reach, SsiPage};

/// Include that is being sent.
pub(super) enum Part {
    /// The include has no head yet.
    Begun {
        part: EarlySubrequest,
        uri: Uri,
        stub: Option<Vec<u8>>,
        variable: Option<Vec<u8>>,
    },
    Response {
        part: EarlySubrequest,
        stub: Option<Stub>,
    },
    /// A response for a variable.
    Value {
        part: EarlySubrequest,
        head: SubrequestHead,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    /// A stub, which runs with the URI of its include.
    Stub(Box<SsiPage>, Uri),
}

/// Event of the include that is being sent, or of the page behind it.
enum Event {
    Head(SubrequestHead),
    Piece(io::Result<Option<Bytes>>),
    Page(io::Result<Option<Bytes>>),
}

impl Part {
    /// Waits for its head or its next piece. A stub is pulled instead.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        match self {
            Self::Begun { part, .. } => part.poll_head(cx).map(Event::Head),
            Self::Response { part, .. } | Self::Value { part, .. } => part.poll_piece(cx).map(Event::Piece),
            Self::Stub(..) => Poll::Pending,
        }
    }
}

/// A block for an include without content.
pub(super) struct Stub {
    content: Vec<u8>,
    uri: Uri,
    /// Set if its commands are run: those of a response that is known to be empty are not, as in nginx.
    commands: Commands,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    Run,
    Text,
}
impl SsiPage {
    /// Makes an include the one that is being sent.
    pub(super) fn begin(&mut self, include: Include, r: &mut Request) {
        let Include { uri, stub, variable, begun } = include;
        let begun = begun.unwrap_or_else(|| {
            let uri = Uri { path: uri.path.clone(), args: uri.args.clone() };
            EarlySubrequest::begin(r, uri, ParentBody::Visible)
        });
        match begun {
            Ok(mut part) => {
                part.take_turn();
                self.include = Some(Part::Begun { part, uri, stub, variable });
            }
            Err(refused) => self.refuse(refused, &uri.path, r),
        }
    }

    /// Decides by its head how the response to an include is used.
    fn enter(&mut self, head: SubrequestHead, r: &Request) {
        let Some(Part::Begun { part, uri, stub, variable }) = self.include.take() else { return };
        self.include = match (variable, stub) {
            (Some(name), _) => Some(Part::Value { part, head, name, value: Vec::new() }),
            (None, None) => Some(Part::Response { part, stub: None }),
            (None, Some(content)) if head.made_by == MadeBy::Error => {
                return self.begin_stub(Stub { content, uri, commands: Commands::Run }, r);
            }
            (None, Some(content)) => {
                let commands = if head.length == Some(0) { Commands::Text } else { Commands::Run };
                Some(Part::Response { part, stub: Some(Stub { content, uri, commands }) })
            }
        };
    }

    /// Stores a response in a variable, if there is something in it.
    fn store(&mut self, value: Vec<u8>, name: &[u8], r: &Request) {
        if !value.is_empty()
            && let Err(error) = self.shared.set(name, value)
        {
            r.log(Level::Error, format_args!("{error}"));
            self.show_error();
        }
    }

    fn refuse(&mut self, refused: Refused, uri: &[u8], r: &Request) {
        if !self.shared.refusal_is_logged.replace(true) {
            r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(uri)));
        }
        // The error message takes the position of the include in the page.
        if self.settings.errors == Errors::Shown {
            self.queue.push_front(self.error_message.clone());
        }
    }

    fn begin_stub(&mut self, stub: Stub, r: &Request) {
        let Stub { content, uri, commands } = stub;
        if commands == Commands::Text {
            return self.queue.push_front(content);
        }
        let stubs = &self.shared.stubs;
        if stubs.get() >= SUBREQUEST_DEPTH_MAX {
            return self.refuse(Refused::Cycle, &uri.path, r);
        }
        stubs.set(stubs.get() + 1);
        let settings = self.settings.clone();
        let shared = self.shared.clone();
        let turn = self.turn.clone();
        let page = Self::new(settings, shared, turn, Body::Bytes(content.into()));
        self.include = Some(Part::Stub(Box::new(page), uri));
    }

    /// Next piece of the include that is being sent, if there is one already. Meanwhile the others make progress, and
    /// the page is parsed ahead.
    pub(super) async fn next_of_include(
        &mut self,
        want: usize,
        r: &mut Request,
    ) -> io::Result<Option<Bytes>> {
        self.parse(Reach::Independent, r);
        let may_read = self.end == End::Open
            && self.parsing == Parsing::On
            && self.rest.is_empty()
            && self.pending_command.is_none()
            && !self.queue.is_full();
        let Self { queue, include, body, .. } = self;
        let event = match include {
            None => return Ok(None),
            Some(Part::Stub(page, uri)) => {
                let at = AtUri::new(uri, r);
                let mut next = page.next(want, at.r);
                poll_fn(|cx| {
                    queue.run_ahead(cx);
                    next.as_mut().poll(cx).map(Event::Piece)
                })
                .await
            }
            Some(part) => {
                let mut reading = may_read.then(|| body.next(want, r));
                poll_fn(|cx| {
                    queue.run_ahead(cx);
                    if let Poll::Ready(event) = part.poll(cx) {
                        return Poll::Ready(event);
                    }
                    match &mut reading {
                        Some(reading) => reading.as_mut().poll(cx).map(Event::Page),
                        None => Poll::Pending,
                    }
                })
                .await
            }
        };
        match event {
            Event::Head(head) => self.enter(head, r),
            Event::Piece(piece) => return self.take_piece(piece, r),
            Event::Page(Ok(Some(piece))) if piece.is_empty() => tw_rt::requeue().await,
            Event::Page(Ok(Some(piece))) => self.rest = piece,
            Event::Page(Ok(None)) => self.end = End::Reached,
            Event::Page(Err(error)) => (self.end, self.failed) = (End::Reached, Some(error)),
        }
        Ok(None)
    }

    /// Takes a piece of the include that is being sent; `None` ends it.
    fn take_piece(&mut self, piece: io::Result<Option<Bytes>>, r: &mut Request) -> io::Result<Option<Bytes>> {
        if let Ok(Some(piece)) = piece {
            match &mut self.include {
                // A page of which filters leave nothing was not empty, and shows that by a piece without bytes.
                Some(Part::Response { stub, .. }) => *stub = None,
                Some(Part::Value { head, value, .. }) => {
                    if value.len() + piece.len() > head.buffer_size {
                        r.log(Level::Error, format_args!("too big subrequest response"));
                        return Err(io::Error::other("the response is incomplete"));
                    }
                    value.extend_from_slice(&piece);
                    return Ok(None);
                }
                _ => {}
            }
            return Ok(Some(piece));
        }
        match self.include.take() {
            Some(Part::Response { part, stub }) => {
                part.finish(r);
                if let (Some(stub), Ok(None)) = (stub, &piece) {
                    self.begin_stub(stub, r);
                }
            }
            Some(Part::Value { part, head, name, value }) => {
                part.finish(r);
                // An error response sets no variable.
                if head.status < 300 && piece.is_ok() {
                    self.store(value, &name, r);
                }
            }
            Some(Part::Stub(..)) => self.shared.stubs.set(self.shared.stubs.get().saturating_sub(1)),
            Some(Part::Begun { .. }) | None => {}
        }
        piece
    }
}

/// Request with another URI until this is dropped, on every path.
struct AtUri<'a> {
    r: &'a mut Request,
    uri: &'a mut Uri,
}

impl<'a> AtUri<'a> {
    fn new(uri: &'a mut Uri, r: &'a mut Request) -> Self {
        std::mem::swap(&mut r.uri, uri);
        Self { r, uri }
    }
}

impl Drop for AtUri<'_> {
    fn drop(&mut self) {
        std::mem::swap(&mut self.r.uri, self.uri);
    }
}
