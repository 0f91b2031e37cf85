//! A file to its client: by the kernel if it is locked in memory, else from the page cache through the loop's buffer, and by
//! jobs of a pool what is not there.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::{BodySize, SCRATCH_SIZE};
use tw_disk::{Disk, DiskError, Errno, Now, Sending, SentEnd};

use super::Conn;
use super::send::{accept, wait_writable, write_all, write_now, write_parts_now};
use crate::http::body::FileSpan;
use crate::http::file_error::FileError;
use crate::http::files;
use crate::http::request::Request;
use crate::http::send_rate::SendRate;

/// Smallest piece that a pool thread sends itself (`sendfile on`); less is copied by the loop in no time.
const SENDFILE_MIN: usize = 64 << 10;
/// Least that is read of a file for a socket that takes little at a time.
const WINDOW_MIN: usize = 32 << 10;

/// Most that the kernel is asked at once to send of a file that is locked in memory: it takes as long as to copy a buffer.
const KERNEL_SIZE: usize = KERNEL_WORTH * SCRATCH_SIZE;
/// So many bytes are sent by the kernel in the time that one takes to be copied (4 MiB: 271 against 1,292 µs).
const KERNEL_WORTH: usize = 4;

/// Sends head and beginning of a span of a file, as much as the socket takes at once, and says how many bytes that was.
pub(super) fn begin_file(
    r: &Request,
    conn: &Conn,
    disk: &Disk,
    head: &[u8],
    span: &FileSpan,
) -> Result<usize, FileError> {
    let len = usize::try_from(span.len).unwrap_or(usize::MAX);
    span.file.count_use(disk, r);
    let budget = &conn.client.home.budget;
    if BodySize::of(0, span.len) == BodySize::Large && !budget.is_free() {
        // It has its turn behind those who wait.
        return Ok(0);
    }
    if let Some(sending) = files::sending(r, disk, &span.file) {
        let written = accept(conn.transport.try_write_before(head))?;
        if written < head.len() {
            return Ok(written);
        }
        let want = len.min(kernel_turn_size(r));
        // Of none, the rest finds out why.
        let sent =
            send_by_kernel(conn, disk, &sending, span.offset, want).transpose()?.flatten().unwrap_or(0);
        budget.spent(sent.div_ceil(KERNEL_WORTH));
        return Ok(written + sent);
    }
    if let Some(content) = span.content() {
        return accept(write_parts_now(conn, &[IoSlice::new(head), IoSlice::new(&content)]));
    }
    let mut scratch = conn.client.home.buffers.scratch.borrow_mut();
    let want = scratch.len().min(len);
    match read_now(disk, span, &mut scratch[..want]) {
        Now::Ready(Ok(n)) if n > 0 => {
            budget.spent(n);
            accept(write_parts_now(conn, &[IoSlice::new(head), IoSlice::new(&scratch[..n])]))
        }
        // The rest finds out what is wrong, or waits for the disk.
        _ => Ok(0),
    }
}

/// Has the kernel send a piece of a file that is locked in memory. `None` if it cannot for this connection; `Ok(None)` if the
/// socket takes nothing.
fn send_by_kernel(
    conn: &Conn,
    disk: &Disk,
    sending: &Sending<'_>,
    offset: u64,
    want: usize,
) -> Option<Result<Option<usize>, FileError>> {
    let sent = tw_rt::watch::operation("sending a file", || {
        conn.transport.try_send_by(|socket| Ok(disk.send_now(sending, offset, want, socket)?))
    });
    Some(match sent? {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // What else goes wrong is the socket's.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::IO | Errno::INVAL)) => {
            Err(FileError::Body(e))
        }
        Err(e) => Err(FileError::Gone(e)),
    })
}

/// Bytes of a file that one turn of the loop may have the kernel send to a connection.
fn kernel_turn_size(r: &Request) -> usize {
    turn_size(r.plan().core.files.sendfile_max_chunk, KERNEL_SIZE)
}

/// Reads from the beginning of a span what is in memory.
pub(super) fn read_now(disk: &Disk, span: &FileSpan, buffer: &mut [u8]) -> Now<usize> {
    tw_rt::watch::operation("reading a file", || disk.read_now(span.file.file(), span.offset, buffer))
}

/// Appends a span of a file if all of it is in memory; says whether it was.
pub(super) fn gather(disk: &Disk, span: &FileSpan, gathered: &mut Vec<u8>) -> bool {
    if let Some(content) = span.content() {
        gathered.extend_from_slice(&content);
        return true;
    }
    let start = gathered.len();
    gathered.resize(start + span.len as usize, 0);
    let is_whole = read_now(disk, span, &mut gathered[start..]) == Now::Ready(Ok(span.len as usize));
    if !is_whole {
        gathered.truncate(start);
    }
    is_whole
}

/// Sends a span of a file: by the kernel, else from the page cache through the loop's buffer, else by jobs.
pub(super) async fn send_file(
    r: &mut Request,
    conn: &Rc<Conn>,
    span: &mut FileSpan,
    timeout: Duration,
    mut pace: Option<&mut SendRate>,
) -> Result<(), FileError> {
    let files = r.plan().core.files.clone();
    let turn = turn_size(files.sendfile_max_chunk, SCRATCH_SIZE);
    let Some(disk) = r.disk().cloned() else { return Err(FileError::Body(io::ErrorKind::NotFound.into())) };
    if pace.is_some() {
        // Nothing has begun it.
        span.file.count_use(&disk, r);
    }
    let mut by = Sender::Pool;
    // Twice what the socket took last: little is copied in vain for a slow reader.
    let mut window = turn;
    // Whether this turn of the loop is still its own.
    let mut goes_on = false;
    let home = conn.client.home.clone();
    while span.len > 0 {
        let len = usize::try_from(span.len).unwrap_or(usize::MAX);
        let allowed = match pace.as_deref_mut() {
            Some(pace) => len.min(pace.allowance(r).await?),
            None => len,
        };
        if !std::mem::take(&mut goes_on) {
            home.budget.turn(BodySize::of(r.costs.sent.bytes, span.len)).await;
        }
        match send_locked(r, conn, &disk, span, allowed)? {
            Kernel::Sent => {
                if span.len > 0 {
                    home.budget.yield_to_others().await;
                }
                continue;
            }
            Kernel::SentPart => {
                goes_on = true;
                continue;
            }
            Kernel::SocketFull => {
                wait_writable(conn, timeout).await?;
                continue;
            }
            Kernel::Cannot => {}
        }
        let want = window.min(allowed);
        let moved = {
            let mut scratch = conn.client.home.buffers.scratch.borrow_mut();
            match read_now(&disk, span, &mut scratch[..want]) {
                Now::Ready(Ok(0)) => return Err(FileError::Body(io::ErrorKind::UnexpectedEof.into())),
                Now::Ready(Ok(n)) => {
                    home.budget.spent(n);
                    Moved::Written(n, write_now(conn, &scratch[..n]))
                }
                Now::Ready(Err(errno)) => return Err(FileError::Body(errno.into())),
                Now::Cold => Moved::Cold,
            }
        };
        match moved {
            Moved::Written(n, Ok(written)) => {
                r.count_sent(written);
                span.advance(written);
                window = (2 * written).clamp(WINDOW_MIN.min(turn), turn);
                if written < n {
                    wait_writable(conn, timeout).await?;
                } else if span.len > 0 {
                    // One connection never keeps the loop for longer than one buffer.
                    home.budget.yield_to_others().await;
                }
            }
            Moved::Written(_, Err(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                wait_writable(conn, timeout).await?
            }
            Moved::Written(_, Err(e)) => return Err(FileError::Gone(e)),
            Moved::Cold => {
                let size =
                    want.min(files.output_buffers.count.saturating_mul(files.output_buffers.size).max(1));
                r.costs.account.source = tw_disk::JobSource::new(conn.client.id);
                if files.sendfile
                    && by == Sender::Pool
                    && size >= SENDFILE_MIN
                    && pace.is_none()
                    && let Some(socket) = conn.fd()
                {
                    let sent = disk
                        .sendfile(&mut r.costs.account, span.file.file(), span.offset, size, socket)
                        .await;
                    let sent = sent.map_err(|e| body_failure(&e))?;
                    r.count_sent(sent.bytes);
                    span.advance(sent.bytes);
                    match sent.end {
                        SentEnd::Done => {}
                        SentEnd::FileEnd => return Err(FileError::Body(io::ErrorKind::UnexpectedEof.into())),
                        // The loop has not seen the socket fill up: it finds out by writing the next piece itself.
                        SentEnd::SocketFull => by = Sender::Loop,
                    }
                    continue;
                }
                by = Sender::Pool;
                let piece = cold(r, &disk, span, size).await?;
                span.advance(piece.len());
                write_all(r, conn, piece, timeout, pace.as_deref_mut()).await?;
            }
        }
    }
    Ok(())
}

/// What the kernel did with the next piece of a file.
enum Kernel {
    /// It sent all that it was asked for: others first.
    Sent,
    /// The socket took a part. It is likely to be full, which it says when it is offered more.
    SentPart,
    /// The socket takes nothing.
    SocketFull,
    /// The file is not locked in memory, or not any more.
    Cannot,
}

/// Has the kernel send the next piece of a span, of at most `allowed` bytes, if the file is locked in memory.
fn send_locked(
    r: &mut Request,
    conn: &Conn,
    disk: &Disk,
    span: &mut FileSpan,
    allowed: usize,
) -> Result<Kernel, FileError> {
    let file = span.file.clone();
    let Some(sending) = files::sending(r, disk, &file) else { return Ok(Kernel::Cannot) };
    let want = allowed.min(kernel_turn_size(r));
    let Some(sent) = send_by_kernel(conn, disk, &sending, span.offset, want) else {
        return Ok(Kernel::Cannot);
    };
    match sent? {
        Some(0) => {
            file.unlock();
            Err(FileError::Body(io::ErrorKind::UnexpectedEof.into()))
        }
        Some(n) => {
            conn.client.home.budget.spent(n.div_ceil(KERNEL_WORTH));
            r.count_sent(n);
            span.advance(n);
            Ok(if n < want { Kernel::SentPart } else { Kernel::Sent })
        }
        None => Ok(Kernel::SocketFull),
    }
}

/// Who may send the next piece that is not in memory, with `sendfile on`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Pool,
    Loop,
}

/// What one turn of sending a file did.
enum Moved {
    /// So many bytes were offered to the socket.
    Written(usize, io::Result<usize>),
    /// They are not in memory.
    Cold,
}

async fn cold(r: &mut Request, disk: &Disk, span: &FileSpan, size: usize) -> Result<Bytes, FileError> {
    let buf = disk.read_cold(&mut r.costs.account, span.file.file(), span.offset, vec![0; size]).await;
    let buf =
        buf.map_err(|e| FileError::Body(e.errno().map_or_else(|| io::Error::other(e), io::Error::from)))?;
    if buf.is_empty() {
        return Err(FileError::Body(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(buf.into())
}

fn body_failure(error: &DiskError) -> FileError {
    FileError::Body(error.errno().map_or_else(|| io::Error::other(error.to_string()), io::Error::from))
}

/// Bytes one turn of the loop may give to a connection, at most `max`.
fn turn_size(max_chunk: u64, max: usize) -> usize {
    match usize::try_from(max_chunk) {
        Ok(0) | Err(_) => max,
        Ok(n) => n.min(max),
    }
}
