//! The serving part: a worker process, or under `master_process off` the loops of this process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFd;
use rustix::process::Pid;
use tw_conf::MemoryFiles;
use tw_core::event_loop::Reloads;
use tw_log::Level;

use super::control::Client;
use super::processes::Processes;
use super::workers::Workers;
use crate::configuration::certificate_watch::WatchedCertificates;
use crate::ipc::channel::{Keys, Purge};
use crate::output::console::{Console, Fault};
use crate::worker::Server;
use crate::worker::purging::PurgeOutcome;
use crate::worker::sandbox::SandboxRules;

/// Process that serves.
pub(super) enum Serving {
    /// The loops of this process, and what it can do.
    InProcess(Box<Server>, SandboxRules),
    /// Worker processes.
    Workers(Box<Workers>),
}

impl Serving {
    /// Purges for a client, who gets the answer when that is over.
    pub(super) fn purge(&mut self, client: Client, order: Purge) {
        match self {
            Self::InProcess(server, _) => server.purge(order, |PurgeOutcome { is_done, said }| {
                let level = if is_done { Level::Notice } else { Level::Error };
                let said: Vec<_> =
                    said.into_iter().map(|said| Fault { level, ..Fault::emerg(said) }).collect();
                client.respond(is_done, &said);
            }),
            Self::Workers(workers) => workers.purge(client, order),
        }
    }

    /// Passes a client of the control API on to the serving process, which sends it metrics.
    pub(super) fn send_metrics(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::InProcess(server, _) => server.send_metrics(client.try_clone_to_owned()?),
            Self::Workers(workers) => workers.send_metrics(client)?,
        }
        Ok(())
    }

    /// Passes a client on to the serving process, which sends it the state of its fleets.
    pub(super) fn send_fleet_status(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::InProcess(server, _) => server.send_fleet_status(client.try_clone_to_owned()?),
            Self::Workers(workers) => workers.send_fleet_status(client)?,
        }
        Ok(())
    }

    /// Connections that are open, if they are open here.
    pub(super) fn connections(&self) -> u64 {
        match self {
            Self::InProcess(server, _) => server.connections(),
            Self::Workers(_) => 0,
        }
    }

    /// Stops accepting, so that the serving process or loops finish their open requests. The sockets stay open. `is_replaced` if another
    /// process has them. Sessions over datagrams are handed over to the process at the other end of `next`.
    pub(super) fn release(&mut self, is_replaced: bool, next: Option<OwnedFd>) {
        match self {
            Self::InProcess(server, _) => server.release_loops(None),
            Self::Workers(workers) => workers.release(is_replaced, next),
        }
    }

    /// Worker processes of all binaries; `None` without worker processes.
    pub(super) fn links(&mut self) -> Option<&mut Processes> {
        match self {
            Self::InProcess(..) => None,
            Self::Workers(workers) => Some(&mut workers.links),
        }
    }

    /// Serves again after [`release`](Self::release), by the same configuration.
    pub(super) fn resume(&mut self, console: &Console) {
        match self {
            // A server without worker processes never has a new binary.
            Self::InProcess(..) => {}
            Self::Workers(workers) => workers.resume(console),
        }
    }

    /// Keys of session tickets, for another binary.
    pub(super) fn keys(&self) -> Keys {
        match self {
            // A server without worker processes never has a new binary.
            Self::InProcess(..) => Keys::default(),
            Self::Workers(workers) => workers.keys(),
        }
    }

    /// Worker processes, and whether each is about to end.
    pub(super) fn processes(&self) -> Vec<(Pid, bool)> {
        match self {
            Self::InProcess(..) => Vec::new(),
            Self::Workers(workers) => workers.processes(),
        }
    }

    /// Sets the numbers of reloads, for metrics.
    pub(super) fn set_reloads(&mut self, reloads: Reloads) {
        match self {
            Self::InProcess(server, _) => server.set_reloads(reloads),
            Self::Workers(workers) => workers.set_reloads(reloads),
        }
    }

    /// Certificates that are followed, as they were when the configuration was read.
    pub(super) fn used(&self) -> WatchedCertificates {
        match self {
            Self::InProcess(server, _) => {
                let watched = server.generation().watched_certificates();
                watched.map(|watched| (watched.files.clone(), watched.version())).collect()
            }
            Self::Workers(workers) => workers.used(),
        }
    }

    /// Uses other files of a certificate. The error is in words of the log.
    pub(super) fn renew(&mut self, files: MemoryFiles, console: &Console) -> Result<(), String> {
        match self {
            Self::InProcess(server, _) => server.renew(files),
            Self::Workers(workers) => {
                workers.renew(&files, console);
                Ok(())
            }
        }
    }

    /// Lets go of the sockets.
    pub(super) fn close_sockets(&mut self) {
        match self {
            Self::InProcess(server, _) => server.close_sockets(),
            Self::Workers(workers) => workers.close_sockets(),
        }
    }

    /// Does the work that is due. Returns true if a worker process has reported that its loops turn.
    pub(super) fn tick(&mut self, console: &Console) -> bool {
        match self {
            Self::InProcess(server, _) => {
                server.reap(console);
                false
            }
            Self::Workers(workers) => {
                let is_heard = workers.listen(console);
                workers.follow_processes();
                workers.expire(Instant::now(), console);
                is_heard
            }
        }
    }

    /// Returns `true` if all loops of this process turn. A worker process reports that itself; without one, nothing can
    /// stand still.
    pub(super) fn turns(&self, now: Instant) -> bool {
        match self {
            Self::InProcess(server, _) => server.is_turning(now),
            Self::Workers(workers) => workers.poll_fd().is_none(),
        }
    }

    /// Time of the next [`tick`](Self::tick), if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::InProcess(server, _) => server.deadline(),
            Self::Workers(workers) => workers.deadline(),
        }
    }

    /// Returns `true` if nothing runs any more.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::InProcess(server, _) => server.is_idle(),
            Self::Workers(workers) => workers.is_empty(),
        }
    }

    /// Ready when [`tick`](Self::tick) has something to do about processes of other binaries.
    pub(super) fn voices_of_links(&self) -> Vec<PollFd<'_>> {
        match self {
            Self::InProcess(..) => Vec::new(),
            Self::Workers(workers) => workers.links.poll_fds().collect(),
        }
    }

    /// Readable when [`tick`](Self::tick) has something to do.
    pub(super) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::InProcess(server, _) => Some(server.as_fd()),
            Self::Workers(workers) => workers.poll_fd(),
        }
    }
}
