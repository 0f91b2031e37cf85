//! Clients of the control API that request metrics. The master passes their connections on, because the worker process has the numbers.
//! Each has a thread of its own: neither the main thread nor an event loop may wait for it.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, write};
use tailwater_commands::output::json_response;
use tw_app::Generation;
use tw_core::event_loop::Counts;
use tw_core::metrics::{ProcessUsage, resident_bytes};

/// Clients at the same time. A further one gets 503.
const CLIENTS_MAX: usize = 4;
/// Time that a client has to take its response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Counter of clients: each has one more handle.
#[derive(Default)]
pub(crate) struct MetricsClients(Arc<()>);

impl MetricsClients {
    /// Sends a client the numbers of the status page. `client` does not block.
    pub(crate) fn serve(&self, client: OwnedFd, counts: Arc<Counts>, generation: Generation) {
        let Some(permit) = self.permit() else {
            let body = json_response::error(503, "too many clients request metrics").to_string();
            // The response fits into the send buffer of a new connection, so this thread does not wait.
            let _ = write(&client, response(503, &body).as_bytes());
            return;
        };
        // If no thread can be started, the connection is closed.
        let _ = thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            let _permit = permit;
            // A file that cannot be read is left out.
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let numbers = tw_modules::numbers_of_process(&counts, &generation, usage(), &mounts);
            send(&client, 200, &numbers);
        });
    }

    /// Permits one more client until the permit is dropped; `None` if there are as many as may be.
    fn permit(&self) -> Option<Arc<()>> {
        // One of the handles is the counter's own.
        (Arc::strong_count(&self.0) <= CLIENTS_MAX).then(|| self.0.clone())
    }
}

/// Resources of this process.
fn usage() -> ProcessUsage {
    // One of the descriptors is that of the directory itself.
    let open_files = fs::read_dir("/proc/self/fd").map(|entries| (entries.count() as u64).saturating_sub(1));
    ProcessUsage {
        resident_bytes: fs::read("/proc/self/statm").ok().and_then(|statm| resident_bytes(&statm)),
        open_files: open_files.ok(),
    }
}

fn response(status: u16, body: &str) -> String {
    json_response::head(status, body.len()) + body
}

/// Writes a response, as far as the client takes it in time.
fn send(client: &OwnedFd, status: u16, body: &str) {
    let deadline = Instant::now() + TIMEOUT;
    let response = response(status, body);
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        match write(client, rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let remaining = deadline.saturating_duration_since(Instant::now());
                let mut event = [PollFd::new(client, PollFlags::OUT)];
                let timeout = Timespec::try_from(remaining).ok();
                if remaining.is_zero() || poll(&mut event, timeout.as_ref()).is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn response_is_larger_than_the_buffer_of_the_socket() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let body = "x".repeat(4 << 20);
        let text = thread::scope(|scope| {
            scope.spawn(|| send(&OwnedFd::from(ours), 200, &body));
            let mut text = String::new();
            theirs.read_to_string(&mut text).unwrap();
            text
        });
        let (head, received) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nContent-Length: 4194304\r\n"),
            "{head}"
        );
        assert_eq!(received.len(), body.len());
    }

    #[test]
    fn number_of_clients_is_limited() {
        let clients = MetricsClients::default();
        let mut permits: Vec<_> = std::iter::from_fn(|| clients.permit()).take(100).collect();
        assert_eq!(permits.len(), CLIENTS_MAX);
        permits.pop();
        permits.extend(clients.permit());
        assert!(permits.len() == CLIENTS_MAX && clients.permit().is_none());
    }

    #[test]
    fn client_that_is_gone_is_left() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        send(&OwnedFd::from(ours), 200, "{}");
    }
}
