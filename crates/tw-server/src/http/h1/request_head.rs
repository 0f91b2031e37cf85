//! Reading a head: bytes of the connection become the head of a request, within the limits of its server.

use std::io;
use std::rc::Rc;

use tw_core::event_loop::LevelGuard;
use tw_http::{HeadError, Progress};
use tw_log::Level;

use super::Conn;
use super::conn::WaitError;
use crate::http::request::Request;
use crate::http::start::choose_server;

/// Bytes asked of the socket for a request head.
const HEAD_READ: usize = 4096;

/// Whether the server was chosen already by the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostOf {
    Unknown,
    Known,
}

/// How reading a head ended.
pub(super) enum Head {
    Complete,
    /// To be answered with this status, then closed.
    Bad(u16),
    /// Nothing came: the socket was tried before its client has said anything.
    NotBegun,
    /// The client closed before it asked for anything.
    Closed,
    /// The client went away or was too slow; this status goes into the access log only.
    Gone(u16),
}

/// Reads the head of the next request.
pub(super) async fn read(conn: &Rc<Conn>, r: &mut Request) -> Head {
    let generation = r.generation().clone();
    let Some(group) = conn.client.group(&generation) else { return Head::Closed };
    r.route.server = group.default_server;
    let server = generation.server(r.route.server);
    r.route.plan = server.plan;
    let mut limits = &server.head;
    let mut host = HostOf::Unknown;
    let until = tw_rt::clock::now() + server.settings.client_header_timeout;
    let mut begun = !r.head.is_idle();
    let mut is_untouched = true;
    loop {
        if begun {
            match r.head.parse_to_host(limits) {
                Ok(None) => {
                    choose_server(r, group);
                    limits = &generation.server(r.route.server).head;
                    host = HostOf::Known;
                    continue;
                }
                Ok(Some(Progress::Complete)) => {
                    if host == HostOf::Unknown {
                        choose_server(r, group);
                    }
                    return Head::Complete;
                }
                Ok(Some(Progress::NeedMore)) => {}
                Err(error) => {
                    if error == HeadError::NoHost {
                        choose_server(r, group);
                    }
                    return refused(r, error);
                }
            }
        }
        let was_empty = r.head.is_idle();
        match conn.transport.try_read(r.head.spare(HEAD_READ)) {
            Ok(0) if was_empty => return Head::Closed,
            Ok(0) => {
                r.log(
                    Level::Info,
                    format_args!("client prematurely closed connection while reading {}", r.head.reading()),
                );
                return Head::Gone(400);
            }
            Ok(_) => {
                begun = true;
                is_untouched = false;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && was_empty && is_untouched => {
                return Head::NotBegun;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(tw_rt::clock::now());
                let _reading = LevelGuard::new(&conn.client.home.tally.reading);
                match conn.readable(left).await {
                    Ok(()) => {}
                    Err(WaitError::Timeout) if was_empty => return Head::Closed,
                    Err(WaitError::Timeout) => {
                        r.log(
                            Level::Info,
                            format_args!(
                                "client timed out (110: Connection timed out) while reading {}",
                                r.head.reading()
                            ),
                        );
                        conn.reset_if_asked(&r.plan().core);
                        return Head::Gone(408);
                    }
                    Err(WaitError::Io(e)) => return lost(r, &e),
                }
            }
            Err(e) => return lost(r, &e),
        }
    }
}

fn lost(r: &Request, error: &io::Error) -> Head {
    let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
    r.log(Level::Info, format_args!("recv() failed ({text}) while reading {}", r.head.reading()));
    if r.head.is_idle() { Head::Closed } else { Head::Gone(400) }
}

fn refused(r: &mut Request, error: HeadError) -> Head {
    r.log(Level::Info, format_args!("{} while reading {}", r.head.error_text(error), r.head.reading()));
    // As far as the request line was good, an error page may use it.
    let Request { head, uri, .. } = &mut *r;
    uri.path.extend_from_slice(head.path());
    uri.args.extend_from_slice(head.args());
    Head::Bad(error.status())
}
