//! The last of a connection: nothing more is sent, and what the client still sends is read and ignored, so that the kernel
//! does not reset what the client has not read yet (`lingering_close`).

use std::io;
use std::time::Duration;

use super::Conn;

/// Bytes read at once.
const LINGER_READ: usize = 16 << 10;

/// Says that nothing more will be sent, then reads and ignores what the client still sends: for `time` in all, at most
/// `timeout` between two reads.
pub(super) async fn linger_close(conn: &Conn, time: Duration, timeout: Duration) {
    let until = tw_rt::clock::now() + time;
    if conn.transport.shutdown_write().is_err() {
        return;
    }
    loop {
        let left = until.saturating_duration_since(tw_rt::clock::now()).min(timeout);
        if left.is_zero() {
            return;
        }
        // A client that makes us wait holds no buffer.
        let read = conn.transport.try_read(&mut Vec::with_capacity(LINGER_READ));
        match read {
            Ok(0) => return,
            Ok(_) => tw_rt::yield_now().await,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if conn.readable_or_called(left).await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
