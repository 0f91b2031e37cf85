//! `sandbox`: rights that the process gives up for good before the first request.
//!
//! ```text
//! capabilities ─► no_new_privs ─► landlock (files, ports, signals) ─► seccomp (system calls)
//! ```
//! Foreign code in the process then has these rights and no others. They are derived from the configuration and can
//! only become fewer, so a configuration that needs more is for another process: see [`SandboxRules::lacks`]. docs/sandbox.md
//! lists what is left to an attacker.

mod places;
mod privileges;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{CWD, Mode, OFlags, openat};
use tailwater_commands::configuration::bytes_path;
use tailwater_commands::configuration::process;
use tailwater_commands::configuration::user::Identity;
use tailwater_commands::output::console::{Console, Fault};
use tw_app::Config;
use tw_base::Errno;
use tw_core::pools::UringUse;
use tw_core::process::Sandbox;
use tw_core::reach::BindsTo;
use tw_disk::AllowedPaths;
use tw_log::Level;
use tw_rt::confine::{self, ConfineOptions};

use crate::faults;

use places::{Origin, PathRule, PathRules};

/// Newest version of landlock whose rights are known here; an older kernel enforces those it knows.
const NEWEST: ABI = ABI::V9;

/// Rights of reading, which only `sandbox on` restricts.
const READ: BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// Role of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    /// Serves, and a master opens sockets and logs for it.
    Worker,
    /// Only process, which has to open new files and sockets at a reload.
    Alone,
}

/// Rights of a process that serves one configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxRules {
    sandbox: Sandbox,
    role: ProcessRole,
    /// Rights to files that are restricted; all others are free.
    restricted: BitFlags<AccessFs>,
    places: PathRules,
    connects: bool,
    binds: Option<BindsTo>,
    io_uring: bool,
}

/// Restriction of files by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Free,
    Restricted,
}

/// Messages about the result.
#[derive(Debug, Default)]
pub(crate) struct SandboxReport(Vec<(Level, String)>);

impl SandboxReport {
    /// Writes it into the log.
    pub(crate) fn log_to(&self, console: &Console) {
        self.0.iter().for_each(|(level, message)| console.report(*level, format_args!("{message}")));
    }

    fn add(&mut self, level: Level, message: impl Into<String>) {
        self.0.push((level, message.into()));
    }
}

impl SandboxRules {
    /// Rights that a process in `role` needs to serve `config`. Reads the disk, with the rights of the caller.
    pub(crate) fn of(config: &Config, role: ProcessRole) -> Self {
        let sandbox = config.main.sandbox;
        let mut restricted = AccessFs::from_all(NEWEST);
        if sandbox != Sandbox::On || role == ProcessRole::Alone {
            restricted &= !READ;
        }
        if config.reach.changes_anything() {
            // Besides reading, only execution and device commands stay restricted, because the modules may write
            // anywhere.
            restricted &= READ | AccessFs::Execute | AccessFs::IoctlDev;
        }
        Self {
            sandbox,
            role,
            restricted,
            places: PathRules::of(config, role, restricted),
            connects: config.reach.does_connect(),
            binds: config.reach.does_bind(),
            io_uring: config.ring == UringUse::Used,
        }
    }

    /// Returns `true` if a process under these rules can serve the configuration of `other`, and is as confined as it
    /// requires.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.lacks(other).is_none()
    }

    /// Right of `other` that a process under these rules lacks.
    pub(crate) fn lacks(&self, other: &Self) -> Option<String> {
        if (self.sandbox, self.role) != (other.sandbox, other.role) {
            return Some("another \"sandbox\"".into());
        }
        if other.binds == Some(BindsTo::Any) && self.binds != other.binds {
            return Some("addresses of others that connections come from".into());
        }
        if self.sandbox == Sandbox::Off {
            return None;
        }
        if other.io_uring && !self.io_uring {
            return Some("\"aio on\"".into());
        }
        if other.connects && !self.connects {
            return Some("connections to other servers".into());
        }
        if other.binds > self.binds {
            return Some("addresses that connections come from".into());
        }
        if self.restricted != other.restricted {
            return Some("a sandbox that restricts other uses of files".into());
        }
        let missing = self.places.lacks(&other.places)?;
        Some(format!("{} \"{}\"", missing.purpose(), missing.path.display()))
    }

    /// Becomes `user` for good, if there is one. Before that it narrows what programs started by this process could
    /// ever get, as long as it has the privilege to. The calling thread must be the only one.
    pub(crate) fn become_user(&self, user: Option<&Identity>, console: &Console) -> Result<(), Fault> {
        let over_user = privileges::over_user(self.binds);
        let keep = match user {
            Some(user) if user.uid != 0 => over_user,
            _ => privileges::of(self.role, self.binds),
        };
        if self.sandbox != Sandbox::Off {
            privileges::bound(keep).map_err(|error| failed("prctl(PR_CAPBSET_DROP)", &error))?;
        }
        match user {
            None => Ok(()),
            Some(root) if root.uid == 0 => process::assume(root, console),
            Some(user) => privileges::keep_across(
                over_user,
                |error| failed("keeping capabilities", error),
                || process::assume(user, console),
            ),
        }
    }

    /// Gives up everything else, for good: once in a process, when it is the user it will be, has its sockets and logs,
    /// and before it has threads.
    pub(crate) fn enforce(&self) -> Result<SandboxReport, Fault> {
        faults::prepare();
        // Threads that run already would not be restricted. Without /proc they are unknown.
        if self.sandbox != Sandbox::Off
            && fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1)
        {
            return Err(Fault::emerg("sandbox: other threads are running"));
        }
        let (report, files) = self.enforce_here()?;
        if files == Files::Restricted {
            tw_disk::set_allowed_paths(self.allowed()).map_err(|error| failed("getgroups()", &error))?;
        }
        Ok(report)
    }

    /// Places where files may be read and written, for messages.
    pub(crate) fn allowed(&self) -> AllowedPaths {
        let restricted = self.restricted_files();
        let places = |is_meant: fn(&PathRule) -> bool| {
            let places =
                self.places.iter().filter(|place| place.origin == Origin::Configuration && is_meant(place));
            places.map(|place| place.path.clone()).collect()
        };
        AllowedPaths {
            reading: restricted.intersects(READ).then(|| places(PathRule::is_read)),
            writing: restricted.contains(AccessFs::WriteFile).then(|| places(PathRule::is_written)),
        }
    }

    fn restricted_files(&self) -> BitFlags<AccessFs> {
        match self.sandbox {
            Sandbox::Off => BitFlags::EMPTY,
            Sandbox::Auto | Sandbox::On => self.restricted,
        }
    }

    /// Line of `-t` about the sandbox, if there is one. A start makes the temporary directories of `config`, so they count as existing.
    pub(crate) fn describe(&self, config: &Config) -> Option<String> {
        let word = match self.sandbox {
            Sandbox::Off => return None,
            Sandbox::Auto => "auto",
            Sandbox::On => "on",
        };
        let is_made = |path: &Path| {
            config.temp_paths().iter().any(|temp| bytes_path::path(temp.path.to_bytes()) == path)
        };
        let AllowedPaths { mut reading, mut writing } = self.allowed();
        for places in [&mut reading, &mut writing].into_iter().flatten() {
            places
                .extend(self.places.missing().map(|(path, _)| path.to_owned()).filter(|path| is_made(path)));
            places.sort();
        }
        let absolute =
            |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        let part = |what: &str, places: Option<Vec<PathBuf>>| {
            let places: Vec<_> = places?.iter().map(|place| absolute(place)).collect();
            Some(if places.is_empty() {
                format!("{what} nowhere")
            } else {
                format!("{what} only in {}", places.join(", "))
            })
        };
        let allowed: Vec<_> = [part("read", reading), part("write", writing)].into_iter().flatten().collect();
        let mut line = if allowed.is_empty() {
            format!("\"sandbox {word}\" lets the running server read and write files everywhere")
        } else {
            format!("\"sandbox {word}\" lets the running server {}", allowed.join(", and "))
        };
        if !allowed.is_empty() && self.role == ProcessRole::Worker {
            line += "; its logs are open already";
        }
        for (path, purpose) in self.places.missing().filter(|(path, _)| !is_made(path)) {
            line += &format!("; {purpose} {} is refused: it does not exist", absolute(path));
        }
        Some(line)
    }

    /// Restricts the calling thread; the filter of system calls is for all threads.
    fn enforce_here(&self) -> Result<(SandboxReport, Files), Fault> {
        let mut report = SandboxReport::default();
        if self.sandbox == Sandbox::Off {
            return Ok((report, Files::Free));
        }
        privileges::give_up(privileges::of(self.role, self.binds))
            .map_err(|error| failed("capset()", &error))?;
        rustix::thread::set_no_new_privs(true)
            .map_err(|errno| failed("prctl(PR_SET_NO_NEW_PRIVS)", &errno.into()))?;
        let files = self.landlock(&mut report)?;
        let needs = ConfineOptions {
            io_uring: self.io_uring,
            listen: self.role == ProcessRole::Alone,
            bind: self.binds.is_some(),
            connect: self.connects,
        };
        if let Err(error) = confine::confine(needs) {
            let message = format!("sandbox: system calls cannot be filtered ({error})");
            match self.sandbox {
                Sandbox::On => return Err(Fault::emerg(message).hint(WITHOUT)),
                Sandbox::Auto | Sandbox::Off => report.add(Level::Notice, message),
            }
        }
        Ok((report, files))
    }

    fn landlock(&self, report: &mut SandboxReport) -> Result<Files, Fault> {
        if self.sandbox == Sandbox::On && self.role == ProcessRole::Alone {
            report.add(
                Level::Warn,
                "\"sandbox on\" does not restrict reading in a single process, which has to read its configuration",
            );
        }
        let status = self.restrict(report);
        let files = match &status {
            Ok((RulesetStatus::NotEnforced, _)) | Err(_) => Files::Free,
            Ok(_) => Files::Restricted,
        };
        let (level, message) = self.check_status(status)?;
        report.add(level, message);
        Ok(files)
    }

    /// Messages about the kernel's results, or the reason why the process must not serve.
    fn check_status(
        &self,
        status: Result<(RulesetStatus, LandlockStatus), RulesetError>,
    ) -> Result<(Level, String), Fault> {
        let message = match status {
            Ok((RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced, status)) => {
                let abi = match status {
                    LandlockStatus::Available { effective_abi, .. } => effective_abi as i32,
                    LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
                };
                return Ok((Level::Info, format!("sandbox: landlock {abi}, {}", self.places)));
            }
            Ok((RulesetStatus::NotEnforced, LandlockStatus::NotEnabled)) => {
                "sandbox: landlock is not enabled in this kernel".to_owned()
            }
            Ok((RulesetStatus::NotEnforced, _)) => "sandbox: this kernel has no landlock".to_owned(),
            Err(error) => format!("sandbox: landlock failed ({error})"),
        };
        match self.sandbox {
            Sandbox::On => Err(Fault::emerg(message).hint(WITHOUT)),
            Sandbox::Auto | Sandbox::Off => {
                Ok((Level::Notice, format!("{message}, files are not restricted")))
            }
        }
    }

    fn restrict(&self, report: &mut SandboxReport) -> Result<(RulesetStatus, LandlockStatus), RulesetError> {
        let mut ruleset = Ruleset::default().handle_access(self.restricted)?;
        if self.role == ProcessRole::Worker && self.binds.is_none() {
            ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
        }
        if !self.connects {
            ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
        }
        // A single process may have to notify an init system, perhaps over an abstract socket.
        ruleset = match self.role {
            ProcessRole::Worker => ruleset.scope(Scope::from_all(NEWEST))?,
            ProcessRole::Alone => ruleset.scope(Scope::Signal)?,
        };
        let mut ruleset = ruleset.create()?;
        for place in self.places.iter() {
            allow(&mut ruleset, place, self.restricted, report);
        }
        for (path, purpose) in self.places.missing() {
            let text =
                format!("sandbox: {purpose} \"{}\" will not be allowed, it does not exist", path.display());
            report.add(Level::Info, text);
        }
        let status = ruleset.restrict_self()?;
        Ok((status.ruleset, status.landlock))
    }
}

/// Advice where the kernel cannot do it.
const WITHOUT: &str = "\"sandbox auto\" goes on without what the kernel cannot do";

/// Allows what a place is for.
fn allow(
    ruleset: &mut RulesetCreated,
    place: &PathRule,
    restricted: BitFlags<AccessFs>,
    report: &mut SandboxReport,
) {
    let rights = place.rights & restricted;
    if rights.is_empty() {
        return;
    }
    let added = open(&place.path).map_err(|error| error.to_string()).and_then(|fd| {
        let added =
            ruleset.add_rule(PathBeneath::new(&fd, rights)).map(|_| ()).map_err(|error| error.to_string());
        if place.path.starts_with("/proc") {
            // A directory of /proc that is not open is made anew when it is looked up, and is another one then.
            std::mem::forget(fd);
        }
        added
    });
    if let Err(error) = added {
        // A pipe or a socket is not restricted by Landlock; a file that is gone cannot be allowed.
        let purpose = place.purpose();
        let path = place.path.display();
        report.add(Level::Info, format!("sandbox: {purpose} \"{path}\" is not allowed ({error})"));
    }
}

fn open(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn failed(call: &str, error: &io::Error) -> Fault {
    Fault::emerg(format!("sandbox: {call} failed ({})", Errno::from(error)))
}
