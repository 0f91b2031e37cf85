//! Reading of a request body into memory or a temporary file, and discarding one that is not needed.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use tw_disk::{Disk, DiskError};
use tw_http::Framing;
use tw_log::{Level, Text};

use super::{BodyError, BodyLimits, BodyState, Drained, InputError, RequestBody, Source};
use crate::body_buffer::{Naming, SpillTarget};
use crate::config::location::InFileOnly;
use crate::request::{After, Request};
use crate::vars::{self, EvalStatus};

/// Size of one read of a body.
const PULL_SIZE: usize = 64 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a request body on their way to its temporary file, and behind them in memory as many, or
    /// `client_body_buffer_size` if that is more.
    ///
    /// Bytes written to a temporary file at once, where the client sends as fast: a piece for each job. While they are written,
    /// as many may come. Two pieces took a fourteenth less processor time, and a third more memory.
    const BATCH_SIZE: usize = 64 << 10, bytes, "the client is not read from";
}

/// Destination of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    /// Memory or file, as the directives of the location say.
    Configured,
    /// Named file, however short the body is.
    NamedFile,
}

/// Returns the error status if the announced body is too large for the location.
pub fn check_announced_size(r: &mut Request) -> Option<u16> {
    let max = r.plan().core.client_body.max_size;
    let length = match &r.body.source {
        Source::Client(body) => body.input().announced(),
        Source::None | Source::Stored(_) | Source::Taken => 0,
    };
    if max == 0 || length <= max || r.body.state == BodyState::Refused {
        return None;
    }
    r.log(Level::Error, format_args!("client intended to send too large body: {length} bytes"));
    r.body.state = BodyState::Refused;
    Some(413)
}

/// Reads the body before the phases if `client_body_early_read` asks for it. The error is the status to answer with: 500 if a
/// condition cannot be evaluated.
pub async fn read_early(r: &mut Request) -> Result<(), u16> {
    let conditions = &r.generation().server(r.route.server).settings.client_body_early_read;
    if conditions.is_empty() {
        return Ok(());
    }
    let is_wanted = conditions.iter().any(|condition| condition.is_set(r));
    if r.bindings.take_eval_status() == EvalStatus::Failed {
        return Err(500);
    }
    if is_wanted { Box::pin(read(r)).await } else { Ok(()) }
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
    let is_whole = match r.body.state {
        BodyState::Wanted => r.body.received() == r.body.buffer.len(),
        BodyState::Copied => true,
        BodyState::Refused | BodyState::Absent | BodyState::Borrowed => false,
    };
    if !is_whole {
        r.log(Level::Error, format_args!("request body is unavailable"));
        return Err(500);
    }
    let disk = disk(r)?;
    let dir = r.plan().core.client_body.temp_path.clone();
    let event_loop = r.client().event_loop.core().clone();
    let room = SpillTarget { disk, dir, naming: Naming::Named, event_loop: Some(event_loop) };
    let Request { body, costs, .. } = &mut *r;
    body.buffer.claim_file();
    let spilt = body.buffer.spill_named(&mut costs.account, &room).await;
    spilt.map_err(|error| not_stored(r, &error))
}

async fn read_into(r: &mut Request, into: Into) -> Result<(), u16> {
    if let Some(status) = check_announced_size(r) {
        return Err(status);
    }
    if r.body.state == BodyState::Refused {
        return Ok(());
    }
    let terms = r.body_limits();
    let settings = r.plan().core.client_body.clone();
    let event_loop = r.client().event_loop.clone();
    let at_once = into == Into::Configured && settings.in_file_only != InFileOnly::Off;
    let most = if at_once { 0 } else { settings.buffer_size };
    let mut storing = None;
    loop {
        let next = match r.body.source.at_hand(PULL_SIZE, terms) {
            Some(next) => {
                let size = next.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
                event_loop.budget.spend(size).await;
                next
            }
            None => {
                // While the client is waited for, received bytes go to the file.
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
    let has_body = r.body.state == BodyState::Wanted && r.head.framing() != Framing::None;
    match storing {
        Some(storing) => storing.end(r).await,
        // An empty body is a body.
        None if at_once && has_body && !r.body.buffer.has_file() => {
            Storing::begin(r, into, most)?.empty(r).await
        }
        None => Ok(()),
    }
}

/// Writing of a body to a temporary file while it is received.
struct Storing {
    room: SpillTarget,
    into: Into,
    /// Bytes that may stay in memory.
    most: usize,
    /// True once the error log has a line about the file.
    is_logged: bool,
}

impl Storing {
    fn begin(r: &mut Request, into: Into, most: usize) -> Result<Self, u16> {
        let disk = disk(r)?;
        let settings = &r.plan().core.client_body;
        let is_named = into == Into::NamedFile
            || settings.in_file_only != InFileOnly::Off
            || r.plan().prepared.has(vars::NAMED_BODY_FILE);
        let naming = if is_named { Naming::Named } else { Naming::Nameless };
        let dir = settings.temp_path.clone();
        let event_loop = Some(r.client().event_loop.core().clone());
        Ok(Self { room: SpillTarget { disk, dir, naming, event_loop }, into, most, is_logged: false })
    }

    /// Waits for the next piece of the body, and writes meanwhile. The error is the status of a file that could not be
    /// written.
    async fn next(
        &mut self,
        r: &mut Request,
        terms: BodyLimits,
    ) -> Result<Result<Option<Bytes>, BodyError>, u16> {
        let next = {
            let Request { body: RequestBody { source, buffer, .. }, costs, .. } = &mut *r;
            let mut next = pin!(source.next(PULL_SIZE, terms));
            poll_fn(|cx| match buffer.poll_write(self.most, &mut costs.account, &self.room, cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => next.as_mut().poll(cx).map(Ok),
            })
            .await
        };
        self.log_file(r);
        next.map_err(|error| not_stored(r, &error))
    }

    /// Starts a write of the bytes in memory after the previous write has ended.
    async fn make_room(&mut self, r: &mut Request) -> Result<(), u16> {
        let Request { body: RequestBody { buffer, .. }, costs, .. } = &mut *r;
        let begun = poll_fn(|cx| match buffer.poll_write(self.most, &mut costs.account, &self.room, cx) {
            Poll::Pending if buffer.in_memory() == 0 => Poll::Ready(Ok(())),
            polled => polled,
        })
        .await;
        self.log_file(r);
        begun.map_err(|error| not_stored(r, &error))
    }

    /// Waits until the file is complete: a named one has the whole body.
    async fn end(mut self, r: &mut Request) -> Result<(), u16> {
        let most = if self.room.naming == Naming::Named { 0 } else { self.most };
        let Request { body: RequestBody { buffer, .. }, costs, .. } = &mut *r;
        let ended = poll_fn(|cx| buffer.poll_write(most, &mut costs.account, &self.room, cx)).await;
        self.log_file(r);
        ended.map_err(|error| not_stored(r, &error))
    }

    /// Makes an empty file.
    async fn empty(mut self, r: &mut Request) -> Result<(), u16> {
        let Request { body: RequestBody { buffer, .. }, costs, .. } = &mut *r;
        let made = buffer.spill_named(&mut costs.account, &self.room).await;
        self.log_file(r);
        made.map_err(|error| not_stored(r, &error))
    }

    /// Logs once that there is a file.
    fn log_file(&mut self, r: &mut Request) {
        if self.is_logged || !r.body.buffer.has_file() {
            return;
        }
        self.is_logged = true;
        let in_file_only = r.plan().core.client_body.in_file_only;
        if self.into == Into::Configured && in_file_only == InFileOnly::On {
            r.body.give_file_away();
        }
        let what = "a client request body is buffered to a temporary file";
        let level = if in_file_only == InFileOnly::Off { Level::Warn } else { Level::Notice };
        match r.body.file_name() {
            // Expected by a caller that asks for a file.
            Some(_) if self.into == Into::NamedFile => {}
            Some(name) => r.log(level, format_args!("{what} {}", Text(name))),
            None => r.log(level, format_args!("{what}")),
        }
    }
}

/// Disk of the location for temporary files.
fn disk(r: &mut Request) -> Result<Disk, u16> {
    match r.disk().cloned() {
        Some(disk) => Ok(disk),
        None => Err(not_stored(r, &tw_disk::Op::Create.failed(tw_disk::Errno::INVAL))),
    }
}

/// Logs that a body could not be stored, and returns the error status.
fn not_stored(r: &mut Request, error: &DiskError) -> u16 {
    r.log(Level::Crit, format_args!("{error} while writing the request body"));
    r.body.buffer.clear();
    r.state.after = After::Close;
    if !error.is_passing() {
        return 500;
    }
    r.response.fields.set(tw_http::HeaderName::RetryAfter, "1");
    503
}

/// Logs the error of a body, decides about the connection, and returns the error status.
pub fn failed(r: &mut Request, error: BodyError) -> u16 {
    match error {
        BodyError::Client(InputError::TooLarge { received, coming }) => {
            r.log(
                Level::Error,
                format_args!("client intended to send too large chunked body: {received}+{coming} bytes"),
            );
            r.body.state = BodyState::Refused;
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
        BodyError::Client(InputError::TooSlow) => {
            r.log(
                Level::Info,
                format_args!(
                    "client is slower than \"client_body_min_rate\" while reading client request body"
                ),
            );
            r.client().event_loop.tally.slow_bodies.add(1);
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

/// Error status of a malformed body.
fn malformed(r: &mut Request) -> u16 {
    r.state.after = After::Close;
    r.body.buffer.clear();
    400
}

/// Discards the received part of a body that its handler did not read. The error is the status for a malformed body, after which
/// the connection is closed.
pub fn discard(r: &mut Request) -> Result<(), u16> {
    let Source::Client(body) = &mut r.body.source else { return Ok(()) };
    match body.discard() {
        Ok(()) => Ok(()),
        Err(error) => Err(failed(r, BodyError::Client(error))),
    }
}

/// Discards the rest of the body after the response.
pub async fn drain(r: &mut Request) -> Drained {
    let lingering = r.plan().core.lingering;
    match &mut r.body.source {
        source if source.is_broken() => Drained::No,
        source if !source.is_pending() => Drained::Yes,
        Source::Client(body) => Box::pin(body.drain(lingering.time, lingering.timeout)).await,
        Source::None | Source::Stored(_) | Source::Taken => Drained::No,
    }
}

impl Request {
    /// Limits of the location for the body.
    pub fn body_limits(&self) -> BodyLimits {
        let settings = &self.plan().core.client_body;
        BodyLimits { max_size: settings.max_size, timeout: settings.timeout, min_rate: settings.min_rate }
    }
}
