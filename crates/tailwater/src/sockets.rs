//! Listening sockets, kept by address and kind over all reloads.
//!
//! The master, and the main thread of a worker process, keep a descriptor of every socket; loops get their own. So a
//! socket stays open while loops and processes are replaced, and no connection in its queue is lost.
//!
//! With `reuseport` every loop has a socket of its own. With fewer loops, or without `reuseport`, the remaining sockets
//! stay open, and all loops accept from them: closing a socket would reset the connections in its queue and those in a
//! handshake, and new ones come for as long as it is open. They are closed with their address.
//!
//! Datagram sockets always belong to one loop each, as if `reuseport` were set, because a loop has the sessions of the clients that the
//! kernel sends it. With fewer loops, a loop has several of them.
//!
//! A socket may have come from another process, and still be shared with it: an old binary, systemd. Then the file of a
//! Unix socket stays as long as any process listens on it.

pub(crate) mod inherited;
pub(crate) mod leftover_files;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tailwater_commands::output::console::{Console, Fault};
use tw_core::generation::{ListenAddress, SocketSharing};
use tw_log::Level;
use tw_net::listen::{AcceptingLoops, ListenReport, Purpose, SocketKind, open_all};
use tw_net::{Addr, ListenOptions, ListenSocket};

/// The sockets of one configuration.
#[derive(Debug, Default)]
pub(crate) struct Sockets(Vec<Listening>);

/// Address as it was configured, and kind: TCP 443 and UDP 443 are two sockets.
type SocketKey = (Addr, SocketKind);

/// Listening sockets of one address and kind.
#[derive(Debug)]
struct Listening {
    /// As it was configured.
    addr: Addr,
    options: ListenOptions,
    /// As many of the first as there are loops belong to one of them each (`reuseport`), or none does.
    owned: usize,
    /// Set if another process has opened it.
    is_inherited: bool,
    /// Never fewer than before.
    sockets: Vec<ListenSocket>,
}

/// The sockets of one address, for another process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SocketsOf {
    /// Number of sockets.
    pub(crate) count: usize,
    /// Number of the first ones that belong to one loop each.
    pub(crate) owned: usize,
}

impl Sockets {
    /// Sockets for `groups` and `loops` loops, with those of `self` where the address is the same. Nothing changes for
    /// `self`. `None` if one could not be opened, which has been logged. May wait two seconds for an address.
    pub(crate) fn next(&self, groups: &[ListenAddress], loops: usize, console: &Console) -> Option<Self> {
        self.next_message(groups, loops, console, &mut open_reporter(console))
    }

    /// Opens them while the server of process `running` may have the addresses: if it has, that is said, and not once for each
    /// address and each try.
    pub(crate) fn next_beside(
        &self,
        groups: &[ListenAddress],
        loops: usize,
        running: Pid,
        console: &Console,
    ) -> Option<Self> {
        let mut reply = open_reporter(console);
        let mut report = |report: ListenReport| match report {
            ListenReport::Failed(error) if error.is_in_use() => {}
            ListenReport::TryAgain => {}
            ListenReport::GaveUp => {
                let fault = Fault::emerg(format!("already running, pid {running}"));
                let hint = "\"tailwater -s reload\" takes over a changed configuration, \"tailwater -s quit\" ends it";
                console.fault(&fault.hint(hint));
            }
            other => reply(other),
        };
        self.next_message(groups, loops, console, &mut report)
    }

    fn next_message(
        &self,
        groups: &[ListenAddress],
        loops: usize,
        console: &Console,
        mut report: &mut dyn FnMut(ListenReport),
    ) -> Option<Self> {
        let groups = groups.iter().filter(|group| group.socket != SocketSharing::UsesWildcard);
        let mut opened = self.open_missing(groups.clone(), report)?;
        let mut next = Vec::new();
        for group in groups {
            let key = (group.address.clone(), group.options.kind);
            let kept = self.at(&key);
            let is_inherited = kept.is_some_and(|listening| listening.is_inherited);
            let kept = kept.map(|listening| clone_all(&listening.sockets));
            let sockets = kept.unwrap_or_else(|| Ok(opened.remove(&key).into_iter().collect()));
            let sockets = sockets.and_then(|sockets| {
                let count = if has_one_for_each_loop(group) { loops } else { 1 };
                grow(sockets, count, &group.options, &mut report)
            });
            let is_datagram = group.options.kind == SocketKind::Datagram;
            let owned = if group.options.reuseport || is_datagram { loops } else { 0 };
            match sockets {
                Ok(sockets) => {
                    let addr = group.address.clone();
                    let options = group.options.clone();
                    next.push(Listening { addr, options, owned, is_inherited, sockets });
                }
                Err(error) => {
                    console.report(Level::Emerg, format_args!("cannot listen on {}: {error}", group.address));
                    return None;
                }
            }
        }
        Some(Self(next))
    }

    /// Sockets for the addresses that `self` has not. Those with files come last: what fails before leaves none behind.
    fn open_missing<'a>(
        &self,
        groups: impl Iterator<Item = &'a ListenAddress>,
        report: &mut dyn FnMut(ListenReport),
    ) -> Option<HashMap<SocketKey, ListenSocket>> {
        let wanted_values = groups.map(|group| (group.address.clone(), group.options.clone()));
        let wanted_values =
            wanted_values.filter(|(addr, options)| self.at(&(addr.clone(), options.kind)).is_none());
        let (ports, files): (Vec<_>, Vec<_>) = wanted_values.partition(|(addr, _)| addr.inet().is_some());
        for path in files.iter().filter_map(|(addr, _)| socket_file(addr)).filter(|path| is_left_behind(path))
        {
            // If this fails, bind() fails, too, and reports the reason.
            let _ = fs::remove_file(path);
        }
        let mut opened = HashMap::new();
        for wanted_values in [ports, files] {
            let sockets = open_all(&wanted_values, Purpose::Serve, report)?;
            opened.extend(wanted_values.into_iter().map(|(addr, options)| (addr, options.kind)).zip(sockets));
        }
        Some(opened)
    }

    /// Puts `self` in the place of `old`: options that changed are set, files of addresses that are gone are removed.
    /// Those that another process has opened are not, but returned.
    #[must_use]
    pub(crate) fn replace(&self, old: &Self, console: &Console) -> Vec<PathBuf> {
        let mut report = reporter(console);
        let mut paths = Vec::new();
        for listening in &old.0 {
            match self.at(&listening.key()) {
                Some(new) if new.options == listening.options => {}
                Some(new) => new.configure(&mut report),
                None if listening.is_inherited => {
                    paths.extend(socket_file(&listening.addr).map(Path::to_owned))
                }
                None => listening.sockets.iter().take(1).for_each(|socket| socket.remove_file(&mut report)),
            }
        }
        paths
    }

    /// Puts `self` in the place of sockets that were handed over. All options are set: it is unknown which ones were.
    pub(crate) fn adopt(&self, handed: &Self, console: &Console) {
        let mut report = reporter(console);
        for listening @ Listening { addr, sockets, .. } in &handed.0 {
            match self.at(&listening.key()) {
                Some(new) => new.configure(&mut report),
                // Connections in its queue are for the other process.
                None => {
                    let count = sockets.len();
                    let message =
                        format_args!("{addr} is not configured, closing inherited sockets: {count}");
                    console.report(Level::Notice, message);
                }
            }
        }
    }

    /// Removes the files of Unix sockets that have no listener any more, which would be in the way of a new server.
    /// Those that another process has opened are not removed, but returned.
    #[must_use]
    pub(crate) fn remove_files(&self, console: &Console) -> Vec<PathBuf> {
        Self::default().replace(self, console)
    }

    /// Files of Unix sockets.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().filter_map(|listening| socket_file(&listening.addr)).map(Path::to_owned)
    }

    /// Removes the files of those Unix sockets that `kept` has not: they were opened for nothing.
    pub(crate) fn remove_files_but(&self, kept: &Self, console: &Console) {
        let new = self.0.iter().filter(|listening| kept.at(&listening.key()).is_none());
        for socket in new.filter_map(|listening| listening.sockets.first()) {
            // A file that cannot be removed any more is removed by the next start.
            socket.remove_file(&mut |report| console.report(Level::Notice, format_args!("{report}")));
        }
    }

    /// Every descriptor, and whose they are: for another process.
    pub(crate) fn fds(&self) -> (Vec<BorrowedFd<'_>>, Vec<SocketsOf>) {
        let all = self.0.iter().flat_map(|listening| &listening.sockets).map(AsFd::as_fd).collect();
        let shape =
            |listening: &Listening| SocketsOf { count: listening.sockets.len(), owned: listening.owned };
        (all, self.0.iter().map(shape).collect())
    }

    /// Sockets described by [`fds`](Self::fds) of another process. Errors: one is no listening socket, or some are
    /// missing.
    pub(crate) fn from_fds(
        fds: &mut impl Iterator<Item = OwnedFd>,
        shapes: &[SocketsOf],
    ) -> io::Result<Self> {
        let of_address = |shape: &SocketsOf| {
            let &SocketsOf { count, owned } = shape;
            let sockets =
                fds.by_ref().take(count).map(ListenSocket::from_fd).collect::<io::Result<Vec<_>>>()?;
            let first = sockets.first().filter(|_| sockets.len() == count);
            let first = first.ok_or(io::ErrorKind::UnexpectedEof)?;
            let addr = first.addr().clone();
            // The master has set the others.
            let options = ListenOptions { kind: first.kind(), ..ListenOptions::default() };
            Ok(Listening { addr, options, owned, is_inherited: false, sockets })
        };
        shapes.iter().map(of_address).collect::<io::Result<_>>().map(Self)
    }

    /// Descriptors for one loop: its own sockets, and those of all loops.
    pub(crate) fn of_loop(&self, index: usize) -> io::Result<Vec<ListenSocket>> {
        self.0.iter().flat_map(|listening| listening.of_loop(index)).collect()
    }

    /// The addresses as they were opened.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Addr> {
        self.0.iter().filter_map(|listening| Some(listening.sockets.first()?.addr()))
    }

    fn at(&self, (addr, kind): &SocketKey) -> Option<&Listening> {
        self.0.iter().find(|listening| listening.addr == *addr && listening.options.kind == *kind)
    }
}

impl Listening {
    fn key(&self) -> SocketKey {
        (self.addr.clone(), self.options.kind)
    }

    fn configure(&self, report: &mut dyn FnMut(ListenReport)) {
        self.sockets.iter().for_each(|socket| socket.configure(&self.options, report));
    }

    fn of_loop(&self, index: usize) -> impl Iterator<Item = io::Result<ListenSocket>> {
        self.sockets.iter().enumerate().filter_map(move |(at, socket)| match at {
            // The loop that receives datagrams has their sessions, so each socket belongs to one loop only.
            at if self.options.kind == SocketKind::Datagram => {
                (at % self.owned.max(1) == index).then(|| socket.share(AcceptingLoops::Alone))
            }
            at if at >= self.owned => Some(socket.share(AcceptingLoops::All)),
            at if at == index => Some(socket.share(AcceptingLoops::Alone)),
            _ => None,
        })
    }
}

/// Reports what is no reason to give up.
/// Makes the reporter of a start: a server without its sockets is an emergency.
fn open_reporter(console: &Console) -> impl FnMut(ListenReport) {
    |report| {
        let level = match report {
            ListenReport::Failed(_) | ListenReport::GaveUp => Level::Emerg,
            ListenReport::Ignored(_) => Level::Alert,
            ListenReport::TryAgain => Level::Notice,
        };
        console.report(level, format_args!("{report}"));
    }
}

fn reporter(console: &Console) -> impl FnMut(ListenReport) {
    |report| {
        let level = match report {
            ListenReport::Ignored(_) => Level::Alert,
            // A file that cannot be removed any more is removed by the next start.
            _ => Level::Notice,
        };
        console.report(level, format_args!("{report}"));
    }
}

fn socket_file(addr: &Addr) -> Option<&Path> {
    match addr {
        Addr::Unix(path) => path.as_deref(),
        Addr::Inet(_) => None,
    }
}

/// Returns `true` if the file is a socket without a listener.
// DIFF(nginx): such a file is removed. A server that was killed, or that gave up the right to remove it, left it there.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && try_connect(path) == Err(Errno::CONNREFUSED)
}

/// Does not wait, even if the queue of a listener is full.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

// DIFF(nginx): datagram sockets are those of one loop each, whether `reuseport` is set or not.
/// Returns true if every loop needs a socket of its own: the kernel then keeps all datagrams of one client on one of them.
fn has_one_for_each_loop(group: &ListenAddress) -> bool {
    let is_datagram = group.options.kind == SocketKind::Datagram && group.address.inet().is_some();
    group.options.reuseport || is_datagram
}

fn clone_all(sockets: &[ListenSocket]) -> io::Result<Vec<ListenSocket>> {
    sockets.iter().map(ListenSocket::try_clone).collect()
}

/// Adds siblings of the first socket until there are `count`. Datagrams can do with fewer, which some loops then receive: a process
/// that has changed its user may add none.
fn grow(
    mut sockets: Vec<ListenSocket>,
    count: usize,
    options: &ListenOptions,
    report: &mut dyn FnMut(ListenReport),
) -> io::Result<Vec<ListenSocket>> {
    while let (Some(first), true) = (sockets.first(), sockets.len() < count) {
        match first.sibling(options, report) {
            Ok(sibling) => sockets.push(sibling),
            Err(error) if options.kind == SocketKind::Datagram => {
                report(ListenReport::Ignored(error));
                break;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(sockets)
}

/// A fault while descriptors are handed to a loop.
pub(crate) fn cannot_share(error: &io::Error) -> Fault {
    Fault::emerg(format!("dup() of a listening socket failed ({})", tw_base::Errno::from(error)))
}

#[cfg(test)]
mod tests {
    use tw_testkit::{TempDir, wait};

    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_socket_without_a_listener_was_left_behind() {
        let dir = TempDir::new("sockets").unwrap();
        let path = dir.join("s");
        assert!(!is_left_behind(&path));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(!is_left_behind(&path));
        drop(listener);
        // A process that another test starts at this moment has a copy of it until its own program begins.
        assert!(wait::until(wait::TIMEOUT, || is_left_behind(&path)));
        assert!(!is_left_behind(&dir.write("file", "").unwrap()));
        std::os::unix::fs::symlink(&path, dir.join("link")).unwrap();
        assert!(!is_left_behind(&dir.join("link")));
    }

    #[test]
    fn datagram_sockets_belong_to_one_loop_each() {
        let address =
            Addr::Inet(([127, 0, 0, 1], tw_testkit::ports::Port::reserve().unwrap().number()).into());
        let options = ListenOptions { kind: SocketKind::Datagram, ..ListenOptions::default() };
        let groups = [ListenAddress { address, options, socket: SocketSharing::Own, span: None }];
        let of_loops = |sockets: &Sockets, loops: usize| -> Vec<usize> {
            let of_loop = |index| {
                let all = sockets.of_loop(index).unwrap();
                assert!(all.iter().all(|socket| socket.shared_with() == AcceptingLoops::Alone));
                all.len()
            };
            (0..loops).map(of_loop).collect()
        };
        let console = Console::quiet();
        let one = Sockets::default().next(&groups, 1, &console).unwrap();
        assert_eq!(of_loops(&one, 1), [1]);
        let three = one.next(&groups, 3, &console).unwrap();
        assert_eq!(of_loops(&three, 3), [1, 1, 1]);
        // An open socket may have datagrams, so a loop has to read it.
        let two = three.next(&groups, 2, &console).unwrap();
        assert_eq!(of_loops(&two, 2), [2, 1]);
    }
}
