//! The serving part: worker processes, or under `master_process off` the loops of this process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use rustix::process::{Pid, WaitStatus};
use tailwater_commands::cli::Purge;
use tailwater_commands::configuration::certificate_watch::WatchedCertificates;
use tailwater_commands::configuration::conf::Source;
use tailwater_commands::configuration::directories::DirectoryLocks;
use tailwater_commands::output::console::{Console, Fault};
use tw_conf::MemoryFiles;
use tw_core::event_loop::Reloads;
use tw_core::process::MainSettings;
use tw_log::{ErrorLog, Sinks};

use super::Mode;
use super::control::Client;
use super::pid::PidFile;
use super::processes::Processes;
use crate::ipc::channel::Keys;
use crate::sockets::Sockets;

/// Worker processes, or loops of this process, that serve.
pub(super) trait Serving {
    /// Reads the configuration again and serves by it, or goes on as before. The error is a fault that has not been said yet.
    fn reload(&mut self, running: &Running<'_>) -> Result<Adopted, Option<Fault>>;

    /// Purges for a client, who gets the answer when that is over.
    fn purge(&mut self, client: Client, order: Purge);

    /// Passes a client of the control API on, which gets metrics.
    fn send_metrics(&self, client: BorrowedFd<'_>) -> io::Result<()>;

    /// Passes a client on, which gets the state of the fleets.
    fn send_fleet_status(&self, client: BorrowedFd<'_>) -> io::Result<()>;

    /// Connections that are open, if they are open in this process.
    fn connections(&self) -> u64 {
        0
    }

    /// Error log for the messages of the master, unless it has one of its own.
    fn error_log(&self) -> Option<ErrorLog> {
        None
    }

    /// Stops accepting, so that open requests finish. The sockets stay open. `is_replaced` if another process has them. Sessions over
    /// datagrams are handed over to the process at the other end of `next`.
    fn release(&mut self, is_replaced: bool, next: Option<OwnedFd>);

    /// Serves again after [`release`](Self::release), by the same configuration.
    fn resume(&mut self, _console: &Console) {}

    /// Worker processes of all binaries; `None` without worker processes.
    fn links(&mut self) -> Option<&mut Processes> {
        None
    }

    /// Keys of session tickets, for another binary.
    fn keys(&self) -> Keys {
        Keys::default()
    }

    /// Worker processes, and whether each is about to end.
    fn processes(&self) -> Vec<(Pid, bool)> {
        Vec::new()
    }

    /// Returns `true` if children of this process are worker processes.
    fn has_children(&self) -> bool {
        false
    }

    /// Records the end of a child; `false` if it was no worker process.
    fn child_ended(&mut self, _pid: Pid, _status: WaitStatus, _console: &Console) -> bool {
        false
    }

    /// Sets the numbers of reloads, for metrics.
    fn set_reloads(&mut self, reloads: Reloads);

    /// Certificates that are followed, as they were when the configuration was read.
    fn watched_certificates(&self) -> WatchedCertificates;

    /// Uses other files of a certificate. The error is in words of the log.
    fn renew(&mut self, files: MemoryFiles, console: &Console) -> Result<(), String>;

    /// Opens the logs again that are open for serving. Where that fails, the old file goes on.
    fn reopen_logs(&mut self, sinks: &Sinks, console: &Console);

    /// Closes the sockets.
    fn close_sockets(&mut self);

    /// Ends everything, whatever is under way.
    fn stop(&mut self);

    /// Does the work that is due. Returns true if a worker process has reported that its loops turn.
    fn tick(&mut self, console: &Console) -> bool;

    /// Returns `true` if all loops of this process turn. A worker process reports that itself; without one, nothing can
    /// stand still.
    fn is_turning(&self, now: Instant) -> bool;

    /// Time of the next [`tick`](Self::tick), if nothing happens before.
    fn deadline(&self) -> Option<Instant>;

    /// Returns `true` if nothing runs any more.
    fn is_over(&self) -> bool;

    /// Readable when [`tick`](Self::tick) has something to do.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Ready when [`tick`](Self::tick) has something to do about processes of other binaries.
    fn poll_fds_of_links(&self) -> Vec<PollFd<'_>> {
        Vec::new()
    }
}

/// State of the running server that a reload reads.
pub(super) struct Running<'a> {
    pub(super) mode: Mode,
    pub(super) source: &'a Source,
    pub(super) console: &'a Console,
    pub(super) sinks: &'a Sinks,
    pub(super) main: &'a MainSettings,
    pub(super) sockets: &'a Arc<Sockets>,
    /// Directories of caches.
    pub(super) locks: &'a DirectoryLocks,
    pub(super) pid: Option<&'a PidFile>,
    /// Set if the control API is on, which shows the texts of the configuration.
    pub(super) has_control_api: bool,
    /// Time between two signs of life to the service manager.
    pub(super) sign_interval: Option<Duration>,
}

/// Resources of a successful reload, which replace those before it.
pub(super) struct Adopted {
    pub(super) main: MainSettings,
    pub(super) sockets: Arc<Sockets>,
    pub(super) locks: DirectoryLocks,
    /// Pid file, if it has another name now.
    pub(super) pid: Option<PidFile>,
    /// Texts of the configuration, for the control API.
    pub(super) texts: Option<Vec<(String, String)>>,
    /// Error log of the master.
    pub(super) log: ErrorLog,
}
