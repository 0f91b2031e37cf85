//! `master_process off`: the loops of this process serve.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use tailwater_commands::cli::Purge;
use tailwater_commands::configuration::certificate_watch::WatchedCertificates;
use tailwater_commands::configuration::conf::Loaded;
use tailwater_commands::configuration::directories::DirectoryLocks;
use tailwater_commands::configuration::process::{self, Privileges, Process};
use tailwater_commands::configuration::{created_files, member_directories, owned_files};
use tailwater_commands::output::console::{Console, Fault};
use tw_conf::MemoryFiles;
use tw_core::event_loop::Reloads;
use tw_log::{ErrorLog, Level, Sinks};

use super::control::Client;
use super::control_api::config_files;
use super::reload::needs_new_process;
use super::serving::{Adopted, Running, Serving};
use super::{Mode, logs};
use crate::script_check;
use crate::worker::Server;
use crate::worker::purging::PurgeOutcome;
use crate::worker::sandbox::{ProcessRole, SandboxRules};

/// Loops of this process.
pub(super) struct InProcess {
    pub(super) server: Server,
    /// Rights of this process.
    pub(super) rules: SandboxRules,
}

impl Serving for InProcess {
    fn reload(&mut self, running: &Running<'_>) -> Result<Adopted, Option<Fault>> {
        let console = running.console;
        let source = running.source.clone();
        let speaker = console.clone();
        let (loaded, said) = self.server.load(move |previous| {
            let loaded = source.load(previous, &speaker);
            (loaded, speaker.end_record())
        });
        console.go_on_recording(said);
        let loaded = loaded.ok_or(None)?;
        loaded.check_directories(console).ok_or(None)?;
        script_check::check(&loaded.config)?;
        let process = Process::of(&loaded, Privileges::Keep, console).ok_or(None)?;
        let texts = running.has_control_api.then(|| config_files(loaded.sources()));
        let Loaded { config, .. } = loaded;
        // DIFF(nginx): rights only become fewer: what this configuration needs more of, another process would have.
        if let Some(what) = self.rules.lacks(&SandboxRules::of(&config, ProcessRole::Alone)) {
            let fault = Fault::emerg(format!("the sandbox of the running process does not allow {what}"));
            return Err(Some(fault.hint("restart the server, or start it with \"sandbox off\"")));
        }
        if running.mode != Mode::Session {
            created_files::make_directories(&config, running.source.prefix())?;
        }
        logs::open_here(&config, running.sinks)?;
        if running.mode != Mode::Session {
            // The user cannot change on reload.
            owned_files::make_temp_paths(config.temp_paths(), process.identity.as_ref())?.keep();
            member_directories::make(&config, process.identity.as_ref(), console);
        }
        let locks = DirectoryLocks::take(&config, running.locks, console)?;
        let (sockets, pid) = running.open(&config)?;
        process::set_limits(&config.main, console);
        let main = config.main.clone();
        self.server
            .change(config, sockets.clone(), process.affinity, running.sinks, console)
            .inspect_err(|_| sockets.remove_files_but(running.sockets, console))?;

        // No step fails from here on.
        if needs_new_process(running.main, &main) {
            let text = "a change of \"user\", \"working_directory\" or \"env\" takes effect when the server is started";
            console.report(Level::Warn, format_args!("{text}"));
        }
        let log = (*self.server.generation().error_log).clone();
        Ok(Adopted { main, sockets, locks, pid, texts, log })
    }

    fn purge(&mut self, client: Client, order: Purge) {
        self.server.purge(order, |PurgeOutcome { is_done, said }| {
            let level = if is_done { Level::Notice } else { Level::Error };
            let said: Vec<_> = said.into_iter().map(|said| Fault { level, ..Fault::emerg(said) }).collect();
            client.respond(is_done, &said);
        });
    }

    fn send_metrics(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        self.server.send_metrics(client.try_clone_to_owned()?);
        Ok(())
    }

    fn send_fleet_status(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        self.server.send_fleet_status(client.try_clone_to_owned()?);
        Ok(())
    }

    fn connections(&self) -> u64 {
        self.server.connections()
    }

    fn error_log(&self) -> Option<ErrorLog> {
        Some((*self.server.generation().error_log).clone())
    }

    fn release(&mut self, _is_replaced: bool, _next: Option<OwnedFd>) {
        // A server without worker processes never has a new binary, so there is no process to hand sessions to.
        self.server.release_loops(None);
    }

    fn set_reloads(&mut self, reloads: Reloads) {
        self.server.set_reloads(reloads);
    }

    fn watched_certificates(&self) -> WatchedCertificates {
        let watched = self.server.generation().watched_certificates();
        watched.map(|watched| (watched.files.clone(), watched.version())).collect()
    }

    fn renew(&mut self, files: MemoryFiles, _console: &Console) -> Result<(), String> {
        self.server.renew(files)
    }

    fn reopen_logs(&mut self, _sinks: &Sinks, _console: &Console) {
        // The sinks of this process open their files again by themselves.
        self.server.close_files();
    }

    fn close_sockets(&mut self) {
        self.server.close_sockets();
    }

    fn stop(&mut self) {
        self.server.stop();
    }

    fn tick(&mut self, console: &Console) -> bool {
        self.server.reap(console);
        false
    }

    fn is_turning(&self, now: Instant) -> bool {
        self.server.is_turning(now)
    }

    fn deadline(&self) -> Option<Instant> {
        self.server.deadline()
    }

    fn is_over(&self) -> bool {
        self.server.is_idle()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.server.as_fd())
    }
}
