//! A program that runs while its response is pulled.
//!
//! ```text
//! commands ─► queue of texts and subrequests ─► the response
//!    ▲                   │
//!    └─ pause is over ◄──┘
//! ```
//! Subrequests in the queue run side by side, as many as [`EarlySubrequest`] permits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_http::Method;
use tw_http::target::{self, AboveRoot};
use tw_log::{Level, Text};
use tw_phases::early_subrequest::EarlySubrequest;
use tw_phases::subrequest::{ParentBody, Refused};
use tw_request::body::{Body, Pull};
use tw_request::plan::{LocalFuture, Outcome};
use tw_request::request::{Request, Uri};
use tw_request::request_body::{Source, read};
use tw_request::vars::Template;
use tw_rt::Deadline;

use super::command::{self, Command, Parts, Program, SubrequestCommand, Wait};
use super::limits::{COMMANDS_MAX, QUEUE_MAX, REPEAT_SIZE};
use super::state;

/// Cost of an item in the queue beside its text.
const ITEM_COST: usize = 64;
/// Cost of a subrequest in the queue beside its texts.
const SUBREQUEST_COST: usize = 256;

/// A program that runs.
pub(super) struct Run {
    program: Arc<Program>,
    /// The next command.
    at: usize,
    /// The loop that it is in.
    each: Option<Each>,
    pause: Option<Pause>,
    queue: VecDeque<Item>,
    /// Bytes in the queue.
    queued: usize,
    stage: Stage,
}

/// Use of the program.
enum Stage {
    /// The request may still go to another location.
    Open,
    /// Another location answers.
    Left(Outcome),
    /// The response has begun.
    Answered,
}

/// A loop over the parts of a text.
struct Each {
    parts: Parts,
    /// Index of the first command, and of the end.
    start: usize,
    end: usize,
}

/// Point at which the program goes on.
enum Pause {
    /// At this time.
    Until(Deadline),
    /// An empty queue: all was sent.
    Sent,
}

/// A part of the response that waits to be sent.
enum Item {
    Text(Vec<u8>),
    Repeat(Repeat),
    Subrequest(Box<Queued>),
    RequestBody(Source),
}

/// Copies of a text.
struct Repeat {
    text: Bytes,
    remaining: u64,
    /// Some of them.
    block: Bytes,
}

/// A subrequest in the queue.
struct Queued {
    uri: Uri,
    /// Method and body of its own.
    own: Option<(Method, Option<Bytes>)>,
    begun: Option<EarlySubrequest>,
}

/// Failure that was logged: the response ends here.
pub(super) struct Failed;

impl From<Failed> for io::Error {
    fn from(_: Failed) -> Self {
        Self::other("the response is incomplete")
    }
}

impl Run {
    pub(super) fn new(program: Arc<Program>) -> Self {
        let queue = VecDeque::new();
        Self { program, at: 0, each: None, pause: None, queue, queued: 0, stage: Stage::Open }
    }

    /// Runs up to the first part of a response, its end, or another location, which is returned. Waits for pauses.
    pub(super) async fn begin(&mut self, r: &mut Request) -> Result<Option<Outcome>, Failed> {
        loop {
            self.advance(r)?;
            if let Stage::Left(outcome) = std::mem::replace(&mut self.stage, Stage::Open) {
                return Ok(Some(outcome));
            }
            let has_ended = self.at >= self.program.commands.len() && self.pause.is_none();
            if has_ended || !self.queue.is_empty() {
                return Ok(None);
            }
            self.pause().await;
        }
    }

    /// Makes the body of the response to `r` of it, and runs the first commands.
    pub(super) fn into_body(mut self, r: &mut Request) -> Result<Body, Failed> {
        self.stage = Stage::Answered;
        self.advance(r)?;
        Ok(Body::Pull(Box::new(self)))
    }

    /// Waits until the program goes on.
    async fn pause(&mut self) {
        match &mut self.pause {
            Some(Pause::Until(deadline)) => {
                deadline.elapsed().await;
                self.pause = None;
            }
            // Other tasks have their turn.
            Some(Pause::Sent) | None => tw_rt::yield_now().await,
        }
    }

    /// Runs commands until enough is queued or the program pauses.
    fn advance(&mut self, r: &mut Request) -> Result<(), Failed> {
        let program = self.program.clone();
        for _ in 0..COMMANDS_MAX {
            if self.pause.is_some() || self.queued >= QUEUE_MAX || matches!(self.stage, Stage::Left(_)) {
                break;
            }
            let Some(command) = program.commands.get(self.at) else { break };
            self.at += 1;
            self.execute(command, r)?;
        }
        Ok(())
    }

    fn execute(&mut self, command: &Command, r: &mut Request) -> Result<(), Failed> {
        match command {
            Command::Text(text) => self.push_text(text.value(r)),
            Command::Duplicate(count, text) => {
                let count = count.value(r);
                let text = Bytes::from(text.value(r));
                let remaining = command::count_of(&count).ok_or_else(|| invalid(r, "count", &count))?;
                if remaining > 0 && !text.is_empty() {
                    self.push(Item::Repeat(Repeat { text, remaining, block: Bytes::new() }));
                }
            }
            Command::Flush | Command::ReadBody => {}
            Command::Sleep(span) => {
                let span = span.value(r);
                let span = command::span_of(&span).ok_or_else(|| invalid(r, "time", &span))?;
                let mut deadline = Deadline::new();
                deadline.set(span);
                self.pause = Some(Pause::Until(deadline));
            }
            Command::ResetTimer => {
                if let Some(state) = state::of(r) {
                    state.reset_timer();
                }
            }
            Command::Subrequest(command) => {
                self.push(Item::Subrequest(Box::new(queued(command, r)?)));
                if command.wait == Wait::ForEnd {
                    self.pause = Some(Pause::Sent);
                }
            }
            Command::ForEach { separator, text, end } => {
                let parts = Parts::new(text.value(r), separator.value(r));
                self.each = Some(Each { parts, start: self.at, end: *end });
                self.next_part(r);
            }
            Command::End => self.next_part(r),
            Command::RequestBody if r.body.is_pending() => {}
            Command::RequestBody => {
                let source = r.body.take();
                self.push(Item::RequestBody(source));
            }
            Command::Exec(uri, args) => self.stage = Stage::Left(self.leave(uri, args.as_ref(), r)?),
        }
        Ok(())
    }

    /// Goes on with the next part of the text, or behind the loop.
    fn next_part(&mut self, r: &Request) {
        let Some(each) = &mut self.each else { return };
        let part = each.parts.next();
        self.at = if part.is_some() { each.start } else { each.end + 1 };
        if let Some(state) = state::of(r) {
            *state.item.borrow_mut() = part.as_deref().unwrap_or_default().to_vec();
        }
        if part.is_none() {
            self.each = None;
        }
    }

    /// Another location answers, unless the response has begun.
    fn leave(&self, uri: &Template, args: Option<&Template>, r: &Request) -> Result<Outcome, Failed> {
        let text = uri.value(r);
        if !matches!(self.stage, Stage::Open) || !self.queue.is_empty() {
            let text = Text(&text);
            r.log(Level::Error, format_args!("\"echo_exec\" to \"{text}\" after a part of the response"));
            return Err(Failed);
        }
        if text.starts_with(b"@") {
            return Ok(Outcome::Named(text.into()));
        }
        let Uri { path, args } = uri_of(&text, args, r)?;
        Ok(Outcome::Redirect { path, args })
    }

    /// Adds a text to the one before it, if that is short. An empty one is no item.
    fn push_text(&mut self, text: Vec<u8>) {
        match self.queue.back_mut() {
            _ if text.is_empty() => {}
            Some(Item::Text(last)) if last.len() + text.len() <= REPEAT_SIZE => {
                self.queued += text.len();
                last.extend_from_slice(&text);
            }
            _ => self.push(Item::Text(text)),
        }
    }

    fn push(&mut self, item: Item) {
        self.queued += item.cost();
        self.queue.push_back(item);
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.queued -= item.cost().min(self.queued);
        Some(item)
    }

    /// Begins subrequests in the queue, as many as may run before their turn.
    fn begin_early(&mut self, r: &mut Request) -> Result<(), Failed> {
        for item in &mut self.queue {
            let Item::Subrequest(queued) = item else { continue };
            if queued.begun.is_none() && !queued.begin_early(r)? {
                break;
            }
        }
        Ok(())
    }

    /// Polls the subrequest in front, and the pause: `None` if that is over.
    fn poll_front(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Option<Bytes>>>> {
        if let Some(Pause::Until(deadline)) = &mut self.pause
            && deadline.poll_elapsed(cx).is_ready()
        {
            self.pause = None;
            return Poll::Ready(None);
        }
        let mut items = self.queue.iter_mut();
        if let Some(Item::Subrequest(queued)) = items.next()
            && let Some(part) = &mut queued.begun
            && let Poll::Ready(piece) = part.poll_piece(cx)
        {
            return Poll::Ready(Some(piece));
        }
        items.for_each(|item| item.run_ahead(cx));
        Poll::Pending
    }

    /// The next piece of the item in front; an empty one if there is none yet.
    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Bytes> {
        match self.queue.front_mut() {
            None => {
                poll_fn(|cx| self.poll_front(cx)).await;
            }
            Some(Item::Text(_)) => {
                if let Some(Item::Text(text)) = self.pop() {
                    return Ok(text.into());
                }
            }
            Some(Item::Repeat(repeat)) => match repeat.next() {
                Some(piece) => return Ok(piece),
                None => _ = self.pop(),
            },
            Some(Item::RequestBody(source)) => match source.next(want, r.body_limits()).await {
                Ok(Some(piece)) => return Ok(piece),
                Ok(None) => _ = self.pop(),
                Err(error) => {
                    read::failed(r, error);
                    return Err(Failed.into());
                }
            },
            Some(Item::Subrequest(queued)) => {
                queued.turn(r)?;
                match poll_fn(|cx| self.poll_front(cx)).await {
                    None => {}
                    Some(Ok(Some(piece))) => return Ok(piece),
                    Some(ended) => {
                        if let Some(Item::Subrequest(mut queued)) = self.pop()
                            && let Some(part) = queued.begun.take()
                        {
                            part.finish(r);
                        }
                        ended?;
                    }
                }
            }
        }
        Ok(Bytes::new())
    }
}

impl Pull for Run {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            if self.queue.is_empty() && matches!(self.pause, Some(Pause::Sent)) {
                self.pause = None;
            }
            self.advance(r)?;
            self.begin_early(r)?;
            if self.queue.is_empty() && self.pause.is_none() && self.at >= self.program.commands.len() {
                return Ok(None);
            }
            let piece = if self.queue.is_empty() && self.pause.is_none() {
                Bytes::new()
            } else {
                self.piece(want, r).await?
            };
            if piece.is_empty() {
                // Many steps may yield no output, so other tasks get their turn.
                tw_rt::yield_now().await;
            }
            Ok(Some(piece))
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.queue.iter_mut().for_each(|item| item.run_ahead(cx));
    }

    fn flushes(&self) -> bool {
        self.program.flushes()
    }
}

impl Item {
    /// Bytes that it counts in the queue.
    fn cost(&self) -> usize {
        match self {
            Self::Text(text) => ITEM_COST + text.len(),
            Self::Repeat(repeat) => ITEM_COST + repeat.text.len(),
            Self::Subrequest(queued) => {
                let body = queued.own.as_ref().and_then(|(_, body)| body.as_ref());
                SUBREQUEST_COST + queued.uri.path.len() + queued.uri.args.len() + body.map_or(0, Bytes::len)
            }
            Self::RequestBody(_) => ITEM_COST,
        }
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        if let Self::Subrequest(queued) = self
            && let Some(part) = &mut queued.begun
        {
            part.run_ahead(cx);
        }
    }
}

impl Repeat {
    /// The next copies.
    fn next(&mut self) -> Option<Bytes> {
        if self.remaining == 0 {
            return None;
        }
        let most = (REPEAT_SIZE / self.text.len()).max(1) as u64;
        let count = self.remaining.min(most);
        if self.block.is_empty() {
            self.block = match count {
                1 => self.text.clone(),
                _ => self.text.repeat(count as usize).into(),
            };
        }
        self.remaining -= count;
        Some(self.block.slice(..self.text.len() * count as usize))
    }
}

impl Queued {
    /// Begins it before its turn; `false` if it may not yet.
    fn begin_early(&mut self, r: &mut Request) -> Result<bool, Failed> {
        let uri = &self.uri;
        let own = &self.own;
        let begun = EarlySubrequest::begin_early_with(r, || copy(uri), parent_body(own), |r| prepare(own, r));
        self.begun = begun.transpose().map_err(|error| refused(&error, &self.uri, r))?;
        Ok(self.begun.is_some())
    }

    /// Gives it its turn.
    fn turn(&mut self, r: &mut Request) -> Result<(), Failed> {
        if let Some(part) = &mut self.begun {
            part.take_turn();
            return Ok(());
        }
        let uri = &self.uri;
        let own = &self.own;
        let begun = EarlySubrequest::begin_with(r, copy(uri), parent_body(own), |r| prepare(own, r));
        self.begun = Some(begun.map_err(|error| refused(&error, &self.uri, r))?);
        Ok(())
    }
}

fn copy(uri: &Uri) -> Uri {
    Uri { path: uri.path.clone(), args: uri.args.clone() }
}

fn parent_body(own: &Option<(Method, Option<Bytes>)>) -> ParentBody {
    if own.is_some() { ParentBody::Hidden } else { ParentBody::Visible }
}

/// Gives a subrequest its own method and body.
fn prepare(own: &Option<(Method, Option<Bytes>)>, r: &mut Request) {
    if let Some((method, body)) = own {
        r.state.method = Some(*method);
        r.replace_body(body.clone());
    }
}

/// The subrequest of a command.
fn queued(command: &SubrequestCommand, r: &Request) -> Result<Queued, Failed> {
    let uri = uri_of(&command.uri.value(r), command.args.as_ref(), r)?;
    let own = match &command.method {
        None => None,
        Some(method) => {
            let name = method.value(r);
            let method = command::method_of(&name).ok_or_else(|| invalid(r, "method", &name))?;
            Some((method, command.body.as_ref().map(|body| body.value(r).into())))
        }
    };
    Ok(Queued { uri, own, begun: None })
}

/// Path and arguments of a location. `args` replace those in `text`.
fn uri_of(text: &[u8], args: Option<&Template>, r: &Request) -> Result<Uri, Failed> {
    let refuse = |path: &[u8]| {
        r.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", Text(path)));
        Failed
    };
    match target::local(text) {
        Ok((path, own)) if path.starts_with(b"/") => {
            Ok(Uri { path, args: args.map_or(own, |args| args.value(r)) })
        }
        Ok((path, _)) => Err(refuse(&path)),
        Err(AboveRoot(path)) => Err(refuse(&path)),
    }
}

fn invalid(r: &Request, what: &str, text: &[u8]) -> Failed {
    r.log(Level::Error, format_args!("invalid {what} \"{}\" in a command of \"echo\"", Text(text)));
    Failed
}

fn refused(refused: &Refused, uri: &Uri, r: &Request) -> Failed {
    r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(&uri.path)));
    Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_made_in_blocks() {
        for (text, count) in [("a", 100_000), ("abc", 20_000), ("abc", 2), (&*"x".repeat(40_000), 3)] {
            let mut repeat = Repeat {
                text: Bytes::copy_from_slice(text.as_bytes()),
                remaining: count,
                block: Bytes::new(),
            };
            let mut len = 0;
            while let Some(piece) = repeat.next() {
                assert!(piece.len() <= REPEAT_SIZE.max(text.len()) && piece.starts_with(text.as_bytes()));
                len += piece.len() as u64;
            }
            assert_eq!(len, count * text.len() as u64);
        }
        let mut huge =
            Repeat { text: Bytes::from_static(b"hello"), remaining: u64::MAX, block: Bytes::new() };
        assert!(huge.next().is_some_and(|piece| piece.len() <= REPEAT_SIZE));
    }
}
