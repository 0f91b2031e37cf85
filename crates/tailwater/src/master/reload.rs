//! HUP: the configuration is read again and replaces the old one, or nothing changes.
//!
//! Everything that can fail is done first, beside the running server: loading, logs, directories, sockets, and in the
//! worker process pools and new loops. Then the loops switch. A request keeps the configuration it began with; the next
//! one of its connection has the new one. A change that a running process cannot make is served by a new process, while
//! the old one finishes.

use std::sync::Arc;

use tailwater_commands::configuration::bytes_path::path;
use tailwater_commands::output::console::Fault;
use tw_app::Config;
use tw_core::process::MainSettings;
use tw_log::Level;

use super::Master;
use super::notify::{self, Reloaded};
use super::pid::PidFile;
use super::serving::{Adopted, Running};
use crate::sockets::Sockets;

impl Master {
    // DIFF(nginx): connections outlive a reload, so worker_shutdown_timeout does not end them then.
    /// Reads the configuration again. Returns true and the messages if it was taken over; after a fault everything is
    /// as before.
    pub(super) fn reload(&mut self) -> (bool, Vec<Fault>) {
        self.notify.reloading();
        self.console.begin_record();
        let running = Running {
            mode: self.mode,
            source: &self.source,
            console: &self.console,
            sinks: &self.sinks,
            main: &self.main,
            sockets: &self.sockets,
            locks: &self.locks,
            pid: self.pid.as_ref(),
            has_control_api: self.control_api.is_some(),
            sign_interval: self.notify.sign_interval(),
        };
        let done = self.serving.reload(&running);
        let done = done.map(|adopted| self.adopt(adopted));
        match &done {
            Ok(()) => {
                let addresses = notify::addresses(self.addresses().count());
                let text = format_args!("the configuration is taken over, serving on {addresses}");
                self.console.report(Level::Notice, text);
            }
            Err(fault) => {
                if let Some(fault) = fault {
                    self.console.fault(fault);
                }
                self.console.report(Level::Notice, format_args!("the configuration stays as it was"));
            }
        }
        self.count_reload(done.is_ok());
        let said = self.console.end_record();
        let why =
            said.iter().min_by_key(|fault| fault.level).map_or("see the error log", |fault| &fault.message);
        self.notify.reloaded(match &done {
            Ok(()) => Reloaded::Taken(self.addresses().count()),
            Err(_) => Reloaded::Refused(why),
        });
        (done.is_ok(), said)
    }

    /// Counts a reload, for metrics.
    pub(super) fn count_reload(&mut self, is_taken_over: bool) {
        self.reloads.add(is_taken_over, tw_rt::clock::unix().secs.unsigned_abs());
        self.serving.set_reloads(self.reloads);
    }

    /// Puts what a reload has opened in the place of what there was.
    fn adopt(&mut self, Adopted { main, sockets, locks, pid, texts, log }: Adopted) {
        self.console.log_to(log);
        self.locks = locks;
        if let (Some(api), Some(texts)) = (&mut self.control_api, texts) {
            api.set_files(texts);
        }
        for (name, _) in [
            ("daemon", self.main.daemon != main.daemon),
            ("master_process", self.main.master_process != main.master_process),
        ]
        .iter()
        .filter(|(_, changed)| *changed)
        {
            let text = format_args!("\"{name}\" takes effect when the server is started, not on reload");
            self.console.report(Level::Warn, text);
        }
        self.leftover_files.add(sockets.replace(&self.sockets, &self.console));
        self.sockets = sockets;
        if let Some(pid) = pid {
            self.pid = Some(pid);
        }
        // Settings that cannot change on reload keep their values.
        self.main = MainSettings { master_process: self.main.master_process, ..main };
        self.watch.follow(self.serving.watched_certificates(), &self.console);
    }
}

impl Running<'_> {
    /// Opens sockets for a configuration, and the pid file if it has another name.
    pub(super) fn open(&self, config: &Config) -> Result<(Arc<Sockets>, Option<PidFile>), Option<Fault>> {
        let Self { console, main, sockets, pid, .. } = self;
        let next = sockets.next(&config.listens, config.main.worker_count(), console).ok_or(None)?;
        let moved = pid.is_some() && *config.main.pid != *main.pid;
        let pid = moved.then(|| PidFile::create(path(&config.main.pid), "", console)).transpose();
        let pid = pid.inspect_err(|_| next.remove_files_but(sockets, console))?;
        Ok((Arc::new(next), pid))
    }
}

/// Returns `true` if a running process cannot adopt the difference: its user, its rights.
pub(super) fn needs_new_process(old: &MainSettings, new: &MainSettings) -> bool {
    let fixed = |main: &MainSettings| {
        (
            main.user.clone(),
            main.working_directory.clone(),
            main.env.clone(),
            main.rlimit_nofile,
            main.rlimit_core,
            main.priority,
            main.memory_lock,
        )
    };
    fixed(old) != fixed(new)
}
