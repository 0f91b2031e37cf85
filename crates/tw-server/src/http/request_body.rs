//! The body of a request: pulled from its client when somebody wants it, or read and thrown away.
//!
//! ```text
//! Source ─ read ──→ Spool    (memory up to client_body_buffer_size, then a file through the disk door)
//!    ├──── take ──→ whoever pulls it himself, be it while the response is being sent
//!    └──── drain ─→ nowhere  (after the response, so that the connection can be used again)
//! ```

use std::ffi::CStr;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_disk::{Account, Disk, DiskError, File, JobClass, JobSource};
use tw_http::Framing;
use tw_http::chunked::ChunkError;
use tw_http2::MalformedReason;
use tw_log::{Level, Text};

use super::body_buffer::{BodyBuffer, Naming, Reader, Room};
use super::file_reads::Pieces;
use super::request::{After, Request};
use super::{h1, h2};
use crate::config::location::InFileOnly;
use crate::vars;

/// Bytes asked of a body at once.
const PULL_SIZE: usize = 64 << 10;

/// Bytes written to a temporary file at once, where the client sends as fast: two pieces for each job. While they are written,
/// as many may come.
const BATCH_SIZE: usize = 128 << 10;

/// The limit kept here.
pub(crate) const LIMITS: &[Limit] = &[Limit::bytes(
    "BATCH_SIZE",
    BATCH_SIZE as u64,
    "Bytes of a request body on their way to its temporary file, and behind them in memory as many, or \
     `client_body_buffer_size` if that is more",
    "the client is not read from",
)];

/// The body of a request.
#[derive(Default)]
pub struct RequestBody {
    /// Where the rest of it comes from.
    source: Source,
    /// What was read of it.
    buffer: BodyBuffer,
    standing: Standing,
}

/// Where a body comes from. It stands for itself: whoever has it can read the body while somebody else has the request.
#[derive(Default)]
pub enum Source {
    /// There is none.
    #[default]
    None,
    /// The connection of HTTP/1 brings it.
    H1(Box<h1::Input>),
    /// A stream of HTTP/2 does.
    H2(Box<h2::Input>),
    /// It was read, and is kept.
    Stored(Reader),
    /// Somebody has taken it and has not given it back.
    Taken,
}

/// What whoever pulls a body grants its client: [`Request::body_terms`].
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Bytes of the body at most; 0 is no limit.
    pub max_size: u64,
    /// How long the client may pause.
    pub timeout: Duration,
}

/// Why there is no next piece.
#[derive(Debug)]
pub enum InputError {
    /// It has more bytes than allowed: so many were taken, and so many more are known of.
    TooLarge {
        /// Bytes that were taken before.
        received: u64,
        /// Bytes that came or were announced since.
        coming: u64,
    },
    /// The coding makes no sense.
    Malformed(ChunkError),
    /// It has ended after so many bytes of those that were announced.
    TooShort {
        /// Bytes that came.
        received: u64,
        /// What was announced.
        length: u64,
    },
    /// It has more bytes than were announced.
    TooLong,
    /// What follows it breaks the rules of the protocol.
    Trailers(MalformedReason),
    /// The client closed its side before the end.
    Closed,
    /// Nothing came in time.
    Timeout,
    /// The connection failed.
    Failed,
}

/// Why a body ends early.
#[derive(Debug)]
pub enum BodyError {
    /// The client: it is too large, makes no sense, stopped coming, or the client is gone.
    Client(InputError),
    /// What was stored cannot be read.
    Disk(DiskError),
}

/// Whether the body may still be had.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Standing {
    #[default]
    Wanted,
    /// It is too large: whatever comes of it is thrown away.
    Refused,
    /// The body that the head announces is another request's; this one has a copy of it.
    Copied,
    /// The same, and it has none.
    Absent,
    /// Another request's body; variables show what that request had read when this one began.
    Borrowed,
}

/// Where a body is read to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    /// Where the location's directives say.
    Configured,
    /// A file with a name, however short the body is.
    NamedFile,
}

/// Whether the rest of a body was read after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Nothing of it is left.
    Yes,
    /// Something may still come, or nobody can say where it ends: the connection cannot be used again.
    No,
}

impl Source {
    /// These bytes.
    pub fn of_bytes(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::None } else { Self::Stored(Reader::of(bytes)) }
    }

    /// The next piece, at most `want` bytes; `None` at the end. Waits for the client, or for the disk on which it is kept.
    ///
    /// Dropping the future loses nothing of the body.
    ///
    /// # Errors
    /// What the client did, or the disk. There is nothing more to be had then.
    pub async fn next(&mut self, want: usize, terms: Terms) -> Result<Option<Bytes>, BodyError> {
        match self {
            Self::None | Self::Taken => Ok(None),
            Self::H1(input) => input.next(want, terms).await.map_err(BodyError::Client),
            Self::H2(input) => input.next(want, terms).await.map_err(BodyError::Client),
            Self::Stored(reader) => {
                let mut by = Account::new(JobClass::Hit, JobSource::NONE);
                reader.next(want, &mut by).await.map_err(BodyError::Disk)
            }
        }
    }

    /// The next piece as [`next`](Self::next) gives it, if nobody has to be waited for; else `None`. Whoever asks again and
    /// again lets others run ([`CopyBudget`](tw_core::event_loop::CopyBudget)).
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub fn at_hand(&mut self, want: usize, terms: Terms) -> Option<Result<Option<Bytes>, BodyError>> {
        match self {
            Self::None | Self::Taken => Some(Ok(None)),
            Self::H1(input) => Some(input.at_hand(want, terms)?.map_err(BodyError::Client)),
            Self::H2(input) => Some(input.at_hand(want, terms)?.map_err(BodyError::Client)),
            Self::Stored(reader) => Some(reader.at_hand(want)?.map_err(BodyError::Disk)),
        }
    }

    /// Whether nobody can say where it ends.
    fn is_broken(&self) -> bool {
        matches!(self, Self::H1(input) if input.is_broken())
    }

    /// Whether it comes from the client.
    pub(crate) fn is_coming(&self) -> bool {
        matches!(self, Self::H1(_) | Self::H2(_))
    }

    /// Whether something of it has not been read.
    fn is_pending(&self) -> bool {
        match self {
            Self::None | Self::Stored(_) => false,
            Self::H1(input) => input.is_pending(),
            Self::H2(input) => input.is_pending(),
            Self::Taken => true,
        }
    }
}

impl RequestBody {
    /// Begins with where it comes from.
    pub(crate) fn begin(&mut self, source: Source) {
        self.source = source;
    }

    /// Where it came from, once all of it was taken; `None` also if nobody can say where it ends.
    pub(crate) fn finished(&mut self) -> Option<&mut Source> {
        (!self.is_pending() && !self.source.is_broken()).then_some(&mut self.source)
    }

    // DIFF(nginx): what a subrequest announces is what it sends: nothing, where nginx announces the client's body and sends
    // it if it was read by then.
    /// None at all, whatever the head announces, which is that of another request.
    pub(crate) fn absent() -> Self {
        Self { standing: Standing::Absent, ..Self::default() }
    }

    /// None at all, like [`absent`](Self::absent), but variables show what `parent` has read to its end by now.
    pub(crate) fn borrowed_from(parent: &Self) -> Self {
        let buffer = if parent.is_pending() || !parent.buffer.is_settled() {
            BodyBuffer::default()
        } else {
            parent.buffer.copy()
        };
        Self { standing: Standing::Borrowed, source: Source::None, buffer }
    }

    /// What was read of it, for a request beside this one; what is in memory is copied. One that was not read to its end is
    /// absent there.
    pub(crate) fn copy(&self) -> Self {
        if self.is_pending()
            || matches!(self.standing, Standing::Refused | Standing::Absent | Standing::Borrowed)
        {
            return Self::absent();
        }
        Self { source: Source::None, buffer: self.buffer.copy(), standing: Standing::Copied }
    }

    /// How the body of a request with this framing goes on: with its length, if that is known now.
    pub fn framing(&self, announced: Framing) -> Framing {
        match (self.standing, announced) {
            (_, Framing::None) | (Standing::Absent | Standing::Borrowed, _) => Framing::None,
            // Nobody gets anything of it.
            (Standing::Refused, _) => Framing::Length(0),
            (Standing::Copied, _) => Framing::Length(self.buffer.len()),
            // What went by and was not kept is gone.
            (_, Framing::Chunked | Framing::Length(_)) if !self.is_pending() => {
                Framing::Length(self.buffer.len())
            }
            (_, announced) => announced,
        }
    }

    /// Takes the body to pull it. One that was read can be taken again and again; the rest of one that was not is the
    /// taker's alone, and until it is given back nobody knows where the next request begins. Of one that was refused there is
    /// nothing to be had.
    pub fn take(&mut self) -> Source {
        if matches!(self.standing, Standing::Refused | Standing::Borrowed) {
            return Source::None;
        }
        if self.source.is_pending() {
            return std::mem::replace(&mut self.source, Source::Taken);
        }
        if self.buffer.is_empty() { Source::None } else { Source::Stored(self.buffer.reader()) }
    }

    /// Takes back what [`take`](Self::take) gave.
    pub fn give_back(&mut self, source: Source) {
        if matches!(self.source, Source::Taken) {
            self.source = source;
        }
    }

    /// Keeps what whoever took the body has seen of it, if that is all of it.
    pub(crate) fn keep(&mut self, seen: Pieces) {
        if self.buffer.is_empty() && !self.is_pending() && self.received() == seen.len() as u64 {
            self.buffer.append(seen);
        }
    }

    /// Whether it can be taken from its beginning.
    pub(crate) fn is_kept(&self) -> bool {
        match &self.source {
            _ if self.standing == Standing::Refused => true,
            Source::None | Source::Stored(_) => true,
            Source::H1(input) => !input.is_pending() && input.received() == self.buffer.len(),
            Source::H2(input) => !input.is_pending() && input.received() == self.buffer.len(),
            Source::Taken => false,
        }
    }

    /// Whether something of it has not been read.
    pub fn is_pending(&self) -> bool {
        self.source.is_pending()
    }

    /// Whether it comes from somewhere, be it only its end. If not, there is nothing that [`read`] could do.
    pub fn has_source(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// Whether the client was not told to send it and perhaps does not: nobody can know where its next request begins.
    pub(crate) fn may_not_come(&self) -> bool {
        match &self.source {
            Source::H1(input) => input.may_not_come(),
            Source::None | Source::H2(_) | Source::Stored(_) | Source::Taken => false,
        }
    }

    /// Bytes that arrived.
    pub fn received(&self) -> u64 {
        match &self.source {
            Source::H1(input) => input.received(),
            Source::H2(input) => input.received(),
            Source::None | Source::Stored(_) | Source::Taken => 0,
        }
    }

    /// Bytes that arrived, with the framing of a chunked body.
    pub fn wire(&self) -> u64 {
        match &self.source {
            Source::H1(input) => input.wire(),
            Source::H2(input) => input.received(),
            Source::None | Source::Stored(_) | Source::Taken => 0,
        }
    }

    /// The body, if all of it is in memory.
    pub fn memory(&self) -> Option<&[u8]> {
        self.buffer.memory().filter(|memory| !self.is_pending() && !memory.is_empty())
    }

    /// The name of its temporary file.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.named_file().map(|(_, name)| name.to_bytes())
    }

    /// The file of a body that [`read_to_file`] has read, and its name.
    pub fn named_file(&self) -> Option<(&File, &CStr)> {
        self.buffer.named_file()
    }

    /// Leaves the file of the body where it is when the request ends: it has another name now, or none.
    pub fn give_file_away(&mut self) {
        self.buffer.keep_file();
    }
}

/// The status of a request whose body is, or is announced to be, too large for its location.
pub(crate) fn refuse_or_none(r: &mut Request) -> Option<u16> {
    let max = r.plan().core.client_body.max_size;
    let length = match &r.body.source {
        Source::H1(input) => input.announced(),
        Source::H2(input) => input.announced(),
        Source::None | Source::Stored(_) | Source::Taken => 0,
    };
    if max == 0 || length <= max || r.body.standing == Standing::Refused {
        return None;
    }
    r.log(Level::Error, format_args!("client intended to send too large body: {length} bytes"));
    r.body.standing = Standing::Refused;
    Some(413)
}

/// Reads the body first where `client_body_early_read` asks for it. The error is the status to answer with.
pub(crate) async fn read_early(r: &mut Request) -> Result<(), u16> {
    let wanted =
        r.generation().server(r.route.server).settings.client_body_early_read.iter().any(|condition| {
            let value = condition.value(r);
            !value.is_empty() && value != b"0"
        });
    if wanted { Box::pin(read(r)).await } else { Ok(()) }
}

/// Reads the whole body into memory or a file. The error is the status to answer with.
pub async fn read(r: &mut Request) -> Result<(), u16> {
    read_into(r, Into::Configured).await
}

/// Reads the whole body, be it empty, into a file that has a name: [`RequestBody::named_file`]. The file is removed with
/// the request, unless [`RequestBody::give_file_away`] is called. The error is the status to answer with: 500 also for a
/// body of which something was thrown away before.
pub async fn read_to_file(r: &mut Request) -> Result<(), u16> {
    read_into(r, Into::NamedFile).await?;
    let is_whole = match r.body.standing {
        Standing::Wanted => r.body.received() == r.body.buffer.len(),
        Standing::Copied => true,
        Standing::Refused | Standing::Absent | Standing::Borrowed => false,
    };
    if !is_whole {
        r.log(Level::Error, format_args!("request body is unavailable"));
        return Err(500);
    }
    let disk = disk(r)?;
    let (dir, home) = (r.plan().core.client_body.temp_path.clone(), r.client().home.clone());
    let room = Room { disk, dir, naming: Naming::Named, home: Some(home) };
    let Request { body, costs, .. } = &mut *r;
    body.buffer.claim_file();
    let spilt = body.buffer.spill_named(&mut costs.account, &room).await;
    spilt.map_err(|error| not_stored(r, &error))
}

async fn read_into(r: &mut Request, into: Into) -> Result<(), u16> {
    if let Some(status) = refuse_or_none(r) {
        return Err(status);
    }
    if r.body.standing == Standing::Refused {
        return Ok(());
    }
    let (terms, settings) = (r.body_terms(), r.plan().core.client_body.clone());
    let home = r.client().home.clone();
    let at_once = into == Into::Configured && settings.in_file_only != InFileOnly::Off;
    let most = if at_once { 0 } else { settings.buffer_size };
    let mut storing = None;
    loop {
        let next = match r.body.source.at_hand(PULL_SIZE, terms) {
            Some(next) => {
                let size = next.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
                home.budget.spend(size).await;
                next
            }
            None => {
                // The client makes us wait: what came goes to the file meanwhile.
                if storing.is_none() && r.body.buffer.in_memory() > most {
                    storing = Some(Storing::begin(r, into, most)?);
                }
                match &mut storing {
                    Some(storing) => storing.next(r, terms).await?,
                    None => r.body.source.next(PULL_SIZE, terms).await,
                }
            }
        };
        match next {
            Ok(Some(piece)) => r.body.buffer.push(piece),
            Ok(None) => break,
            Err(error) => return Err(failed(r, error)),
        }
        if r.body.buffer.in_memory() >= BATCH_SIZE.max(most.saturating_add(1)) {
            if storing.is_none() {
                storing = Some(Storing::begin(r, into, most)?);
            }
            if let Some(storing) = &mut storing {
                storing.make_room(r).await?;
            }
        }
    }
    if storing.is_none() && r.body.buffer.in_memory() > most {
        storing = Some(Storing::begin(r, into, most)?);
    }
    let has_body = r.body.standing == Standing::Wanted && r.head.framing() != Framing::None;
    match storing {
        Some(storing) => storing.end(r).await,
        // An empty body is one.
        None if at_once && has_body && !r.body.buffer.has_file() => {
            Storing::begin(r, into, most)?.empty(r).await
        }
        None => Ok(()),
    }
}

/// A body that goes to a temporary file while it comes.
struct Storing {
    room: Room,
    into: Into,
    /// Bytes that may stay in memory.
    most: usize,
    /// Whether the error log has said so.
    is_told: bool,
}

impl Storing {
    fn begin(r: &mut Request, into: Into, most: usize) -> Result<Self, u16> {
        let disk = disk(r)?;
        let settings = &r.plan().core.client_body;
        let is_named = into == Into::NamedFile
            || settings.in_file_only != InFileOnly::Off
            || r.plan().prepared.has(vars::NAMED_BODY_FILE);
        let naming = if is_named { Naming::Named } else { Naming::Nameless };
        let (dir, home) = (settings.temp_path.clone(), Some(r.client().home.clone()));
        Ok(Self { room: Room { disk, dir, naming, home }, into, most, is_told: false })
    }

    /// Waits for the next piece of the body, and writes meanwhile. The error is the status of a file that could not be
    /// written.
    async fn next(&mut self, r: &mut Request, terms: Terms) -> Result<Result<Option<Bytes>, BodyError>, u16> {
        let next = {
            let Request { body: RequestBody { source, buffer, .. }, costs, .. } = &mut *r;
            let mut next = pin!(source.next(PULL_SIZE, terms));
            poll_fn(|cx| match buffer.poll_write(self.most, &mut costs.account, &self.room, cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => next.as_mut().poll(cx).map(Ok),
            })
            .await
        };
        self.tell(r);
        next.map_err(|error| not_stored(r, &error))
    }

    /// Begins to write what is in memory, once what was in memory before it is written.
    async fn make_room(&mut self, r: &mut Request) -> Result<(), u16> {
        let Request { body: RequestBody { buffer, .. }, costs, .. } = &mut *r;
        let begun = poll_fn(|cx| match buffer.poll_write(self.most, &mut costs.account, &self.room, cx) {
            Poll::Pending if buffer.in_memory() == 0 => Poll::Ready(Ok(())),
            polled => polled,
        })
        .await;
        self.tell(r);
        begun.map_err(|error| not_stored(r, &error))
    }

    /// Waits until what belongs into the file is there. A file that others can open has all of it.
    async fn end(mut self, r: &mut Request) -> Result<(), u16> {
        let most = if self.room.naming == Naming::Named { 0 } else { self.most };
        let Request { body: RequestBody { buffer, .. }, costs, .. } = &mut *r;
        let ended = poll_fn(|cx| buffer.poll_write(most, &mut costs.account, &self.room, cx)).await;
        self.tell(r);
        ended.map_err(|error| not_stored(r, &error))
    }

    /// Makes a file of nothing.
    async fn empty(mut self, r: &mut Request) -> Result<(), u16> {
        let Request { body: RequestBody { buffer, .. }, costs, .. } = &mut *r;
        let made = buffer.spill_named(&mut costs.account, &self.room).await;
        self.tell(r);
        made.map_err(|error| not_stored(r, &error))
    }

    /// Says once that there is a file.
    fn tell(&mut self, r: &mut Request) {
        if self.is_told || !r.body.buffer.has_file() {
            return;
        }
        self.is_told = true;
        let in_file_only = r.plan().core.client_body.in_file_only;
        if self.into == Into::Configured && in_file_only == InFileOnly::On {
            r.body.give_file_away();
        }
        let what = "a client request body is buffered to a temporary file";
        let level = if in_file_only == InFileOnly::Off { Level::Warn } else { Level::Notice };
        match r.body.file_name() {
            // Where the body goes is no surprise to whoever asks for a file.
            Some(_) if self.into == Into::NamedFile => {}
            Some(name) => r.log(level, format_args!("{what} {}", Text(name))),
            None => r.log(level, format_args!("{what}")),
        }
    }
}

/// The disk of the location, which the body is written to.
fn disk(r: &mut Request) -> Result<Disk, u16> {
    match r.disk().cloned() {
        Some(disk) => Ok(disk),
        None => Err(not_stored(r, &tw_disk::Op::Create.failed(tw_disk::Errno::INVAL))),
    }
}

/// The status of a body that could not be stored.
fn not_stored(r: &mut Request, error: &DiskError) -> u16 {
    r.log(Level::Crit, format_args!("{error} while writing the request body"));
    r.body.buffer.clear();
    r.state.after = After::Close;
    if !error.is_passing() {
        return 500;
    }
    r.out.fields.set(tw_http::Known::RetryAfter, "1");
    503
}

/// The status of a request whose body ended early, which is logged; what becomes of its connection is settled.
pub fn failed(r: &mut Request, error: BodyError) -> u16 {
    match error {
        BodyError::Client(InputError::TooLarge { received, coming }) => {
            r.log(
                Level::Error,
                format_args!("client intended to send too large chunked body: {received}+{coming} bytes"),
            );
            r.body.standing = Standing::Refused;
            413
        }
        BodyError::Client(InputError::Malformed(error)) => {
            r.log(Level::Info, format_args!("client sent {error}"));
            malformed(r)
        }
        BodyError::Client(InputError::TooShort { received, length }) => {
            r.log(
                Level::Info,
                format_args!(
                    "client prematurely closed stream: only {received} out of {length} bytes of request body received"
                ),
            );
            malformed(r)
        }
        BodyError::Client(InputError::TooLong) => {
            r.log(Level::Info, format_args!("client intended to send body data larger than declared"));
            malformed(r)
        }
        BodyError::Client(InputError::Trailers(failure)) => {
            r.log(Level::Info, format_args!("client {failure} in trailers"));
            malformed(r)
        }
        BodyError::Client(InputError::Closed) => {
            r.log(Level::Info, format_args!("client prematurely closed connection"));
            r.state.after = After::Abort;
            400
        }
        BodyError::Client(InputError::Timeout) => {
            r.log(
                Level::Info,
                format_args!(
                    "client timed out (110: Connection timed out) while reading client request body"
                ),
            );
            r.state.after = After::Close;
            408
        }
        BodyError::Client(InputError::Failed) => {
            r.state.after = After::Abort;
            400
        }
        BodyError::Disk(error) => {
            r.log(Level::Crit, format_args!("{error} while reading the request body"));
            500
        }
    }
}

/// The status of a request whose body is none.
fn malformed(r: &mut Request) -> u16 {
    r.state.after = After::Close;
    r.body.buffer.clear();
    400
}

/// Ignores what has come of a body that its handler did not want. The error is the status of one that is malformed: the
/// connection is closed, and the request refused unless it is already.
pub(crate) fn discard(r: &mut Request) -> Result<(), u16> {
    let Source::H1(input) = &mut r.body.source else { return Ok(()) };
    match input.skip() {
        Ok(()) => Ok(()),
        Err(error) => Err(failed(r, BodyError::Client(error))),
    }
}

/// Reads and ignores what is left of the body once the response is sent.
pub(crate) async fn drain(r: &mut Request) -> Drained {
    let lingering = r.plan().core.lingering;
    match &mut r.body.source {
        source if source.is_broken() => Drained::No,
        source if !source.is_pending() => Drained::Yes,
        Source::H1(input) => Box::pin(input.drain(lingering.time, lingering.timeout)).await,
        Source::None | Source::H2(_) | Source::Stored(_) | Source::Taken => Drained::No,
    }
}

impl Request {
    /// What its location grants the client for its body.
    pub fn body_terms(&self) -> Terms {
        let settings = &self.plan().core.client_body;
        Terms { max_size: settings.max_size, timeout: settings.timeout }
    }
}
