//! Notifications of a service manager (sd_notify(3)): the server is ready, reloads, ends, and is alive.
//!
//! ```text
//! start ─► READY ─┬─ RELOADING ─► READY          a reload, taken or refused: STATUS tells
//!                 ├─ WATCHDOG, WATCHDOG …        as long as every loop turns
//!                 ├─ MAINPID                     another master has taken over
//!                 └─ STOPPING
//! ```
//! The socket is connected once, at the start: a single process may not be able to do so later. Without `NOTIFY_SOCKET`
//! no notification is sent.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, sockopt,
};
use rustix::process::{Pid, getpid};
use rustix::time::{ClockId, clock_gettime};
use tailwater_commands::output::console::Console;
use tw_log::Level;

/// Process that the manager expects signs of life from, if it is not the main process of the service.
pub(super) const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Longest wait of a message for room. The manager reads them as they come.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Signs of life within the time after which the manager loses patience: one that is late must not be the end.
const SIGNS: u32 = 3;
/// Longest time of a start or a reload, beside the manager's own limit: two worker processes, one after the other, may
/// take 30 s each to load.
const LONG: Duration = Duration::from_secs(90);
/// Bytes of a message of a status line.
const STATUS_MAX: usize = 300;

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub(super) struct Notify {
    socket: Option<OwnedFd>,
    watchdog: Option<Watchdog>,
}

/// A manager that restarts a server which gives no sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watchdog {
    /// Longest silence that the manager accepts.
    timeout: Duration,
    /// Time of the next sign of life.
    next: Instant,
}

/// Result of a reload.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reloaded<'a> {
    /// On so many addresses.
    Taken(usize),
    /// For this reason.
    Refused(&'a str),
}

/// Returns `true` if this process was started as a service and is its main process, so that it must not be replaced,
/// neither by itself in the background nor by a new binary.
pub(super) fn is_awaited(is_new_binary: bool) -> bool {
    let is_main = is_new_binary || number("SYSTEMD_EXEC_PID") == Some(own_number());
    is_main && env::var_os("NOTIFY_SOCKET").is_some()
}

impl Notify {
    /// The one that the environment names.
    pub(super) fn of_environment(console: &Console) -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        match open(&name) {
            Ok(socket) => {
                let timeout = watchdog(number("WATCHDOG_USEC"), number(WATCHDOG_PID), own_number());
                let watchdog = timeout.map(|timeout| Watchdog { timeout, next: Instant::now() });
                Self { socket: Some(socket), watchdog }
            }
            Err(error) => {
                let name = name.to_string_lossy();
                let errno = tw_base::Errno::from(&error);
                console.report(
                    Level::Warn,
                    format_args!("connect() to NOTIFY_SOCKET \"{name}\" failed ({errno})"),
                );
                Self::default()
            }
        }
    }

    /// The start takes as long as it takes.
    pub(super) fn starting(&self) {
        self.notify(&format!("EXTEND_TIMEOUT_USEC={}", LONG.as_micros()));
    }

    /// Reports that the server is ready, on so many addresses.
    pub(super) fn serving(&self, addresses: usize) {
        self.notify(&format!("READY=1\nMAINPID={}\nSTATUS={}", own_number(), status(addresses)));
    }

    /// The configuration is read again. Nothing else is done meanwhile, so the watchdog waits.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        let mut text =
            format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=Reading the configuration again");
        if let Some(Watchdog { timeout, .. }) = self.watchdog {
            text.push_str(&format!("\nWATCHDOG_USEC={}", (timeout + LONG).as_micros()));
        }
        self.notify(&text);
    }

    /// Reports the end of a reload.
    pub(super) fn reloaded(&self, outcome: Reloaded<'_>) {
        let mut text = match outcome {
            Reloaded::Taken(addresses) => format!("READY=1\nSTATUS={}", status(addresses)),
            Reloaded::Refused(why) => {
                let why: String =
                    why.chars().take(STATUS_MAX).map(|c| if c == '\n' { ' ' } else { c }).collect();
                format!("READY=1\nSTATUS=Serving by the old configuration, the new one was refused: {why}")
            }
        };
        if let Some(Watchdog { timeout, .. }) = self.watchdog {
            text.push_str(&format!("\nWATCHDOG=1\nWATCHDOG_USEC={}", timeout.as_micros()));
        }
        self.notify(&text);
    }

    /// The end begins; it takes at most `limit`, if that is known.
    pub(super) fn stopping(&self, limit: Option<Duration>) {
        let mut text = "STOPPING=1\nSTATUS=Shutting down".to_owned();
        if let Some(limit) = limit {
            text.push_str(&format!("\nEXTEND_TIMEOUT_USEC={}", limit.as_micros()));
        }
        self.notify(&text);
    }

    /// Another process is the service from now on.
    pub(super) fn replaced_by(&self, new: Pid) {
        self.notify(&format!("MAINPID={new}"));
    }

    /// Interval of the signs of life that the manager requires, if it does.
    pub(super) fn sign_interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog.timeout / SIGNS)
    }

    /// Time of the next sign of life.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.watchdog.map(|watchdog| watchdog.next)
    }

    /// A sign of life. A manager that is too busy for it is not waited for: there will be another one.
    pub(super) fn alive(&mut self, now: Instant) {
        self.put_off(now);
        if let (Some(socket), Some(_)) = (&self.socket, self.watchdog) {
            let _ = send(socket, b"WATCHDOG=1", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// There is no sign of life now; perhaps at the next time.
    pub(super) fn put_off(&mut self, now: Instant) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.next = now + watchdog.timeout / SIGNS;
        }
    }

    fn notify(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // Errors are ignored, because a manager that does not listen cannot be told in another way.
            let _ = send(socket, text.as_bytes(), SendFlags::NOSIGNAL);
        }
    }
}

fn status(count: usize) -> String {
    format!("Serving on {}", addresses(count))
}

/// `1 address`, `2 addresses`
pub(super) fn addresses(count: usize) -> String {
    format!("{count} address{}", if count == 1 { "" } else { "es" })
}

fn open(name: &OsStr) -> io::Result<OwnedFd> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        [b'/', ..] => SocketAddrUnix::new(name)?,
        _ => return Err(rustix::io::Errno::AFNOSUPPORT.into()),
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(TIMEOUT))?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// `WATCHDOG_USEC`, if it is meant for this process (`WATCHDOG_PID`).
fn watchdog(micros: Option<u64>, pid: Option<u64>, own: u64) -> Option<Duration> {
    let is_meant = pid.is_none_or(|pid| pid == own);
    micros.filter(|micros| is_meant && *micros > 0).map(Duration::from_micros)
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn own_number() -> u64 {
    u64::from(Pid::as_raw_nonzero(getpid()).get().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn manager_receives_notifications() {
        let dir = TempDir::new("notify").unwrap();
        let manager = UnixDatagram::bind(dir.join("s")).unwrap();
        let socket = Some(open(dir.join("s").as_os_str()).unwrap());
        let timeout = Duration::from_secs(30);
        let watchdog = Some(Watchdog { timeout, next: Instant::now() });
        let mut notify = Notify { socket, watchdog };
        let mut heard = |said: &mut dyn FnMut(&mut Notify)| {
            said(&mut notify);
            let mut bytes = [0; 1000];
            let size = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..size].to_vec()).unwrap()
        };
        let pid = std::process::id();
        assert_eq!(
            heard(&mut |n| n.serving(1)),
            format!("READY=1\nMAINPID={pid}\nSTATUS=Serving on 1 address")
        );
        assert!(heard(&mut |n| n.reloading()).ends_with("again\nWATCHDOG_USEC=120000000"));
        let refused = heard(&mut |n| n.reloaded(Reloaded::Refused("a\nb")));
        assert!(
            refused.starts_with("READY=1\nSTATUS=") && refused.contains(": a b\nWATCHDOG=1\n"),
            "{refused}"
        );
        let taken = heard(&mut |n| n.reloaded(Reloaded::Taken(2)));
        assert_eq!(taken, "READY=1\nSTATUS=Serving on 2 addresses\nWATCHDOG=1\nWATCHDOG_USEC=30000000");
        assert_eq!(heard(&mut |n| n.alive(Instant::now())), "WATCHDOG=1");
        let stopping = heard(&mut |n| n.stopping(Some(Duration::from_secs(1))));
        assert!(stopping.starts_with("STOPPING=1\n") && stopping.ends_with("EXTEND_TIMEOUT_USEC=1000000"));
        assert_eq!(notify.sign_interval(), Some(Duration::from_secs(10)));
    }

    #[test]
    fn sockets_have_names_of_two_kinds() {
        assert!(open(OsStr::new("vsock:2:1")).is_err());
        assert!(open(OsStr::new("/no/such/socket")).is_err());
        assert!(open(OsStr::new("@tailwater/no such socket")).is_err());
    }

    #[test]
    fn a_watchdog_is_for_one_process() {
        for (micros, pid, expected) in [
            (Some(9), None, Some(9)),
            (Some(9), Some(7), Some(9)),
            (Some(9), Some(8), None),
            (Some(0), None, None),
            (None, Some(7), None),
        ] {
            assert_eq!(watchdog(micros, pid, 7), expected.map(Duration::from_micros), "{micros:?} {pid:?}");
        }
    }
}
