//! Sending of files: by the kernel if locked in memory, else from the page cache through the loop's buffer, else by jobs of a pool.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::{BodySize, SCRATCH_SIZE};
use tw_disk::{Disk, DiskError, Errno, Now, Sending, SentEnd};

use super::Http1Connection;
use super::write::{accept, wait_writable, write_all, write_now, write_parts_now};
use crate::send_rate::SendRate;
use tw_request::body::FileSpan;
use tw_request::files;
use tw_request::request::Request;
use tw_request::send_error::SendError;

/// Smallest piece that a pool thread sends itself (`sendfile on`); the loop copies smaller ones.
const SENDFILE_MIN: usize = 64 << 10;
/// Least number of bytes read of a file for a socket that takes little at a time.
const WINDOW_MIN: usize = 32 << 10;

/// Bytes of a locked file that the kernel sends in one call, in the time in which one buffer is copied.
const KERNEL_SIZE: usize = KERNEL_WORTH * SCRATCH_SIZE;
/// Bytes sent by the kernel in the time in which one is copied (4 MiB: 271 against 1,292 µs).
const KERNEL_WORTH: usize = 4;

/// Sends the head and the begin of a span of a file as far as the socket takes them at once. Returns the number of bytes.
pub(super) fn begin_file(
    r: &Request,
    conn: &Http1Connection,
    disk: &Disk,
    head: &[u8],
    span: &FileSpan,
) -> Result<usize, SendError> {
    let len = usize::try_from(span.verified_len()).unwrap_or(usize::MAX);
    span.file.count_use(disk, r);
    if len == 0 {
        // The beginning of the file has to be compared with its checksums first.
        return Ok(0);
    }
    let budget = &conn.client.event_loop.budget;
    if BodySize::of(0, span.len) == BodySize::Large && !budget.is_free() {
        // Other large bodies wait for their turn before it.
        return Ok(0);
    }
    if let Some(sending) = files::sending(r, disk, &span.file) {
        let written_len = accept(conn.transport.try_write_before(head))?;
        if written_len < head.len() {
            return Ok(written_len);
        }
        let want = len.min(kernel_turn_size(r));
        // The next call finds out why none was sent.
        let sent =
            send_by_kernel(conn, disk, &sending, span.offset, want).transpose()?.flatten().unwrap_or(0);
        budget.spent(sent.div_ceil(KERNEL_WORTH));
        return Ok(written_len + sent);
    }
    if let Some(content) = span.content() {
        return accept(write_parts_now(conn, &[IoSlice::new(head), IoSlice::new(&content)]));
    }
    let mut scratch = conn.client.event_loop.buffers.scratch.borrow_mut();
    let want = scratch.len().min(len);
    match read_now(disk, span, &mut scratch[..want]) {
        Now::Ready(Ok(n)) if n > 0 => {
            budget.spent(n);
            accept(write_parts_now(conn, &[IoSlice::new(head), IoSlice::new(&scratch[..n])]))
        }
        // The next call reports the error, or waits for the disk.
        _ => Ok(0),
    }
}

/// Has the kernel send a piece of a file that is locked in memory. Returns `None` if the transport does not support it, `Ok(None)`
/// if the socket is full.
fn send_by_kernel(
    conn: &Http1Connection,
    disk: &Disk,
    sending: &Sending<'_>,
    offset: u64,
    want: usize,
) -> Option<Result<Option<usize>, SendError>> {
    let sent = tw_rt::watch::operation("sending a file", || {
        conn.transport.try_send_by(|socket| Ok(disk.send_now(sending, offset, want, socket)?))
    });
    Some(match sent? {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // All other errors are those of the socket.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::IO | Errno::INVAL)) => {
            Err(SendError::Body(e))
        }
        Err(e) => Err(SendError::Gone(e)),
    })
}

/// Bytes of a file that one turn of the loop may have the kernel send to a connection.
fn kernel_turn_size(r: &Request) -> usize {
    turn_size(r.plan().core.files.sendfile_max_chunk, KERNEL_SIZE)
}

/// Reads the begin of a span as far as it is in memory.
pub(super) fn read_now(disk: &Disk, span: &FileSpan, buffer: &mut [u8]) -> Now<usize> {
    tw_rt::watch::operation("reading a file", || disk.read_now(span.file.file(), span.offset, buffer))
}

/// Appends a span of a file if all of it is in memory, and returns true if so.
pub(super) fn gather(disk: &Disk, span: &FileSpan, gathered: &mut Vec<u8>) -> bool {
    if let Some(content) = span.content() {
        gathered.extend_from_slice(&content);
        return true;
    }
    if span.verified_len() < span.len {
        return false;
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
    conn: &Rc<Http1Connection>,
    span: &mut FileSpan,
    timeout: Duration,
    mut pace: Option<&mut SendRate>,
) -> Result<(), SendError> {
    let turn = turn_size(r.plan().core.files.sendfile_max_chunk, SCRATCH_SIZE);
    let Some(disk) = r.disk().cloned() else { return Err(SendError::Body(io::ErrorKind::NotFound.into())) };
    if pace.is_some() {
        // `begin_file` counts the use of a file, and is not called for a response with a limited rate.
        span.file.count_use(&disk, r);
    }
    let mut sender = ColdSender::Pool;
    // The window is twice what the socket took last, so that little is copied in vain for a slow reader.
    let mut window = turn;
    let mut keeps_turn = false;
    let event_loop = conn.client.event_loop.clone();
    while span.len > 0 {
        let len = usize::try_from(span.len).unwrap_or(usize::MAX);
        let allowed = match pace.as_deref_mut() {
            Some(pace) => pace.allowance(r, len).await?,
            None => len,
        };
        if !std::mem::take(&mut keeps_turn) {
            event_loop.budget.turn(BodySize::of(r.costs.sent.bytes, span.len)).await;
        }
        let want = window.min(allowed);
        let verified = usize::try_from(span.verified_len()).unwrap_or(usize::MAX);
        let progress = match verified {
            0 => Progress::NotInMemory,
            _ => match send_locked(r, conn, &disk, span, allowed.min(verified))? {
                Progress::NotInMemory => send_cached(r, conn, &disk, span, want.min(verified))?,
                sent => sent,
            },
        };
        match progress {
            Progress::Sent(_) if span.len == 0 => {}
            // A connection yields after each buffer, so that none keeps the loop for longer than that.
            Progress::Sent(copied) => {
                window = next_window(window, copied, turn);
                event_loop.budget.yield_to_others().await;
            }
            Progress::SentPart => keeps_turn = true,
            Progress::SocketFull(copied) => {
                window = next_window(window, copied, turn);
                wait_writable(r, conn, timeout).await?;
            }
            Progress::NotInMemory => {
                let pace = pace.as_deref_mut();
                sender = send_cold(r, conn, &disk, span, (want, sender), timeout, pace).await?;
            }
        }
    }
    Ok(())
}

/// Bytes to be read next for a socket that took `copied` of the last read; unchanged without one.
fn next_window(window: usize, copied: Option<usize>, turn: usize) -> usize {
    copied.map_or(window, |copied| (2 * copied).clamp(WINDOW_MIN.min(turn), turn))
}

/// Result of sending a piece of a file that is in memory.
enum Progress {
    /// The socket took all of the piece: other tasks have their turn. Bytes, if they were copied through the loop's buffer.
    Sent(Option<usize>),
    /// The socket took a part from the kernel. It is likely to be full, which the next call finds out.
    SentPart,
    /// The socket is full. Bytes that it took before, if they were copied through the loop's buffer.
    SocketFull(Option<usize>),
    /// The kernel or the loop cannot send the piece: it is not locked in memory, or not in memory at all.
    NotInMemory,
}

/// Has the kernel send the next piece of a span, of at most `allowed` bytes, if the file is locked in memory.
fn send_locked(
    r: &mut Request,
    conn: &Http1Connection,
    disk: &Disk,
    span: &mut FileSpan,
    allowed: usize,
) -> Result<Progress, SendError> {
    let file = span.file.clone();
    let Some(sending) = files::sending(r, disk, &file) else { return Ok(Progress::NotInMemory) };
    let want = allowed.min(kernel_turn_size(r));
    let Some(sent) = send_by_kernel(conn, disk, &sending, span.offset, want) else {
        return Ok(Progress::NotInMemory);
    };
    match sent? {
        Some(0) => {
            file.unlock();
            Err(SendError::Body(io::ErrorKind::UnexpectedEof.into()))
        }
        Some(n) => {
            conn.client.event_loop.budget.spent(n.div_ceil(KERNEL_WORTH));
            r.count_sent(n);
            span.advance(n);
            Ok(if n < want { Progress::SentPart } else { Progress::Sent(None) })
        }
        None => Ok(Progress::SocketFull(None)),
    }
}

/// Sends the next `want` bytes of a span from the page cache.
fn send_cached(
    r: &mut Request,
    conn: &Http1Connection,
    disk: &Disk,
    span: &mut FileSpan,
    want: usize,
) -> Result<Progress, SendError> {
    let event_loop = &conn.client.event_loop;
    let (read, result) = {
        let mut scratch = event_loop.buffers.scratch.borrow_mut();
        match read_now(disk, span, &mut scratch[..want]) {
            Now::Ready(Ok(0)) => return Err(SendError::Body(io::ErrorKind::UnexpectedEof.into())),
            Now::Ready(Ok(n)) => {
                event_loop.budget.spent(n);
                (n, write_now(conn, &scratch[..n]))
            }
            Now::Ready(Err(errno)) => return Err(SendError::Body(errno.into())),
            Now::Cold => return Ok(Progress::NotInMemory),
        }
    };
    match result {
        Ok(written_len) => {
            r.count_sent(written_len);
            span.advance(written_len);
            Ok(if written_len < read {
                Progress::SocketFull(Some(written_len))
            } else {
                Progress::Sent(Some(written_len))
            })
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Progress::SocketFull(None)),
        Err(e) => Err(SendError::Gone(e)),
    }
}

/// Sender of the next piece that is not in memory, with `sendfile on`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ColdSender {
    Pool,
    Loop,
}

/// Has a pool thread send or read the next `want` bytes of a span, which are not in memory. Returns the sender of the next ones.
async fn send_cold(
    r: &mut Request,
    conn: &Rc<Http1Connection>,
    disk: &Disk,
    span: &mut FileSpan,
    (want, sender): (usize, ColdSender),
    timeout: Duration,
    pace: Option<&mut SendRate>,
) -> Result<ColdSender, SendError> {
    let files = &r.plan().core.files;
    let size = want.min(files.output_buffers.count.saturating_mul(files.output_buffers.size).max(1));
    // Files with checksums are read, not sent by `sendfile`, because the checksums of bytes from the disk have to be
    // compared.
    let is_sent_by_pool = span.file.check().is_none()
        && files.sendfile
        && sender == ColdSender::Pool
        && size >= SENDFILE_MIN
        && pace.is_none();
    r.costs.account.source = tw_disk::JobSource::new(conn.client.id);
    if is_sent_by_pool && let Some(socket) = conn.fd() {
        let sent = disk.sendfile(&mut r.costs.account, span.file.file(), span.offset, size, socket).await;
        let sent = sent.map_err(|e| body_failure(&e))?;
        r.count_sent(sent.bytes);
        span.advance(sent.bytes);
        return match sent.end {
            SentEnd::Done => Ok(ColdSender::Pool),
            SentEnd::FileEnd => Err(SendError::Body(io::ErrorKind::UnexpectedEof.into())),
            // The loop has not seen the socket fill up: it finds out by writing the next piece itself.
            SentEnd::SocketFull => Ok(ColdSender::Loop),
        };
    }
    let piece = read_cold(r, span, size).await?;
    span.advance(piece.len());
    write_all(r, conn, piece, timeout, pace).await?;
    Ok(ColdSender::Pool)
}

async fn read_cold(r: &mut Request, span: &FileSpan, size: usize) -> Result<Bytes, SendError> {
    let piece = span.file.read_cold(span.offset, size, r).await.map_err(SendError::Body)?;
    if piece.is_empty() {
        return Err(SendError::Body(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(piece)
}

fn body_failure(error: &DiskError) -> SendError {
    SendError::Body(error.errno().map_or_else(|| io::Error::other(error.to_string()), io::Error::from))
}

/// Bytes one turn of the loop may give to a connection, at most `max`.
fn turn_size(max_chunk: u64, max: usize) -> usize {
    match usize::try_from(max_chunk) {
        Ok(0) | Err(_) => max,
        Ok(n) => n.min(max),
    }
}
