//! `-s reload` with an answer: whoever orders it learns whether the configuration was taken over, and if not, why not.
//!
//! A signal cannot be answered. So a master listens on a Unix socket as well, one in the abstract name space, which is no
//! file and ends with the process: `tailwater/NUMBER`. To connect is to order a reload, for root and for whoever runs the
//! master; the answer is the messages of the reload, and the end of the stream. Both sides look who the other one is.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, geteuid};
use tw_log::Level;

use super::workers::LOAD_PATIENCE;
use crate::console::Fault;

/// How long an answer may wait for its reader. It fits into the buffer of a socket.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long the one who orders waits for the answer: as long as two worker processes in a row may take, and some more.
const ORDER_PATIENCE: Duration = LOAD_PATIENCE.saturating_mul(3);
/// The first line of an answer.
const DONE: &str = "done";
const REFUSED: &str = "refused";

/// Where a master takes orders.
#[derive(Debug)]
pub(super) struct Control(UnixListener);

/// Somebody who ordered a reload and waits for the answer.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    /// The process.
    pub(super) pid: Pid,
}

impl Control {
    /// Takes orders from now on, for the process that calls this.
    pub(super) fn open() -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&name_of(rustix::process::getpid())?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The next order, if there is one.
    pub(super) fn next(&self) -> Option<Client> {
        while let Ok((stream, _)) = self.0.accept() {
            if let Ok(peer) = socket_peercred(&stream)
                && (peer.uid.is_root() || peer.uid == geteuid())
            {
                return Some(Client { stream, pid: peer.pid });
            }
        }
        None
    }
}

/// Readable when an order waits.
impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Client {
    /// Says how it went, and what was said.
    pub(super) fn answer(mut self, is_done: bool, said: &[Fault]) {
        let mut text = format!("{}\n", if is_done { DONE } else { REFUSED });
        for Fault { level, message, .. } in said {
            text.push_str(&format!("{level} {}\n", message.replace('\n', " ")));
        }
        // Who does not wait for the answer does not get it.
        let _ = self
            .stream
            .set_write_timeout(Some(ANSWER_PATIENCE))
            .and_then(|()| self.stream.write_all(text.as_bytes()));
    }
}

/// Orders a reload and waits for its end. What was said, if the configuration was taken over; `None` if `master` takes no
/// orders this way.
pub(super) fn order_reload(master: Pid) -> Option<Result<Vec<Fault>, Vec<Fault>>> {
    let stream = UnixStream::connect_addr(&name_of(master).ok()?).ok()?;
    // The name is free for everybody to take.
    if socket_peercred(&stream).ok()?.pid != master {
        return None;
    }
    stream.set_read_timeout(Some(ORDER_PATIENCE)).ok()?;
    let mut lines = BufReader::new(stream).lines();
    let first = match lines.next() {
        Some(Ok(first)) => first,
        Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
            return Some(Err(vec![Fault::emerg("the server does not answer")]));
        }
        Some(Err(_)) | None => {
            let text = "the server ended before it had reloaded its configuration";
            return Some(Err(vec![Fault::emerg(text)]));
        }
    };
    let fault = |line: String| {
        let (level, message) = line.split_once(' ').unwrap_or(("", &line));
        Fault { level: Level::parse(level.as_bytes()).unwrap_or(Level::Emerg), ..Fault::emerg(message) }
    };
    let said = lines.map_while(Result::ok).map(fault).collect();
    Some(if first == DONE { Ok(said) } else { Err(said) })
}

fn name_of(pid: Pid) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("tailwater/{}", pid.as_raw_nonzero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_answered() {
        let control = Control::open().unwrap();
        let us = rustix::process::getpid();
        assert!(control.next().is_none());
        for is_done in [true, false] {
            let said = vec![Fault { level: Level::Warn, ..Fault::emerg("a") }, Fault::emerg("b\nc")];
            let answer = std::thread::scope(|scope| {
                let asked = scope.spawn(|| order_reload(us));
                let client = std::iter::repeat_with(|| control.next()).find_map(|client| client).unwrap();
                assert_eq!(client.pid, us);
                client.answer(is_done, &said);
                asked.join().unwrap().unwrap()
            });
            assert_eq!(answer.is_ok(), is_done);
            let told = answer.unwrap_or_else(|said| said);
            let told: Vec<_> = told.iter().map(|fault| (fault.level, &*fault.message)).collect();
            assert_eq!(told, [(Level::Warn, "a"), (Level::Emerg, "b c")]);
        }
        let ended = std::thread::scope(|scope| {
            let asked = scope.spawn(|| order_reload(us));
            drop(std::iter::repeat_with(|| control.next()).find_map(|client| client));
            asked.join().unwrap().unwrap()
        });
        assert!(ended.is_err());
        drop(control);
        assert!(order_reload(us).is_none());
    }
}
