//! One page: its commands, run while its body is pulled.
//!
//! ```text
//! body ─► parser ─► queue of texts and includes ─► the response
//!            ▲                      │
//!            └─ the queue is empty ◄┘
//! ```
//!
//! As in nginx, the bytes read of a page are parsed before its includes run, so a variable that an included page sets
//! is not visible to the rest of it, unless the include has `wait`. The includes in the queue run concurrently, and
//! while the first of them is pending the page is read ahead.
// DIFF(nginx): a command that reads or sets what pages have in common runs when all that stands in front of it was sent, but
// for those of the piece of the page that was parsed with it. nginx runs it when its page happens to be there.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_core::regex::{Caseless, Regex};
use tw_http::Escape;
use tw_http::escape::push_html;
use tw_log::{Level, Text};
use tw_phases::early_subrequest::SubrequestTurn;
use tw_request::body::{Body, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::{Request, Uri};
use tw_request::vars::Value;

use super::commands::{self, CommandKind, CommandSpec, ConditionState, Values, text_of};
use super::parser::{Command, Parser, START, SsiToken};
use super::queue::{Include, Item, Queue};
use super::shared::SsiState;
use super::words::{self, CommandError, Expression};
use super::{Errors, Ssi, TimeFormat};

use includes::Part;

mod includes;

const ERROR_MESSAGE: &[u8] = b"[an error occurred while processing the directive]";

/// A page that runs its commands.
pub(super) struct SsiPage {
    settings: Arc<Ssi>,
    shared: Rc<SsiState>,
    body: Body,
    /// Bytes of the body that were pulled and not yet parsed.
    rest: Bytes,
    end: End,
    /// The error that ended the body before its turn.
    failed: Option<io::Error>,
    parser: Parser,
    /// A command that waits until all that is in front of it was sent.
    pending_command: Option<Command>,
    parsing: Parsing,
    queue: Queue,
    /// Include that is being sent.
    include: Option<Part>,
    /// The turn of the page itself, if it is a part of another.
    turn: Option<Rc<SubrequestTurn>>,
    error_message: Vec<u8>,
    encoding: Encoding,
    shown: TextMode,
    condition: ConditionState,
    branch: Branch,
}

/// End of the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Reached,
}

/// Treatment of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextMode {
    Yes,
    /// Dropped: it is in a branch that was not taken.
    No,
    /// Kept in a block.
    InBlock,
}

/// State of the branches of a condition.
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

/// State of the parser of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parsing {
    On,
    /// An include that is waited for was queued.
    Waits,
}

/// Commands that may be run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    All,
    /// Commands whose result does not depend on the includes in front: a page that is parsed before its turn waits with
    /// the others.
    Independent,
}

impl SsiPage {
    pub(super) fn new(
        settings: Arc<Ssi>,
        shared: Rc<SsiState>,
        turn: Option<Rc<SubrequestTurn>>,
        body: Body,
    ) -> Self {
        let parser = Parser::new(settings.value_len_max);
        Self {
            settings,
            shared,
            body,
            rest: Bytes::new(),
            end: End::Open,
            failed: None,
            parser,
            pending_command: None,
            parsing: Parsing::On,
            queue: Queue::default(),
            include: None,
            turn,
            error_message: ERROR_MESSAGE.to_vec(),
            encoding: Encoding::Entity,
            shown: TextMode::Yes,
            condition: ConditionState::None,
            branch: Branch::Open,
        }
    }

    /// Parses the pulled bytes until enough is queued or a command has to wait, and begins the includes found.
    fn parse(&mut self, reach: Reach, r: &mut Request) {
        if self.parsing == Parsing::On {
            self.parse_pulled(reach, r);
            self.queue.begin_early(r);
        }
    }

    fn parse_pulled(&mut self, reach: Reach, r: &Request) {
        // A block is kept where other pages keep theirs.
        if reach == Reach::Independent && (self.pending_command.is_some() || self.shown == TextMode::InBlock)
        {
            return;
        }
        if let Some(command) = self.pending_command.take() {
            self.run_or_log(&command, r);
        }
        while self.parsing == Parsing::On && !self.rest.is_empty() && !self.queue.is_full() {
            let (taken, token) = self.parser.next(&self.rest);
            let piece = self.rest.split_to(taken);
            if let Some(error) = self.parser.error.take() {
                r.log(Level::Error, format_args!("{error}"));
            }
            match token {
                None => {}
                Some(SsiToken::Text { saved, len }) => {
                    self.text(&START[..saved], r);
                    self.text(&piece[..len], r);
                }
                Some(SsiToken::Broken) => self.show_error(),
                Some(SsiToken::Command) => {
                    let command = std::mem::take(&mut self.parser.command);
                    if reach == Reach::Independent && !commands::is_independent(&command) {
                        self.pending_command = Some(command);
                        return;
                    }
                    // The parser may report text in front of a command together with it, and reports the text first.
                    self.run_or_log(&command, r);
                }
            }
        }
    }

    fn run_or_log(&mut self, command: &Command, r: &Request) {
        if let Err(error) = self.run(command, r) {
            r.log(Level::Error, format_args!("{error}"));
            self.show_error();
        }
    }

    fn text(&mut self, text: &[u8], r: &Request) {
        match self.shown {
            _ if text.is_empty() => {}
            TextMode::Yes => self.queue.push_text(text),
            TextMode::No => {}
            TextMode::InBlock => self.keep(text, r),
        }
    }

    fn keep(&mut self, text: &[u8], r: &Request) {
        if let Err(error) = self.shared.add_to_block(text) {
            r.log(Level::Error, format_args!("{error}"));
            // The rest of the block is dropped without a log line for each piece.
            self.shown = TextMode::No;
        }
    }

    fn show_error(&mut self) {
        if self.settings.errors == Errors::Shown {
            self.queue.push_text(&self.error_message);
        }
    }

    /// Runs a command; the error is for the log and the page.
    fn run(&mut self, command: &Command, r: &Request) -> Result<(), CommandError> {
        let Some(command_spec) = CommandSpec::find(&command.name) else {
            if self.shown == TextMode::Yes {
                return Err(format!("invalid SSI command: \"{}\"", Text(&command.name)));
            }
            return Ok(());
        };
        if command_spec.kind != CommandKind::Endblock {
            match self.shown {
                TextMode::Yes => {}
                TextMode::InBlock => {
                    self.keep(&text_of(command), r);
                    return Ok(());
                }
                TextMode::No if command_spec.condition.is_none() => return Ok(()),
                TextMode::No => {}
            }
        }
        if command_spec
            .condition
            .is_some_and(|last| self.condition == ConditionState::None || self.condition > last)
        {
            return Err(format!("invalid context of SSI command: \"{}\"", Text(&command.name)));
        }
        let values = command_spec.values(command)?;
        match command_spec.kind {
            CommandKind::Include => return self.include(&values, r),
            CommandKind::Echo => self.echo(&values, r),
            CommandKind::Config => self.config(&values, r),
            CommandKind::Set => {
                let value = self.evaluate(values[commands::VALUE].unwrap_or_default(), r)?;
                self.shared.set(&values[commands::VAR].unwrap_or_default().to_ascii_lowercase(), value)?;
            }
            CommandKind::If | CommandKind::Elif => {
                self.condition(command_spec.kind, values[commands::EXPR].unwrap_or_default(), r)?
            }
            CommandKind::Else => {
                self.shown = if self.branch == Branch::Taken { TextMode::No } else { TextMode::Yes };
                self.condition = ConditionState::Else;
            }
            CommandKind::Endif => {
                (self.shown, self.branch, self.condition) =
                    (TextMode::Yes, Branch::Open, ConditionState::None);
            }
            CommandKind::Block => {
                self.shared.begin_block(values[commands::NAME].unwrap_or_default())?;
                self.shown = TextMode::InBlock;
            }
            CommandKind::Endblock => self.shown = TextMode::Yes,
        }
        Ok(())
    }

    fn evaluate(&self, text: &[u8], r: &Request) -> Result<Vec<u8>, CommandError> {
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
        self.queue.push_text(&encoded);
    }

    fn config(&mut self, values: &Values<'_>, r: &Request) {
        if let Some(format) = values[commands::TIMEFMT]
            && let Some(time_format) = r.extensions.get::<TimeFormat>()
        {
            *time_format.0.borrow_mut() = format.to_vec();
        }
        if let Some(message) = values[commands::ERRMSG] {
            self.error_message = message.to_vec();
        }
    }

    /// `if` and `elif`
    fn condition(&mut self, kind: CommandKind, text: &[u8], r: &Request) -> Result<(), CommandError> {
        if kind == CommandKind::If && self.condition != ConditionState::None {
            return Err("the \"if\" command inside the \"if\" command".to_owned());
        }
        if self.branch == Branch::Taken {
            self.shown = TextMode::No;
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
            if holds { (TextMode::Yes, Branch::Taken) } else { (TextMode::No, Branch::Open) };
        self.condition = ConditionState::If;
        Ok(())
    }

    /// Queues an include.
    fn include(&mut self, values: &Values<'_>, r: &Request) -> Result<(), CommandError> {
        let stub = values[commands::STUB];
        let variable = values[commands::INCLUDE_SET];
        let (uri, mut waits) = match (values[commands::VIRTUAL], values[commands::FILE]) {
            (Some(uri), Some(file)) => {
                let uri = Text(uri);
                let file = Text(file);
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
        self.queue.push_include(Include { uri: Uri { path, args }, stub, variable, begun: None });
        if waits {
            self.parsing = Parsing::Waits;
        }
        Ok(())
    }

    /// The URI of an include with its variables replaced; one that is relative begins in the directory of the page.
    fn absolute(&self, uri: &[u8], r: &Request) -> Result<Vec<u8>, CommandError> {
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

    /// Waits until all that stands in front of the page was sent.
    async fn turn(&self) {
        let has_come = || self.turn.as_ref().is_none_or(|turn| turn.has_come());
        // No waker is needed: the page that gives the turn also polls this one.
        poll_fn(|_| if has_come() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

impl Pull for SsiPage {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            loop {
                if self.include.is_some() {
                    match self.next_of_include(want, r).await? {
                        Some(piece) => return Ok(Some(piece)),
                        None => continue,
                    }
                }
                match self.queue.pop() {
                    Some(Item::Include(include)) => {
                        self.begin(include, r);
                        continue;
                    }
                    Some(Item::Text(text)) => return Ok(Some(text.into())),
                    None => self.parsing = Parsing::On,
                }
                if self.pending_command.is_some() || !self.rest.is_empty() {
                    let has_come = self.turn.as_ref().is_none_or(|turn| turn.has_come());
                    self.parse(if has_come { Reach::All } else { Reach::Independent }, r);
                    if !self.queue.is_empty() {
                        continue;
                    }
                    if self.pending_command.is_none() && self.rest.is_empty() {
                        // A piece without anything to show: others first.
                        return Ok(Some(Bytes::new()));
                    }
                    self.turn().await;
                    continue;
                }
                if let Some(error) = self.failed.take() {
                    return Err(error);
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
        match &mut self.include {
            Some(Part::Begun { part, .. } | Part::Response { part, .. } | Part::Value { part, .. }) => {
                part.run_ahead(cx);
            }
            Some(Part::Stub(page, _)) => page.run_ahead(cx),
            None => {}
        }
        self.queue.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        true
    }
}
