//! The body of a request: read into memory or a temporary file, or read and thrown away.
//!
//! ```text
//! Unread ─ read ──→ Reading ─→ Done      (memory up to client_body_buffer_size, then a file through the disk door)
//!    └──── drain ─→ Reading ─→ Done      (after the response, so that the connection can be used again)
//! ```

use std::ffi::{CStr, CString};
use std::io;

use tw_disk::{Class, Disk, DiskError, File, Temp};
use tw_http::chunked::{Chunk, ChunkedDecoder, OVERHEAD_MAX, Trailers};
use tw_http::{Framing, RequestHead};
use tw_log::Level;

use super::conn::WaitError;
use super::request::{After, Request};
use crate::core::location::InFileOnly;

/// Bytes of a body copied at once from one file to another.
const COPY_SIZE: usize = 64 << 10;

/// Bytes asked of the socket at once.
const READ_SIZE: usize = 16 << 10;

/// The body of a request.
#[derive(Default)]
pub struct RequestBody {
    stage: Stage,
    /// Bytes of the body that arrived.
    received: u64,
    /// The same with the framing of a chunked body.
    wire: u64,
    memory: Vec<u8>,
    file: Option<TempFile>,
    hundred: Hundred,
}

#[derive(Default)]
enum Stage {
    /// There is none, or all of it was read.
    #[default]
    Done,
    /// So many bytes are still to come.
    Length(u64),
    /// The decoder will tell.
    Chunked(Box<ChunkedDecoder>),
}

/// Whether the client was told to send the body.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Hundred {
    /// Nobody has asked for the body.
    #[default]
    NotYet,
    /// `100 Continue` was sent if the client waited for it.
    Settled,
    /// The body is too large: whatever comes of it is thrown away.
    Refused,
}

struct TempFile {
    file: File,
    path: Option<CString>,
    size: u64,
    disk: Disk,
    keep: InFileOnly,
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
    /// Something may still come: the connection cannot be used again.
    No,
}

/// What reading brought.
enum Piece {
    /// So many bytes of the body are at the front of the buffer; others in front of them were framing.
    Data(std::ops::Range<usize>),
    /// The buffer is used up.
    NeedMore,
    /// The body is complete.
    End,
}

impl RequestBody {
    /// Starts with what the head says.
    pub(crate) fn begin(&mut self, framing: Framing) {
        self.stage = match framing {
            Framing::None | Framing::Length(0) => Stage::Done,
            Framing::Length(n) => Stage::Length(n),
            Framing::Chunked => Stage::Chunked(Box::new(ChunkedDecoder::new(Trailers::Skip, OVERHEAD_MAX))),
        };
    }

    /// Whether something of it has not been read.
    pub fn is_pending(&self) -> bool {
        !matches!(self.stage, Stage::Done)
    }

    /// Whether the client was not told to send it and perhaps does not: nobody can know where its next request begins.
    pub(crate) fn may_not_come(&self, head: &RequestHead) -> bool {
        self.is_pending()
            && self.received == 0
            && self.hundred != Hundred::Settled
            && head.expect_continue()
            && head.rest().is_empty()
    }

    /// Bytes that arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes that arrived, with the framing of a chunked body.
    pub fn wire(&self) -> u64 {
        self.wire
    }

    /// The body, if all of it is in memory.
    pub fn memory(&self) -> Option<&[u8]> {
        (self.file.is_none() && !self.is_pending() && !self.memory.is_empty()).then_some(&self.memory)
    }

    /// The name of its temporary file.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.file.as_ref()?.path.as_ref().map(|path| path.to_bytes())
    }

    /// The file of a body that [`read_to_file`] has read, and its name.
    pub fn named_file(&self) -> Option<(&File, &CStr)> {
        let temp = self.file.as_ref()?;
        Some((&temp.file, temp.path.as_deref()?))
    }

    /// Leaves the file of the body where it is when the request ends: it has another name now, or none.
    pub fn give_file_away(&mut self) {
        if let Some(temp) = &mut self.file {
            temp.keep = InFileOnly::On;
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        if self.keep == InFileOnly::On {
            return;
        }
        let disk = self.disk.clone();
        tw_rt::spawn_local(tw_rt::Subject { kind: "body file", id: 0 }, async move {
            let mut by = tw_disk::Account::new(Class::Evict, tw_disk::Source::NONE);
            // A file that is gone already is what is wanted.
            let _ = disk.unlink(&mut by, &path).await;
        });
    }
}

/// The status of a request whose body is, or is announced to be, too large for its location.
pub(crate) fn refuse_or_none(r: &mut Request) -> Option<u16> {
    let max = r.plan().core.client_body.max_size;
    let length = match r.body.stage {
        Stage::Length(left) => r.body.received + left,
        Stage::Done | Stage::Chunked(_) => r.body.received,
    };
    if max == 0 || length <= max || r.body.hundred == Hundred::Refused {
        return None;
    }
    r.log(Level::Error, format_args!("client intended to send too large body: {length} bytes"));
    r.body.hundred = Hundred::Refused;
    Some(413)
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
    let stored = r.body.memory.len() as u64 + r.body.file.as_ref().map_or(0, |temp| temp.size);
    if r.body.hundred == Hundred::Refused || r.body.received != stored {
        r.log(Level::Error, format_args!("request body is unavailable"));
        return Err(500);
    }
    let saved = match r.body.file.take_if(|temp| temp.path.is_none()) {
        None => save(r, Into::NamedFile).await,
        Some(nameless) => {
            let copied = name(r, &nameless).await;
            saved(r, copied)
        }
    };
    if let Some(temp) = &mut r.body.file {
        temp.keep = InFileOnly::Clean;
    }
    saved
}

async fn read_into(r: &mut Request, into: Into) -> Result<(), u16> {
    if let Some(status) = refuse_or_none(r) {
        return Err(status);
    }
    if r.body.hundred == Hundred::Refused {
        return Ok(());
    }
    loop {
        let (buffer_size, max, only) = {
            let body = &r.plan().core.client_body;
            (body.buffer_size, body.max_size, body.in_file_only)
        };
        match step(r)? {
            Piece::Data(range) => {
                let (len, end) = (range.len(), range.end);
                let fits = refuse_chunk(r, len as u64, max);
                if fits.is_ok() {
                    let Request { head, body, .. } = &mut *r;
                    body.memory.extend_from_slice(head.rest().get(range).unwrap_or_default());
                }
                // Also of a body that is refused: the rest of it is read behind what was looked at.
                consume(r, end);
                r.body.received += len as u64;
                fits?;
                let at_once = into == Into::Configured && only != InFileOnly::Off;
                if at_once || r.body.memory.len() > buffer_size {
                    save(r, into).await?;
                }
            }
            Piece::NeedMore => {
                refuse_chunk(r, 0, max)?;
                fill(r).await?;
                // A client that sends faster than we read does not keep the loop.
                tw_rt::yield_now().await;
            }
            Piece::End => return Ok(()),
        }
    }
}

/// Refuses a chunked body once it is known to be larger than `max`: of the chunk that has begun `here` bytes have come that
/// were not taken yet, and its size line told of the others.
fn refuse_chunk(r: &mut Request, here: u64, max: u64) -> Result<(), u16> {
    let Stage::Chunked(decoder) = &r.body.stage else { return Ok(()) };
    let coming = here.saturating_add(decoder.chunk_left());
    if max == 0 || r.body.received.saturating_add(coming) <= max {
        return Ok(());
    }
    let received = r.body.received;
    r.log(
        Level::Error,
        format_args!("client intended to send too large chunked body: {received}+{coming} bytes"),
    );
    r.body.hundred = Hundred::Refused;
    Err(413)
}

/// Ignores what has come of a body that its handler did not want. The error is the status of one that is malformed: the
/// connection is closed, and the request refused unless it is already.
pub(crate) fn discard(r: &mut Request) -> Result<(), u16> {
    while r.body.is_pending() {
        match step(r)? {
            Piece::Data(range) => {
                r.body.received += range.len() as u64;
                consume(r, range.end);
            }
            Piece::NeedMore | Piece::End => break,
        }
    }
    Ok(())
}

/// Reads and ignores what is left of the body once the response is sent.
pub(crate) async fn drain(r: &mut Request) -> Drained {
    if !r.body.is_pending() {
        return Drained::Yes;
    }
    Box::pin(drain_rest(r)).await
}

async fn drain_rest(r: &mut Request) -> Drained {
    let lingering = r.plan().core.lingering;
    let until = tw_rt::clock::now() + lingering.time;
    loop {
        match step(r) {
            Ok(Piece::Data(range)) => {
                r.body.received += range.len() as u64;
                consume(r, range.end);
            }
            Ok(Piece::End) => return Drained::Yes,
            Ok(Piece::NeedMore) => {
                let conn = r.conn().clone();
                let left = until.saturating_duration_since(tw_rt::clock::now()).min(lingering.timeout);
                if left.is_zero() {
                    return Drained::No;
                }
                match conn.stream.try_read(r.head.spare(READ_SIZE)) {
                    Ok(0) => return Drained::No,
                    Ok(_) => tw_rt::yield_now().await,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        if conn.readable(left).await.is_err() {
                            return Drained::No;
                        }
                    }
                    Err(_) => return Drained::No,
                }
            }
            Err(_) => return Drained::No,
        }
    }
}

/// Takes `count` bytes out of the buffer.
fn consume(r: &mut Request, count: usize) {
    r.head.consume(count);
    r.body.wire += count as u64;
}

/// Looks at what is in the buffer.
fn step(r: &mut Request) -> Result<Piece, u16> {
    let rest = r.head.rest();
    let piece = match &mut r.body.stage {
        Stage::Done => return Ok(Piece::End),
        Stage::Length(left) => {
            let take = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            if take == 0 {
                return Ok(Piece::NeedMore);
            }
            *left -= take as u64;
            if *left == 0 {
                r.body.stage = Stage::Done;
            }
            return Ok(Piece::Data(0..take));
        }
        Stage::Chunked(decoder) => decoder.decode(rest),
    };
    match piece {
        Ok((_, Chunk::Data(range))) => Ok(Piece::Data(range)),
        Ok((used, Chunk::NeedMore)) => {
            consume(r, used);
            Ok(Piece::NeedMore)
        }
        Ok((used, _)) => {
            consume(r, used);
            r.body.stage = Stage::Done;
            Ok(Piece::End)
        }
        Err(error) => {
            r.log(Level::Info, format_args!("client sent {error}"));
            r.course.after = After::Close;
            // Nobody can say where it ends.
            r.body.stage = Stage::Done;
            r.body.memory = Vec::new();
            Err(400)
        }
    }
}

/// Reads more from the socket.
async fn fill(r: &mut Request) -> Result<(), u16> {
    let conn = r.conn().clone();
    if r.body.hundred == Hundred::NotYet {
        r.body.hundred = Hundred::Settled;
        if r.head.expect_continue() && r.head.rest().is_empty() {
            // RFC 9110 10.1.1. A client that gets none of it sends the body all the same; half a line would be part of
            // the response.
            let sent = conn.stream.try_write(tw_http::response::CONTINUE).unwrap_or(0);
            if sent > 0 && sent < tw_http::response::CONTINUE.len() {
                r.course.after = After::Abort;
                return Err(400);
            }
        }
    }
    loop {
        let failed = match conn.stream.try_read(r.head.spare(READ_SIZE)) {
            Ok(0) => {
                r.log(Level::Info, format_args!("client prematurely closed connection"));
                400
            }
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                match conn.readable(r.plan().core.client_body.timeout).await {
                    Ok(()) => continue,
                    Err(WaitError::Timeout) => {
                        r.log(
                            Level::Info,
                            format_args!("client timed out (110: Connection timed out) while reading client request body"),
                        );
                        408
                    }
                    Err(WaitError::Io(_)) => 400,
                }
            }
            Err(_) => 400,
        };
        r.course.after = if failed == 408 { After::Close } else { After::Abort };
        return Err(failed);
    }
}

/// Moves what is in memory to the end of the temporary file, making the file first if there is none.
async fn save(r: &mut Request, into: Into) -> Result<(), u16> {
    let data = std::mem::take(&mut r.body.memory);
    let written = write(r, data, into).await;
    saved(r, written)
}

/// The status of a body that could not be stored.
fn saved(r: &mut Request, result: Result<(), DiskError>) -> Result<(), u16> {
    result.map_err(|error| {
        r.log(Level::Crit, format_args!("{error} while writing the request body"));
        r.course.after = After::Close;
        match error {
            DiskError::QueueFull { .. } => 503,
            _ => 500,
        }
    })
}

/// Copies a body from a file without a name to one that has one.
async fn name(r: &mut Request, from: &TempFile) -> Result<(), DiskError> {
    let mut at = 0;
    loop {
        let data = from.disk.read(&mut r.account, &from.file, at, vec![0; COPY_SIZE]).await?;
        let len = data.len() as u64;
        write(r, data, Into::NamedFile).await?;
        if len == 0 {
            let rest = std::mem::take(&mut r.body.memory);
            return write(r, rest, Into::NamedFile).await;
        }
        at += len;
    }
}

async fn write(r: &mut Request, data: Vec<u8>, into: Into) -> Result<(), DiskError> {
    if r.body.file.is_none() {
        let Some(disk) = r.disk().cloned() else {
            return Err(tw_disk::Op::Create.failed(tw_disk::Errno::INVAL));
        };
        let (temp_path, keep) = {
            let body = &r.plan().core.client_body;
            (body.temp_path.clone(), body.in_file_only)
        };
        r.account.class = Class::Fill;
        let keep = if into == Into::NamedFile { InFileOnly::Clean } else { keep };
        let how = Temp { levels: temp_path.levels, is_named: keep != InFileOnly::Off, ..Temp::NAMED };
        let (file, path) = disk.create_temp(&mut r.account, &temp_path.path, &how).await?;
        let what = "a client request body is buffered to a temporary file";
        match &path {
            // Where the body goes is no surprise to whoever asks for a file.
            Some(_) if into == Into::NamedFile => {}
            Some(path) => r.log(Level::Notice, format_args!("{what} {}", tw_log::Text(path.to_bytes()))),
            None => r.log(Level::Warn, format_args!("{what}")),
        }
        r.body.file = Some(TempFile { file, path, size: 0, disk, keep });
    }
    let Some(temp) = &r.body.file else { return Ok(()) };
    let (file, disk, at, len) = (temp.file.clone(), temp.disk.clone(), temp.size, data.len());
    if len > 0 {
        disk.write(&mut r.account, &file, at, data).await?;
    }
    r.account.class = Class::Hit;
    if let Some(temp) = &mut r.body.file {
        temp.size += len as u64;
    }
    Ok(())
}
