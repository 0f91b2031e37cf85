//! Lingering close of a connection: sends nothing more, and reads and ignores further bytes of the client, so that
//! the kernel does not reset bytes that the client has not read yet (`lingering_close`).

use std::cell::RefCell;
use std::io;
use std::task::Context;
use std::time::Duration;

use tw_accept::ready_or_evicted;
use tw_net::Transport;
use tw_rt::Deadline;

use tw_request::client::Client;

/// Bytes read at once.
const LINGER_READ: usize = 16 << 10;

/// Time that an idle connection waits for a request when its loop stops, and then, half closed, for its client to close it. A
/// request that is on its way is answered, and its client told that it is the last one.
pub(crate) const LAST_WAIT: Duration = Duration::from_millis(500);

/// Shuts down the sending side, then reads and ignores further bytes of the client: for `time` in all, at most
/// `timeout` between two reads.
pub(crate) async fn linger_close(client: &Client, transport: &Transport, time: Duration, timeout: Duration) {
    let deadline = RefCell::new(Deadline::new());
    let until = tw_rt::clock::now() + time;
    if transport.shutdown_write().is_err() {
        return;
    }
    loop {
        let remaining = until.saturating_duration_since(tw_rt::clock::now()).min(timeout);
        if remaining.is_zero() {
            return;
        }
        // A client that makes us wait holds no buffer.
        let read = transport.try_read(&mut Vec::with_capacity(LINGER_READ));
        match read {
            Ok(0) => return,
            Ok(_) => tw_rt::yield_now().await,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let ready = |cx: &mut Context<'_>| transport.poll_readable(cx);
                if ready_or_evicted(client.evictable(), &deadline, remaining, ready).await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
