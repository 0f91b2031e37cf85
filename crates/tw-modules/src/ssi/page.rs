//! One page: its commands, run while its body is pulled.
//!
//! ```text
//! body ─► parser ─► queue of texts and includes ─► who pulls
//!            ▲                      │
//!            └─ the queue is empty ◄┘
//! ```
//!
//! As in nginx, what was read of a page is parsed before its includes run, so a variable that an included page sets is not
//! seen by the rest of it, unless the include is one that is waited for.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use tw_core::regex::{Caseless, Regex};
use tw_http::Escape;
use tw_http::escape::push_html;
use tw_log::{Level, Text};
use tw_server::http::body::{Body, Pull};
use tw_server::http::plan::LocalFuture;
use tw_server::http::request::{ErrorPages, Request, Uri};
use tw_server::http::subrequest::{ParentBody, Refused, SUBREQUEST_DEPTH_MAX, Subrequest};
use tw_server::vars::Value;

use super::commands::{self, Condition, Kind, Known, Values, text_of};
use super::parser::{Command, Parser, START, Token};
use super::shared::Shared;
use super::words::{self, Complaint, Expression};
use super::{Errors, Ssi, TimeFormat};

/// Bytes of texts and includes that are ready before more of the page is looked at.
pub(super) const QUEUE_MAX: usize = 64 << 10;
/// What an include costs in the queue beside its URI.
const INCLUDE_COST: usize = 64;
const ERROR_MESSAGE: &[u8] = b"[an error occurred while processing the directive]";

/// A page that runs its commands.
pub(super) struct Page {
    settings: Arc<Ssi>,
    shared: Rc<Shared>,
    body: Body,
    /// What was pulled of the body and not yet parsed.
    rest: Bytes,
    end: End,
    parser: Parser,
    queue: VecDeque<Item>,
    queued: usize,
    /// The include whose turn it is.
    include: Option<Part>,
    error_message: Vec<u8>,
    encoding: Encoding,
    shown: Shown,
    condition: Condition,
    branch: Branch,
}

/// Whether the body has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Reached,
}

/// What becomes of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Yes,
    /// It is in a branch that was not taken.
    No,
    /// It is kept in a block.
    InBlock,
}

/// Whether a branch of the condition was taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Branch {
    Open,
    Taken,
}

/// `encoding` of `echo`, which holds until the next one.
#[derive(Clone, Copy)]
enum Encoding {
    None,
    Url,
    Entity,
}

enum Item {
    Text(Vec<u8>),
    Include(Include),
}

/// An include that waits for its turn.
struct Include {
    uri: Uri,
    /// What is shown instead of nothing.
    stub: Option<Vec<u8>>,
    /// The variable that takes the response.
    variable: Option<Vec<u8>>,
}

impl Include {
    /// Bytes it counts in the queue.
    fn cost(&self) -> usize {
        INCLUDE_COST + self.uri.path.len() + self.uri.args.len() + self.stub.as_ref().map_or(0, Vec::len)
    }
}

/// What became of an include when its turn came.
enum Begun {
    Part(Subrequest),
    /// The whole response, for a variable; nothing of an error.
    Value(Vec<u8>),
    Refused(Refused),
}

/// An include whose turn it is.
enum Part {
    Response {
        part: Subrequest,
        stub: Option<Stub>,
    },
    /// A stub, which runs with the URI of its include.
    Stub(Box<Page>, Uri),
}

/// A block for an include without content.
struct Stub {
    content: Vec<u8>,
    uri: Uri,
    /// Whether its commands are run: those of a response that is known to be empty are not, as in nginx.
    commands: Commands,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    Run,
    Text,
}

/// How a command went on.
enum Went {
    On,
    /// The rest waits for the include that it queued.
    Waits,
}

impl Page {
    pub(super) fn new(settings: Arc<Ssi>, shared: Rc<Shared>, body: Body) -> Self {
        let parser = Parser::new(settings.value_len_max);
        Self {
            settings,
            shared,
            body,
            rest: Bytes::new(),
            end: End::Open,
            parser,
            queue: VecDeque::new(),
            queued: 0,
            include: None,
            error_message: ERROR_MESSAGE.to_vec(),
            encoding: Encoding::Entity,
            shown: Shown::Yes,
            condition: Condition::None,
            branch: Branch::Open,
        }
    }

    /// Parses what was pulled until enough is queued, or something is waited for.
    fn parse(&mut self, r: &Request) {
        while !self.rest.is_empty() && self.queued < QUEUE_MAX {
            let (taken, token) = self.parser.next(&self.rest);
            let piece = self.rest.split_to(taken);
            if let Some(complaint) = self.parser.complaint.take() {
                r.log(Level::Error, format_args!("{complaint}"));
            }
            match token {
                None => {}
                Some(Token::Text { saved, len }) => {
                    self.text(&START[..saved], r);
                    self.text(&piece[..len], r);
                }
                Some(Token::Broken) => self.show_error(),
                Some(Token::Command) => {
                    let command = std::mem::take(&mut self.parser.command);
                    // Text in front of a command may be reported with it: the parser tells it first.
                    match self.run(&command, r) {
                        Ok(Went::On) => {}
                        Ok(Went::Waits) => return,
                        Err(complaint) => {
                            r.log(Level::Error, format_args!("{complaint}"));
                            self.show_error();
                        }
                    }
                }
            }
        }
    }

    fn text(&mut self, text: &[u8], r: &Request) {
        match self.shown {
            _ if text.is_empty() => {}
            Shown::Yes => self.put(text),
            Shown::No => {}
            Shown::InBlock => self.keep(text, r),
        }
    }

    fn keep(&mut self, text: &[u8], r: &Request) {
        if let Err(complaint) = self.shared.add_to_block(text) {
            r.log(Level::Error, format_args!("{complaint}"));
            // What follows is not worth a line each.
            self.shown = Shown::No;
        }
    }

    fn put(&mut self, text: &[u8]) {
        self.queued += text.len();
        match self.queue.back_mut() {
            Some(Item::Text(last)) => last.extend_from_slice(text),
            _ => self.queue.push_back(Item::Text(text.to_vec())),
        }
    }

    fn show_error(&mut self) {
        if self.settings.errors == Errors::Shown {
            let message = self.error_message.clone();
            self.put(&message);
        }
    }

    /// Runs a command; the error is for the log and the page.
    fn run(&mut self, command: &Command, r: &Request) -> Result<Went, Complaint> {
        let Some(known) = Known::find(&command.name) else {
            if self.shown == Shown::Yes {
                return Err(format!("invalid SSI command: \"{}\"", Text(&command.name)));
            }
            return Ok(Went::On);
        };
        if known.kind != Kind::Endblock {
            match self.shown {
                Shown::Yes => {}
                Shown::InBlock => {
                    self.keep(&text_of(command), r);
                    return Ok(Went::On);
                }
                Shown::No if known.condition.is_none() => return Ok(Went::On),
                Shown::No => {}
            }
        }
        if known.condition.is_some_and(|last| self.condition == Condition::None || self.condition > last) {
            return Err(format!("invalid context of SSI command: \"{}\"", Text(&command.name)));
        }
        let values = known.values(command)?;
        match known.kind {
            Kind::Include => return self.include(&values, r),
            Kind::Echo => self.echo(&values, r),
            Kind::Config => self.config(&values, r),
            Kind::Set => {
                let value = self.evaluate(values[commands::VALUE].unwrap_or_default(), r)?;
                self.shared.set(&values[commands::VAR].unwrap_or_default().to_ascii_lowercase(), value)?;
            }
            Kind::If | Kind::Elif => {
                self.condition(known.kind, values[commands::EXPR].unwrap_or_default(), r)?
            }
            Kind::Else => {
                self.shown = if self.branch == Branch::Taken { Shown::No } else { Shown::Yes };
                self.condition = Condition::Else;
            }
            Kind::Endif => {
                (self.shown, self.branch, self.condition) = (Shown::Yes, Branch::Open, Condition::None);
            }
            Kind::Block => {
                self.shared.begin_block(values[commands::NAME].unwrap_or_default())?;
                self.shown = Shown::InBlock;
            }
            Kind::Endblock => self.shown = Shown::Yes,
        }
        Ok(Went::On)
    }

    fn evaluate(&self, text: &[u8], r: &Request) -> Result<Vec<u8>, Complaint> {
        words::evaluate(text, &mut |name, out| {
            self.shared.get(r, name, out);
        })
    }

    fn echo(&mut self, values: &Values<'_>, r: &Request) {
        let mut value = Vec::new();
        let name = values[commands::VAR].unwrap_or_default().to_ascii_lowercase();
        if self.shared.get(r, &name, &mut value) == Value::Missing {
            value.extend_from_slice(values[commands::DEFAULT].unwrap_or(b"(none)"));
        }
        if value.is_empty() {
            return;
        }
        match values[commands::ENCODING] {
            None => {}
            Some(b"none") => self.encoding = Encoding::None,
            Some(b"url") => self.encoding = Encoding::Url,
            Some(b"entity") => self.encoding = Encoding::Entity,
            Some(other) => r.log(
                Level::Error,
                format_args!("unknown encoding \"{}\" in the \"echo\" command", Text(other)),
            ),
        }
        let mut encoded = Vec::new();
        match self.encoding {
            Encoding::None => encoded = value,
            Encoding::Url => Escape::Html.push(&value, &mut encoded),
            Encoding::Entity => push_html(&value, &mut encoded),
        }
        self.put(&encoded);
    }

    fn config(&mut self, values: &Values<'_>, r: &Request) {
        if let Some(format) = values[commands::TIMEFMT]
            && let Some(known) = r.facts.states.get::<TimeFormat>()
        {
            *known.0.borrow_mut() = format.to_vec();
        }
        if let Some(message) = values[commands::ERRMSG] {
            self.error_message = message.to_vec();
        }
    }

    /// `if` and `elif`
    fn condition(&mut self, kind: Kind, text: &[u8], r: &Request) -> Result<(), Complaint> {
        if kind == Kind::If && self.condition != Condition::None {
            return Err("the \"if\" command inside the \"if\" command".to_owned());
        }
        if self.branch == Branch::Taken {
            self.shown = Shown::No;
            return Ok(());
        }
        let holds = match words::expression(text)? {
            Expression::Text(text) => !self.evaluate(&text, r)?.is_empty(),
            Expression::Equal { left, right, negative } => {
                (self.evaluate(&left, r)? == self.evaluate(right, r)?) != negative
            }
            Expression::Matches { left, pattern, negative } => {
                let left = self.evaluate(&left, r)?;
                let pattern = Regex::new(&self.evaluate(pattern, r)?, Caseless::No)?;
                self.shared.matches(&pattern, &left)? != negative
            }
        };
        (self.shown, self.branch) =
            if holds { (Shown::Yes, Branch::Taken) } else { (Shown::No, Branch::Open) };
        self.condition = Condition::If;
        Ok(())
    }

    /// Queues an include.
    fn include(&mut self, values: &Values<'_>, r: &Request) -> Result<Went, Complaint> {
        let (stub, variable) = (values[commands::STUB], values[commands::INCLUDE_SET]);
        let (uri, mut waits) = match (values[commands::VIRTUAL], values[commands::FILE]) {
            (Some(uri), Some(file)) => {
                let (uri, file) = (Text(uri), Text(file));
                return Err(format!("inclusion may be either virtual=\"{uri}\" or file=\"{file}\""));
            }
            (None, None) => return Err("no parameter in \"include\" SSI command".to_owned()),
            (Some(uri), None) => (uri, false),
            (None, Some(file)) => (file, true),
        };
        if stub.is_some() && variable.is_some() {
            return Err("\"set\" and \"stub\" cannot be used together in \"include\" SSI command".to_owned());
        }
        if let Some(wait) = values[commands::WAIT] {
            if waits {
                return Err(format!("\"wait\" cannot be used with file=\"{}\"", Text(uri)));
            }
            if wait.eq_ignore_ascii_case(b"yes") {
                waits = true;
            } else if !wait.eq_ignore_ascii_case(b"no") {
                return Err(format!("invalid value \"{}\" in the \"wait\" parameter", Text(wait)));
            }
        }
        let (path, args) = words::parse_uri(&self.absolute(uri, r)?)?;
        let stub = match stub {
            None => None,
            Some(name) => Some(
                self.shared
                    .block(name)
                    .ok_or_else(|| format!("\"stub\"=\"{}\" for \"include\" not found", Text(name)))?,
            ),
        };
        let variable = variable.map(<[u8]>::to_ascii_lowercase);
        if let Some(name) = &variable {
            self.shared.declare(name)?;
            waits = true;
        }
        let include = Include { uri: Uri { path, args }, stub, variable };
        self.queued += include.cost();
        self.queue.push_back(Item::Include(include));
        Ok(if waits { Went::Waits } else { Went::On })
    }

    /// The URI of an include with its variables replaced; one that is relative begins in the directory of the page.
    fn absolute(&self, uri: &[u8], r: &Request) -> Result<Vec<u8>, Complaint> {
        let value = self.evaluate(uri, r)?;
        let first = if uri.contains(&b'$') { value.first() } else { uri.first() };
        let is_relative = match first {
            Some(byte) => *byte != b'/',
            None => !uri.contains(&b'$'),
        };
        if !is_relative {
            return Ok(value);
        }
        let base = &r.uri.path;
        let len = base.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        Ok([&base[..len], &value].concat())
    }

    /// Begins the include at the front of the queue. It stays there while anything is waited for: whoever drops the future
    /// and asks again gets it.
    async fn begin(&mut self, r: &mut Request) -> io::Result<()> {
        let Some(Item::Include(Include { uri, variable, .. })) = self.queue.front() else { return Ok(()) };
        let asked = Uri { path: uri.path.clone(), args: uri.args.clone() };
        let begun = match Subrequest::run(r, asked, ParentBody::Visible).await {
            Ok(part) if variable.is_some() => Begun::Value(collect(part, r).await?),
            Ok(part) => Begun::Part(part),
            Err(refused) => Begun::Refused(refused),
        };
        let Some(Item::Include(include)) = self.queue.pop_front() else { return Ok(()) };
        self.queued -= include.cost().min(self.queued);
        let Include { uri: again, stub, variable } = include;
        let part = match begun {
            Begun::Part(part) => part,
            Begun::Value(value) => {
                self.store(value, &variable.unwrap_or_default(), r);
                return Ok(());
            }
            Begun::Refused(refused) => {
                self.refuse(refused, &again.path, r);
                return Ok(());
            }
        };
        let Some(content) = stub else {
            self.include = Some(Part::Response { part, stub: None });
            return Ok(());
        };
        let is_error = part.request().is_none_or(|part| {
            part.course.error_status.is_some() || part.course.error_pages == ErrorPages::Used
        });
        let commands = if part.remaining() == Some(0) { Commands::Text } else { Commands::Run };
        if is_error {
            self.begin_stub(Stub { content, uri: again, commands: Commands::Run }, r);
        } else {
            let stub = Stub { content, uri: again, commands };
            self.include = Some(Part::Response { part, stub: Some(stub) });
        }
        Ok(())
    }

    /// Stores a response in a variable, if there is something in it.
    fn store(&mut self, value: Vec<u8>, name: &[u8], r: &Request) {
        if !value.is_empty()
            && let Err(complaint) = self.shared.set(name, value)
        {
            r.log(Level::Error, format_args!("{complaint}"));
            self.show_error();
        }
    }

    fn refuse(&mut self, refused: Refused, uri: &[u8], r: &Request) {
        if !self.shared.refusal_is_logged.replace(true) {
            r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(uri)));
        }
        // It stands where the include stands.
        if self.settings.errors == Errors::Shown {
            self.queued += self.error_message.len();
            self.queue.push_front(Item::Text(self.error_message.clone()));
        }
    }

    fn begin_stub(&mut self, stub: Stub, r: &Request) {
        let Stub { content, uri, commands } = stub;
        if commands == Commands::Text {
            self.queued += content.len();
            return self.queue.push_front(Item::Text(content));
        }
        let stubs = &self.shared.stubs;
        if stubs.get() >= SUBREQUEST_DEPTH_MAX {
            return self.refuse(Refused::Cycle, &uri.path, r);
        }
        stubs.set(stubs.get() + 1);
        let page = Self::new(self.settings.clone(), self.shared.clone(), Body::Bytes(content.into()));
        self.include = Some(Part::Stub(Box::new(page), uri));
    }

    /// The next piece of the include whose turn it is; `None` when it is over.
    async fn next_of_include(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        let piece = match &mut self.include {
            None => return Ok(None),
            Some(Part::Response { part, stub }) => {
                let piece = part.next(want, r).await?;
                // A page of which nothing is left was not empty: it says so with a piece without bytes.
                if piece.is_some() {
                    *stub = None;
                }
                piece
            }
            Some(Part::Stub(page, uri)) => page.next(want, AtUri::new(uri, r).r).await?,
        };
        if piece.is_none() {
            match self.include.take() {
                Some(Part::Response { stub: Some(stub), .. }) => self.begin_stub(stub, r),
                Some(Part::Stub(..)) => self.shared.stubs.set(self.shared.stubs.get().saturating_sub(1)),
                _ => {}
            }
        }
        Ok(piece)
    }
}

/// The whole of a response; nothing of one that is an error.
async fn collect(part: Subrequest, r: &mut Request) -> io::Result<Vec<u8>> {
    let is_error = part.status() >= 300;
    let max = part.request().map_or(0, |part| part.plan().core.subrequest_buffer_size);
    let Some(value) = part.collect(r, max).await? else {
        r.log(Level::Error, format_args!("too big subrequest response"));
        return Err(io::Error::other("the response is incomplete"));
    };
    Ok(if is_error { Vec::new() } else { value })
}

/// A request that goes by another URI until this is dropped, wherever what ran there was left.
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

impl Pull for Page {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            loop {
                if let Some(piece) = self.next_of_include(want, r).await? {
                    return Ok(Some(piece));
                }
                if self.include.is_some() {
                    continue;
                }
                if let Some(Item::Include(_)) = self.queue.front() {
                    self.begin(r).await?;
                    continue;
                }
                if let Some(Item::Text(text)) = self.queue.pop_front() {
                    self.queued -= text.len().min(self.queued);
                    return Ok(Some(text.into()));
                }
                if !self.rest.is_empty() {
                    self.parse(r);
                    if self.queue.is_empty() && self.rest.is_empty() {
                        // A piece without anything to show: others first.
                        return Ok(Some(Bytes::new()));
                    }
                    continue;
                }
                if self.end == End::Reached {
                    return Ok(None);
                }
                match self.body.next(want, r).await? {
                    Some(piece) if piece.is_empty() => return Ok(Some(piece)),
                    Some(piece) => self.rest = piece,
                    None => self.end = End::Reached,
                }
            }
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        true
    }
}
