//! Worker processes as the serving part.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::process::{Pid, WaitStatus};
use tailwater_commands::cli::Purge;
use tailwater_commands::configuration::certificate_watch::WatchedCertificates;
use tailwater_commands::configuration::conf::Loaded;
use tailwater_commands::configuration::directories::DirectoryLocks;
use tailwater_commands::configuration::process::{Privileges, Process};
use tailwater_commands::configuration::{created_files, member_directories, owned_files};
use tailwater_commands::output::console::{Console, Fault};
use tw_base::Errno;
use tw_conf::MemoryFiles;
use tw_core::event_loop::Reloads;
use tw_log::{Level, Sinks, open_log};

use super::start::texts;
use super::{AdoptionMode, Workers};
use crate::ipc::channel::{Keys, SEND_TIMEOUT, WorkerCommand};
use crate::master::Mode;
use crate::master::child::Child;
use crate::master::control::Client;
use crate::master::control_api::config_files;
use crate::master::handover::{Handover, Opened};
use crate::master::logs::{self, LogFiles};
use crate::master::processes::{ProcessState, Processes};
use crate::master::reload::needs_new_process;
use crate::master::serving::{Adopted, Running, Serving};
use crate::master::timeouts::STOP_TIMEOUT;
use crate::script_check;

impl Serving for Workers {
    fn reload(&mut self, running: &Running<'_>) -> Result<Adopted, Option<Fault>> {
        let console = running.console;
        let (loaded, files) = running.source.load_and_record(console).ok_or(None)?;
        loaded.check_directories(console).ok_or(None)?;
        script_check::check(&loaded.config)?;
        let process = Process::of(&loaded, Privileges::GiveUp, console).ok_or(None)?;
        let texts = running.has_control_api.then(|| config_files(loaded.sources()));
        let Loaded { config, .. } = loaded;
        created_files::make_directories(&config, running.source.prefix())?;
        let logs = logs::open_files(config.logs.paths())?;
        let log = logs::of_master(&config.main.error_log, &logs, running.sinks)?;
        let given = owned_files::make_temp_paths(config.temp_paths(), process.identity.as_ref())?;
        member_directories::make(&config, process.identity.as_ref(), console);
        let locks = DirectoryLocks::take(&config, running.locks, console)?;
        let (sockets, pid) = running.open(&config)?;
        let main = config.main.clone();
        let source = running.source.clone();
        let way = if needs_new_process(running.main, &main) {
            AdoptionMode::NewProcess
        } else {
            AdoptionMode::InPlace
        };
        let keys = Keys::default();
        let opened = Opened { config, process, sockets: sockets.clone(), files, logs, keys };
        let is_daemon = running.mode == Mode::Background;
        let handover = Handover::of(opened, source, is_daemon, running.sign_interval);
        self.change(handover, way, console)
            .inspect_err(|_| sockets.remove_files_but(running.sockets, console))?;

        // No step fails from here on.
        given.keep();
        running.sinks.report_to(log.clone());
        // As in nginx: a log that was moved away is created again.
        running.sinks.reopen();
        Ok(Adopted { main, sockets, locks, pid, texts, log })
    }

    fn purge(&mut self, client: Client, order: Purge) {
        match &mut self.current {
            Some(child) => child.purge(client, order),
            None => client.respond(false, &[Fault::emerg("no worker process serves")]),
        }
    }

    fn send_metrics(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        match &self.current {
            Some(child) => child.order(&WorkerCommand::SendMetrics, &[client]),
            None => Err(io::Error::other("no worker process serves")),
        }
    }

    fn send_fleet_status(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        match &self.current {
            Some(child) => child.order(&WorkerCommand::SendFleetStatus, &[client]),
            None => Err(io::Error::other("no worker process serves")),
        }
    }

    fn release(&mut self, is_replaced: bool, next: Option<OwnedFd>) {
        self.again_at = None;
        // The worker keeps the time itself, unless it hangs.
        let timeout = self.handover.shutdown_timeout.map(|timeout| timeout.saturating_add(STOP_TIMEOUT));
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(mut child) = self.current.take() {
            self.links.set_state(child.links.own, ProcessState::Leaving);
            child.tell_of_processes(&self.links);
            let receiver = self.links.receiver().filter(|_| child.links.own.is_some());
            let is_replaced = is_replaced && receiver.is_none() && !self.links.has_new();
            let is_told =
                next.map_or(Ok(()), |next| child.order(&WorkerCommand::HandOverSessions, &[next.as_fd()]));
            if is_told.and_then(|()| child.order(&WorkerCommand::Quit { is_replaced }, &[])).is_err() {
                child.hang_up();
            }
            child.stop_listening();
            child.until = until;
            self.leaving.push(child);
        }
    }

    fn resume(&mut self, console: &Console) {
        self.start_missing(console);
    }

    fn links(&mut self) -> Option<&mut Processes> {
        Some(&mut self.links)
    }

    fn keys(&self) -> Keys {
        self.handover.keys.borrow().clone()
    }

    fn processes(&self) -> Vec<(Pid, bool)> {
        let current = self.current.iter().map(|child| (child.pid(), false));
        current.chain(self.leaving.iter().map(|child| (child.pid(), true))).collect()
    }

    fn has_children(&self) -> bool {
        true
    }

    fn child_ended(&mut self, pid: Pid, status: WaitStatus, console: &Console) -> bool {
        self.ended(pid, status, console)
    }

    fn set_reloads(&mut self, reloads: Reloads) {
        self.reloads = reloads;
        self.send_reloads();
    }

    fn watched_certificates(&self) -> WatchedCertificates {
        self.handover.used.clone()
    }

    fn renew(&mut self, files: MemoryFiles, console: &Console) -> Result<(), String> {
        self.handover.renew(&files);
        // A process that is started later reads the new files from the handover.
        let Some(child) = &self.current else { return Ok(()) };
        if let Err(error) = child.order(&WorkerCommand::Renew(texts(&files)), &[]) {
            let pid = child.pid();
            let errno = Errno::from(&error);
            console.report(
                Level::Alert,
                format_args!("no message can be sent to worker process {pid} ({errno})"),
            );
            self.remove_current(|child| child.hang_up(), console);
        }
        Ok(())
    }

    fn reopen_logs(&mut self, sinks: &Sinks, console: &Console) {
        let logs = self.handover.logs.iter().filter_map(|(path, old)| {
            let new = open_log(path).map_err(|error| Fault::emerg(error.to_string()));
            let log = new.inspect_err(|fault| console.fault(fault)).or_else(|_| old.try_clone());
            Some((path.clone(), log.ok()?))
        });
        let logs: LogFiles = logs.collect();
        sinks.hand_over(logs.iter().filter_map(|(path, log)| Some((path.clone(), log.try_clone().ok()?))));
        self.reopen(logs, console);
    }

    fn close_sockets(&mut self) {
        self.handover.sockets = Arc::default();
    }

    fn stop(&mut self) {
        self.again_at = None;
        self.leaving.extend(self.current.take());
        let now = Instant::now();
        for child in &mut self.leaving {
            if child.order_until(now + SEND_TIMEOUT, &WorkerCommand::Stop, &[]).is_err() {
                child.kill();
            }
            child.until = Some(now + STOP_TIMEOUT);
        }
    }

    fn tick(&mut self, console: &Console) -> bool {
        let is_heard = self.listen(console);
        self.follow_processes();
        self.expire(Instant::now(), console);
        is_heard
    }

    fn is_turning(&self, _now: Instant) -> bool {
        self.current.is_none()
    }

    fn deadline(&self) -> Option<Instant> {
        let look = self.current.as_ref().map(|child| child.silence.next_look());
        let stuck = self.leaving.iter().map(Child::next_look);
        let scripts = self.leaving.iter().chain(&self.current).filter_map(|child| child.scripts.deadline());
        self.leaving
            .iter()
            .filter_map(|child| child.until)
            .chain(stuck)
            .chain(self.again_at)
            .chain(look)
            .chain(scripts)
            .min()
    }

    fn is_over(&self) -> bool {
        self.current.is_none() && self.leaving.is_empty() && self.again_at.is_none()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.current.as_ref().map(AsFd::as_fd)
    }

    fn poll_fds_of_links(&self) -> Vec<PollFd<'_>> {
        self.links.poll_fds().collect()
    }
}

impl Workers {
    /// Has all processes go on in these log files.
    pub(super) fn reopen(&mut self, logs: Vec<(PathBuf, OwnedFd)>, console: &Console) {
        self.handover.logs = logs;
        let names = self.handover.logs.iter().map(|(name, _)| name.as_os_str().as_bytes().to_vec());
        let order = WorkerCommand::Reopen(names.collect());
        let fds: Vec<_> = self.handover.logs.iter().map(|(_, file)| file.as_fd()).collect();
        let mut is_lost = false;
        let until = Instant::now() + SEND_TIMEOUT;
        for child in self.leaving.iter().chain(&self.current) {
            if let Err(error) = child.order_until(until, &order, &fds) {
                let pid = child.pid();
                let errno = Errno::from(&error);
                console.report(
                    Level::Alert,
                    format_args!("no message can be sent to worker process {pid} ({errno})"),
                );
                is_lost = self.current.as_ref().is_some_and(|current| current.pid() == pid);
            }
        }
        if is_lost {
            self.remove_current(|child| child.hang_up(), console);
        }
    }
}
