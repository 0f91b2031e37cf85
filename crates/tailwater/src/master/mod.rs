//! The master: it reads the configuration, keeps resources that need privileges (sockets, logs, the pid file), and
//! obeys signals. A worker process serves; under `master_process off` this process does that as well.

mod child;
mod control;
mod control_api;
mod handover;
mod in_process;
mod liveness;
mod logs;
mod mode;
mod notify;
mod pid;
mod processes;
mod reload;
mod script_processes;
mod serving;
mod signal_queue;
mod signals;
mod start;
mod timeouts;
mod upgrade;
mod workers;

use std::rc::Rc;
use std::sync::Arc;

use rustix::process::{WaitOptions, getpid, wait};
use tailwater_commands::configuration::certificate_watch::CertificateWatch;
use tailwater_commands::configuration::conf::Source;
use tailwater_commands::configuration::directories::DirectoryLocks;
use tailwater_commands::output::console::Console;
use tw_core::event_loop::Reloads;
use tw_core::process::MainSettings;
use tw_log::Sinks;
use tw_net::Addr;

use crate::sockets::Sockets;
use crate::sockets::leftover_files::LeftoverFiles;
use crate::worker;

use control::Control;
use control_api::ControlApi;
use notify::Notify;
use pid::PidFile;
use serving::Serving;
use signal_queue::SignalQueue;
use upgrade::Binaries;

pub(crate) use mode::Mode;
pub(crate) use pid::{fleet_status, order, purge, report_refusal};
pub(crate) use start::start;

/// State that lives as long as the server.
pub(crate) struct Master {
    mode: Mode,
    source: Source,
    console: Console,
    sinks: Sinks,
    inbox: Rc<SignalQueue>,
    main: MainSettings,
    sockets: Arc<Sockets>,
    /// Directories of caches.
    locks: DirectoryLocks,
    leftover_files: LeftoverFiles,
    pid: Option<PidFile>,
    /// `None` where such a socket cannot be had.
    control: Option<Control>,
    /// Control API over HTTP (`-l`).
    control_api: Option<ControlApi>,
    /// Time of the start, in seconds since 1970.
    started: i64,
    notify: Notify,
    /// Numbers of reloads.
    reloads: Reloads,
    serving: Box<dyn Serving>,
    binaries: Binaries,
    watch: CertificateWatch,
}

impl Master {
    /// The addresses it listens on.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Addr> {
        self.sockets.addresses()
    }

    /// Lets who serves finish, and closes the sockets: another server may have the addresses.
    fn quit(&mut self) {
        self.serving.release(self.binaries.new_one().is_some(), self.binaries.take_sessions());
        if let Some(links) = self.serving.links() {
            links.leave();
        }
        self.close_sockets();
    }

    fn close_sockets(&mut self) {
        self.serving.close_sockets();
        let sockets = std::mem::take(&mut self.sockets);
        match self.binaries.new_one() {
            Some(_) => self.leftover_files.add(sockets.files()),
            None => self.leftover_files.add(sockets.remove_files(&self.console)),
        }
    }

    /// Takes note of every child that has ended; under process number 1 there may be others than ours.
    fn reap(&mut self) {
        // A server without worker processes has no children of its own, only programs of its modules, which wait for
        // them.
        if !self.serving.has_children() && !getpid().is_init() {
            return;
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if !self.serving.child_ended(pid, status, &self.console) && self.binaries.new_one() == Some(pid) {
                self.new_binary_ended(status);
            }
        }
    }

    /// Ends everything that still runs, and writes the logs to their end.
    fn end(mut self) {
        // No client is accepted any more, and waiting clients must not wake the master all the time.
        self.control = None;
        if let Some(api) = self.control_api.take() {
            api.close(self.binaries.new_one().is_some());
        }
        self.notify = Notify::default();
        self.serving.stop();
        self.close_sockets();
        while !self.serving.is_over() && self.wait().is_ok() {
            // Other signals are dropped, because the master is about to end.
            while self.next_signal().is_some() {}
            self.reap();
            self.serving.tick(&self.console);
        }
        drop(self.serving);
        self.leftover_files.remove(&self.console);
        drop(self.pid.take());
        worker::say_exit(&self.sinks, &self.console);
    }
}
