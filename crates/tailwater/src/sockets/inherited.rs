//! Listening sockets that this process was started with: by an old binary (`NGINX`), or by systemd (`LISTEN_FDS`).
//!
//! ```text
//! NGINX=6;7;                           numbers, each with `;` or `:` after it: nginx's own protocol, in both directions
//! TAILWATER_KEYS=8                     a file in memory, with the keys of session tickets of the old binary
//! TAILWATER_LOCKS=9;10;                locked directories of caches, which both processes use for a while
//! TAILWATER_SESSIONS=11                a Unix socket on which sessions over datagrams of the old binary arrive
//! TAILWATER_CONTROL=12                 the listening socket of the control API
//! TAILWATER_PROCESSES=13               a Unix socket on which the two masters tell each other of their worker processes
//! LISTEN_FDS=2 LISTEN_PID=1234         3 and 4, if 1234 is this process; sd_listen_fds(3)
//! ```
//! Their addresses are read from the sockets themselves. Only those that a configuration names are kept.

use std::ffi::OsStr;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, getppid};
use tailwater_commands::configuration::directories::DirectoryLocks;
use tailwater_commands::output::console::Console;
use tw_base::Errno;
use tw_log::Level;
use tw_net::{ListenOptions, ListenSocket};
use tw_sys::inherit;

use super::{Listening, Sockets};
use crate::ipc::channel::Keys;

/// The variable of an upgrade.
pub(crate) const UPGRADE: &str = "NGINX";
/// Variable with the descriptors of the keys of session tickets.
pub(crate) const KEYS: &str = "TAILWATER_KEYS";
/// Environment variable with the locked directories of caches.
pub(crate) const LOCKS: &str = "TAILWATER_LOCKS";
/// Environment variable with the descriptor on which sessions over datagrams arrive.
pub(crate) const SESSIONS: &str = "TAILWATER_SESSIONS";
/// Environment variable with the socket of the control API.
pub(crate) const CONTROL: &str = "TAILWATER_CONTROL";
/// Environment variable with the descriptor of the link to the old binary.
pub(crate) const PROCESSES: &str = "TAILWATER_PROCESSES";
/// More bytes than this are no keys.
const KEYS_SIZE_MAX: usize = 8 << 10;
/// The variables of systemd.
const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
/// Variables that are for one process and no other.
pub(crate) const VARIABLES: [&str; 9] =
    [UPGRADE, KEYS, LOCKS, SESSIONS, CONTROL, PROCESSES, PROCESS, COUNT, NAMES];

/// The first descriptor of systemd.
const FIRST: RawFd = 3;

/// Sockets and keys that were handed over.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The sockets, by address.
    pub(crate) sockets: Sockets,
    /// Keys of session tickets, if there are any.
    pub(crate) keys: Keys,
    /// Directories of caches that the old binary has locked.
    pub(crate) locks: DirectoryLocks,
    /// Way of sessions over datagrams from the old binary.
    pub(crate) sessions: Option<OwnedFd>,
    /// Listening socket of the control API of the old binary.
    pub(crate) control: Option<OwnedFd>,
    /// Link to the old binary.
    pub(crate) processes: Option<OwnedFd>,
    /// The old binary.
    pub(crate) old: Option<Pid>,
    /// Messages about them.
    said: Vec<(Level, String)>,
}

/// Descriptor whose number stands in an environment variable. Without it the new binary does without.
fn descriptor(variable: &str) -> Option<OwnedFd> {
    let number = std::env::var_os(variable)?.to_str()?.parse().ok()?;
    inherit::take(number).ok()
}

impl Inherited {
    /// Takes over what the environment speaks of. Once, and before anything else is opened. What else the process was
    /// started with stays open, but no worker process and no new binary gets it.
    // DIFF(nginx): descriptors that no configuration names are not handed on by the master.
    pub(crate) fn take() -> Self {
        let mut this = Self::default();
        if let Some(list) = std::env::var_os(UPGRADE) {
            this.take_from_old(list.as_bytes());
            this.take_keys();
            this.take_locks();
            this.sessions = descriptor(SESSIONS);
            this.control = descriptor(CONTROL);
            this.processes = descriptor(PROCESSES);
        }
        let text = |name| std::env::var_os(name).unwrap_or_default();
        if text(PROCESS).as_bytes() == std::process::id().to_string().as_bytes() {
            this.take_from_systemd(&text(COUNT), &text(NAMES));
        }
        // An old kernel hands them on, as nginx does.
        let _ = inherit::set_close_on_exec();
        this
    }

    /// Says how it went.
    pub(crate) fn log_to(&self, console: &Console) {
        for (level, message) in &self.said {
            console.report(*level, format_args!("{message}"));
        }
    }

    fn take_from_old(&mut self, list: &[u8]) {
        let (numbers, refused) = numbers(list);
        let shown = String::from_utf8_lossy(list);
        self.said.push((Level::Notice, format!("using inherited sockets from \"{shown}\"")));
        if let Some(rest) = refused {
            let rest = String::from_utf8_lossy(rest);
            let message = format!(
                "invalid socket number \"{rest}\" in {UPGRADE} environment variable, ignoring the rest of the variable"
            );
            self.said.push((Level::Emerg, message));
            if numbers.is_empty() {
                // A variable that happens to have this name, and not an upgrade.
                return;
            }
        }
        self.old = getppid();
        for number in numbers {
            self.take_socket(number, "");
        }
    }

    /// Without them clients shake hands anew.
    fn take_keys(&mut self) {
        let number = std::env::var_os(KEYS).and_then(|number| number.to_str()?.parse().ok());
        let Some(number) = number else { return };
        let mut keys = Keys(vec![0; KEYS_SIZE_MAX]);
        let read = inherit::take(number).and_then(|file| Ok(rustix::io::pread(file, &mut keys.0[..], 0)?));
        match read {
            Ok(size) => {
                keys.0.truncate(size);
                self.keys = keys;
            }
            Err(error) => {
                let errno = Errno::from(&error);
                let message = format!("the keys of session tickets cannot be taken over ({errno}), ignored");
                self.said.push((Level::Warn, message));
            }
        }
    }

    /// Takes over locks. Those that cannot be taken are missing when the directories are locked, which says so.
    fn take_locks(&mut self) {
        let list = std::env::var_os(LOCKS).unwrap_or_default();
        let taken = numbers(list.as_bytes()).0.into_iter().filter_map(|number| inherit::take(number).ok());
        self.locks = DirectoryLocks::inherited(taken);
    }

    fn take_from_systemd(&mut self, count: &OsStr, names: &OsStr) {
        let Some(count) = count.to_str().and_then(|count| count.parse::<u16>().ok()) else {
            let count = count.to_string_lossy();
            self.said.push((Level::Warn, format!("invalid {COUNT} \"{count}\" in the environment, ignored")));
            return;
        };
        let names = names.to_string_lossy();
        let mut names = names.split(':');
        for number in (FIRST..).take(usize::from(count)) {
            self.take_socket(number, names.next().unwrap_or_default());
        }
    }

    fn take_socket(&mut self, number: RawFd, name: &str) {
        let name = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
        match inherit::take(number).and_then(ListenSocket::from_fd) {
            Ok(socket) => {
                if !name.is_empty() {
                    let message = format!("socket #{number}{name} listens on {}", socket.addr());
                    self.said.push((Level::Info, message));
                }
                self.sockets.add(socket);
            }
            Err(error) => {
                let (level, why) = match error.raw_os_error() {
                    Some(_) => (Level::Crit, Errno::from(&error).to_string()),
                    // The error has no number if the protocol of the socket is not supported.
                    None => (Level::Warn, error.to_string()),
                };
                let message = format!("the inherited socket #{number}{name} cannot be used ({why}), ignored");
                self.said.push((level, message));
            }
        }
    }
}

impl Sockets {
    /// Adds a socket that was handed over.
    fn add(&mut self, socket: ListenSocket) {
        let key = (socket.addr().clone(), socket.kind());
        match self.0.iter_mut().find(|listening| listening.key() == key) {
            Some(listening) => listening.sockets.push(socket),
            None => self.0.push(Listening {
                addr: socket.addr().clone(),
                options: ListenOptions { kind: socket.kind(), ..ListenOptions::default() },
                owned: 0,
                is_inherited: true,
                sockets: vec![socket],
            }),
        }
    }
}

/// The numbers in the variable of an upgrade, and what follows the last good one if that is not its end.
fn numbers(list: &[u8]) -> (Vec<RawFd>, Option<&[u8]>) {
    let mut numbers = Vec::new();
    let mut rest = list;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b';' | b':')) {
        let (word, after) = rest.split_at(end);
        let number = word.iter().all(u8::is_ascii_digit).then(|| str::from_utf8(word).ok()?.parse().ok());
        let Some(number) = number.flatten() else { return (numbers, Some(rest)) };
        numbers.push(number);
        rest = after.get(1..).unwrap_or_default();
    }
    (numbers, Some(rest).filter(|rest| !rest.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::{IntoRawFd, OwnedFd};
    use std::os::unix::net::UnixListener;

    use tw_testkit::TempDir;

    #[test]
    fn numbers_of_sockets() {
        for (list, expected, rest) in [
            ("", &[][..], None),
            ("6;7;", &[6, 7], None),
            ("6:7;", &[6, 7], None),
            ("6", &[], Some("6")),
            ("6;7", &[6], Some("7")),
            ("6;x;7;", &[6], Some("x;7;")),
            ("6;;7;", &[6], Some(";7;")),
            ("-6;", &[], Some("-6;")),
            ("+6;", &[], Some("+6;")),
            ("99999999999;", &[], Some("99999999999;")),
            ("1.29.0", &[], Some("1.29.0")),
        ] {
            let expected = (expected.to_vec(), rest.map(str::as_bytes));
            assert_eq!(numbers(list.as_bytes()), expected, "{list}");
        }
    }

    /// The number of a descriptor as it is after `exec()`.
    fn handed(socket: impl Into<OwnedFd>) -> RawFd {
        let socket = socket.into();
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
        socket.into_raw_fd()
    }

    #[test]
    fn sockets_are_found_by_their_address() {
        let dir = TempDir::new("inherited").unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = tcp.local_addr().unwrap();
        let twin = tcp.try_clone().unwrap();
        let unix = UnixListener::bind(dir.join("s")).unwrap();
        let connected = TcpStream::connect(addr).unwrap();
        let udp = UdpSocket::bind(addr).unwrap();
        let list = [handed(tcp), handed(connected), handed(unix), handed(twin), handed(udp)];
        let [_, other, ..] = list;
        let list: String = list.iter().map(|number| format!("{number};")).collect();

        let mut inherited = Inherited::default();
        inherited.take_from_old(list.as_bytes());
        let results: Vec<_> =
            inherited.sockets.0.iter().map(|one| (one.addr.to_string(), one.sockets.len())).collect();
        let unix = format!("unix:{}", dir.join("s").display());
        let tcp = (addr.to_string(), 2);
        let udp = (addr.to_string(), 1);
        assert_eq!(results, [tcp, (unix, 1), udp], "one key for each address and kind");
        assert_eq!(inherited.old, getppid());
        let expected =
            format!("the inherited socket #{other} cannot be used (not a listening socket), ignored");
        assert!(inherited.said.contains(&(Level::Warn, expected)), "{:?}", inherited.said);

        // All of these descriptors have an owner now.
        let mut again = Inherited::default();
        again.take_from_old(list.as_bytes());
        assert!(again.sockets.0.is_empty());
    }

    #[test]
    fn a_variable_of_the_same_name_is_no_upgrade() {
        let mut inherited = Inherited::default();
        inherited.take_from_old(b"/usr/sbin/nginx");
        assert_eq!(inherited.old, None);
        let expected = "invalid socket number \"/usr/sbin/nginx\" in NGINX environment variable, \
            ignoring the rest of the variable";
        assert!(inherited.said.contains(&(Level::Emerg, expected.to_owned())), "{:?}", inherited.said);
    }
}
