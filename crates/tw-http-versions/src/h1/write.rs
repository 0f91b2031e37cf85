//! Writes to the socket: what it takes at once, and the waits until it takes more.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::{BULK_MIN, BodySize, SCRATCH_SIZE};

use super::Http1Connection;
use super::conn::SocketWaitError;
use crate::send_rate::SendRate;
use tw_request::client_wait::{WaitEnd, WaitLimits};
use tw_request::request::Request;
use tw_request::send_error::SendError;

/// A write that would block took nothing.
pub(super) fn accept(result: io::Result<usize>) -> Result<usize, SendError> {
    match result {
        Ok(n) => Ok(n),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(e) => Err(SendError::Gone(e)),
    }
}

/// Writes what the socket takes.
pub(super) fn write_now(conn: &Http1Connection, bytes: &[u8]) -> io::Result<usize> {
    tw_rt::watch::operation("writing to the client", || conn.transport.try_write(bytes))
}

/// Writes of all parts what the socket takes.
pub(super) fn write_parts_now(conn: &Http1Connection, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    tw_rt::watch::operation("writing to the client", || conn.transport.try_write_vectored(parts))
}

/// Writes all of a piece. The caller has its turn; in a large response, bytes that the socket does not take at once wait for
/// another one.
pub(super) async fn write_all(
    r: &mut Request,
    conn: &Rc<Http1Connection>,
    mut bytes: Bytes,
    timeout: Duration,
    mut pace: Option<&mut SendRate>,
) -> Result<(), SendError> {
    let event_loop = conn.client.event_loop.clone();
    let mut has_turn = bytes.len() <= BULK_MIN;
    while !bytes.is_empty() {
        let size = BodySize::of(r.costs.sent.bytes, bytes.len() as u64);
        if !std::mem::take(&mut has_turn) && size == BodySize::Large {
            event_loop.budget.turn(size).await;
        }
        let mut want = bytes.len().min(SCRATCH_SIZE);
        if let Some(pace) = pace.as_deref_mut() {
            want = pace.allowance(r, want).await?;
        }
        let n = accept(write_now(conn, &bytes[..want]))?;
        r.count_sent(n);
        if size == BodySize::Large {
            event_loop.budget.spent(n);
        }
        // Shared bytes are cut without copying.
        let _ = bytes.split_to(n);
        if n < want {
            wait_writable(r, conn, timeout).await?;
        }
    }
    Ok(())
}

/// Waits until the socket takes more, as long as the client is granted: `timeout`, and what `send_min_rate` leaves.
pub(super) async fn wait_writable(
    r: &Request,
    conn: &Http1Connection,
    timeout: Duration,
) -> Result<(), SendError> {
    let limits = WaitLimits { timeout, min_rate: r.plan().core.send.min_rate };
    loop {
        let taken = limits.min_rate.map_or(0, |_| taken(r, conn));
        let waiting = r.costs.waits.begin(limits, taken)?;
        match conn.writable(waiting.timeout()).await {
            Ok(()) => return Ok(()),
            // The socket had no room for more yet, but the client has taken some.
            Err(SocketWaitError::Timeout)
                if waiting.end() == WaitEnd::TooSlow && taken < self::taken(r, conn) => {}
            Err(SocketWaitError::Timeout) => return Err(waiting.end().into()),
            Err(SocketWaitError::Io(e)) => return Err(SendError::Gone(e)),
        }
    }
}

/// Bytes of the response that the client has taken: those that it has acknowledged since it was first waited for, as far as the kernel
/// tells, else those that its socket has taken.
fn taken(r: &Request, conn: &Http1Connection) -> u64 {
    match conn.transport.socket().bytes_acked() {
        Some(acked) => r.costs.waits.acked_since_first(acked),
        None => r.costs.sent.bytes,
    }
}
