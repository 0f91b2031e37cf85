//! A file to its client: from the page cache through the loop's buffer, and by jobs of a pool what is not there.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::SCRATCH_SIZE;
use tw_disk::{Disk, DiskError, Now, SentEnd};

use super::Conn;
use super::pace::Pace;
use super::send::{Failure, wait_writable, write_all, write_now};
use crate::http::body::FileSpan;
use crate::http::request::Request;

/// Smallest piece that a pool thread sends itself (`sendfile on`); less is copied by the loop in no time.
const SENDFILE_MIN: usize = 64 << 10;
/// Least that is read of a file for a socket that takes little at a time.
const WINDOW_MIN: usize = 32 << 10;

/// Reads from the beginning of a span what is in memory.
pub(super) fn read_now(disk: &Disk, span: &FileSpan, buffer: &mut [u8]) -> Now<usize> {
    tw_rt::watch::operation("reading a file", || disk.read_now(span.file.file(), span.offset, buffer))
}

/// Appends a span of a file if all of it is in memory; says whether it was.
pub(super) fn gather(disk: &Disk, span: &FileSpan, gathered: &mut Vec<u8>) -> bool {
    let start = gathered.len();
    gathered.resize(start + span.len as usize, 0);
    let is_whole = read_now(disk, span, &mut gathered[start..]) == Now::Ready(Ok(span.len as usize));
    if !is_whole {
        gathered.truncate(start);
    }
    is_whole
}

/// Sends a span of a file: from the page cache through the loop's buffer, else by jobs.
pub(super) async fn send_file(
    r: &mut Request,
    conn: &Rc<Conn>,
    span: &mut FileSpan,
    timeout: Duration,
    mut pace: Option<&mut Pace>,
) -> Result<(), Failure> {
    let files = r.plan().core.files.clone();
    let turn = turn_size(files.sendfile_max_chunk);
    let Some(disk) = r.disk().cloned() else { return Err(Failure::Body(io::ErrorKind::NotFound.into())) };
    let mut by = Sender::Pool;
    // Twice what the socket took last: little is copied in vain for a slow reader.
    let mut window = turn;
    while span.len > 0 {
        let mut want = window.min(usize::try_from(span.len).unwrap_or(usize::MAX));
        if let Some(pace) = pace.as_deref_mut() {
            want = want.min(pace.allowance(r, conn).await?);
        }
        if !conn.client.home.budget.may_copy(want) {
            tw_rt::yield_now().await;
            continue;
        }
        let moved = {
            let mut scratch = conn.client.home.buffers.scratch.borrow_mut();
            match read_now(&disk, span, &mut scratch[..want]) {
                Now::Ready(Ok(0)) => return Err(Failure::Body(io::ErrorKind::UnexpectedEof.into())),
                Now::Ready(Ok(n)) => Moved::Written(n, write_now(conn, &scratch[..n])),
                Now::Ready(Err(errno)) => return Err(Failure::Body(errno.into())),
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
                    // Others first: one connection never keeps the loop for longer than one buffer.
                    tw_rt::yield_now().await;
                }
            }
            Moved::Written(_, Err(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                wait_writable(conn, timeout).await?
            }
            Moved::Written(_, Err(e)) => return Err(Failure::Gone(e)),
            Moved::Cold => {
                let size =
                    want.min(files.output_buffers.count.saturating_mul(files.output_buffers.size).max(1));
                r.costs.account.source = tw_disk::Source::new(conn.client.id);
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
                        SentEnd::FileEnd => return Err(Failure::Body(io::ErrorKind::UnexpectedEof.into())),
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

async fn cold(r: &mut Request, disk: &Disk, span: &FileSpan, size: usize) -> Result<Bytes, Failure> {
    let buf = disk.read_cold(&mut r.costs.account, span.file.file(), span.offset, vec![0; size]).await;
    let buf =
        buf.map_err(|e| Failure::Body(e.errno().map_or_else(|| io::Error::other(e), io::Error::from)))?;
    if buf.is_empty() {
        return Err(Failure::Body(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(buf.into())
}

fn body_failure(error: &DiskError) -> Failure {
    Failure::Body(error.errno().map_or_else(|| io::Error::other(error.to_string()), io::Error::from))
}

/// Bytes one turn of the loop may give to a connection.
fn turn_size(max_chunk: u64) -> usize {
    match usize::try_from(max_chunk) {
        Ok(0) | Err(_) => SCRATCH_SIZE,
        Ok(n) => n.min(SCRATCH_SIZE),
    }
}
