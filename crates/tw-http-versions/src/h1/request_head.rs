//! Reading of a request head within the limits of its server.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tw_core::event_loop::LevelGuard;
use tw_http::{HeadError, Progress};
use tw_log::Level;

use super::Http1Connection;
use super::conn::SocketWaitError;
use tw_phases::start::choose_server;
use tw_request::generation::{ListenGroup, LoopGeneration};
use tw_request::request::Request;

/// Bytes asked of the socket for a request head.
const HEAD_READ: usize = 4096;

/// Choice of the server so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerChoice {
    Default,
    ByHost,
}

/// Result of reading a head.
pub(super) enum ReadHead {
    /// The head is complete.
    Complete,
    /// Malformed: answer with this status, then close.
    Bad(u16),
    /// Nothing received: the socket was tried before it was readable.
    NotBegun,
    /// Closed before the first byte of a request.
    Closed,
    /// Closed or timed out before the end of the head; only the access log gets this status.
    Gone(u16),
}

/// Reads the head of the next request.
pub(super) async fn read(conn: &Rc<Http1Connection>, r: &mut Request) -> ReadHead {
    let generation = r.generation().clone();
    let Some(group) = conn.client.group(&generation) else { return ReadHead::Closed };
    r.route.server = group.default_server;
    let server = generation.server(r.route.server);
    r.route.plan = server.plan;
    let mut choice = ServerChoice::Default;
    let timeout = conn.client.left_of_head(server.settings.client_header_timeout);
    let timeout = timeout.min(r.plan().core.request_timeout.unwrap_or(Duration::MAX));
    let until = tw_rt::clock::now() + timeout;
    let mut begun = !r.head.is_idle();
    let mut is_untouched = true;
    loop {
        if begun && let Some(head) = parse(r, &generation, group, &mut choice) {
            return head;
        }
        let was_empty = r.head.is_idle();
        match conn.transport.try_read(r.head.spare(HEAD_READ)) {
            Ok(0) if was_empty => return ReadHead::Closed,
            Ok(0) => {
                r.log(
                    Level::Info,
                    format_args!("client prematurely closed connection while reading {}", r.head.reading()),
                );
                return ReadHead::Gone(400);
            }
            Ok(_) => {
                begun = true;
                is_untouched = false;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if was_empty && is_untouched {
                    return ReadHead::NotBegun;
                }
                let remaining = until.saturating_duration_since(tw_rt::clock::now());
                let _reading = LevelGuard::new(&conn.client.event_loop.tally.reading);
                match conn.readable(remaining).await {
                    Ok(()) => {}
                    Err(SocketWaitError::Timeout) => return timed_out(conn, r),
                    Err(SocketWaitError::Io(e)) => return lost(r, &e),
                }
            }
            Err(e) => return lost(r, &e),
        }
    }
}

/// Parses the bytes received, and chooses the server once the host is known. Returns `None` if the head needs more bytes.
fn parse(
    r: &mut Request,
    generation: &LoopGeneration,
    group: &ListenGroup,
    choice: &mut ServerChoice,
) -> Option<ReadHead> {
    loop {
        let parsed = r.head.parse_to_host(&generation.server(r.route.server).head);
        let is_complete = match parsed {
            Ok(Some(Progress::NeedMore)) => return None,
            Ok(Some(Progress::Complete)) => true,
            Ok(None) => false,
            Err(error) => {
                if error == HeadError::NoHost {
                    choose_server(r, group);
                }
                return Some(refused(r, error));
            }
        };
        if !is_complete || *choice == ServerChoice::Default {
            choose_server(r, group);
            *choice = ServerChoice::ByHost;
        }
        if is_complete {
            return Some(ReadHead::Complete);
        }
    }
}

fn timed_out(conn: &Http1Connection, r: &Request) -> ReadHead {
    if r.head.is_idle() {
        return ReadHead::Closed;
    }
    r.log(
        Level::Info,
        format_args!("client timed out (110: Connection timed out) while reading {}", r.head.reading()),
    );
    conn.set_reset_on_close(&r.plan().core);
    ReadHead::Gone(408)
}

fn lost(r: &Request, error: &io::Error) -> ReadHead {
    let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
    r.log(Level::Info, format_args!("recv() failed ({text}) while reading {}", r.head.reading()));
    if r.head.is_idle() { ReadHead::Closed } else { ReadHead::Gone(400) }
}

fn refused(r: &mut Request, error: HeadError) -> ReadHead {
    r.log(Level::Info, format_args!("{} while reading {}", r.head.error_text(error), r.head.reading()));
    // An error page may use the valid part of the request line.
    let Request { head, uri, .. } = &mut *r;
    uri.path.extend_from_slice(head.path());
    uri.args.extend_from_slice(head.args());
    ReadHead::Bad(error.status())
}
