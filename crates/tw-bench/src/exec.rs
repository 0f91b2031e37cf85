//! `xtask bench exec [--cpu N] [--cgroup DIR]… [--hide-auxv] -- PROGRAM ARGS`: sets affinity, cgroups and limits, then
//! executes the program.
//!
//! A process started this way has its core, its cgroups and its limit of open files from its first instruction on, and
//! the process id its starter knows.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::Outcome;

/// Path of this program in the kernel, valid even after a build has replaced the file.
pub(super) const SELF: &str = "/proc/self/exe";

/// Pages of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Pages {
    /// Also huge ones, as the allocator likes.
    #[default]
    Any,
    /// Small pages only: resident memory is then memory in use, not rounded to 2 MiB.
    Small,
}

/// A place to run in.
#[derive(Debug, Clone, Default)]
pub(super) struct RunPlacement {
    /// Pages of memory the program's allocator may ask for.
    pub(super) pages: Pages,
    /// Core, or all.
    pub(super) cpu: Option<usize>,
    /// Directories of cgroups to enter.
    pub(super) cgroups: Vec<String>,
    /// Makes `prctl(PR_GET_AUXV)` fail, so that programs read `/proc/self/auxv` instead. Valgrind emulates the file, but
    /// not the call: the kernel's answer names a vDSO that valgrind has unmapped.
    pub(super) hides_auxv: bool,
}

impl RunPlacement {
    /// A place on one core.
    pub(super) fn on(cpu: usize) -> Self {
        Self { cpu: Some(cpu), ..Self::default() }
    }

    /// The command that runs `program` in this place; arguments may be added.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(SELF);
        command.args(["bench", "exec"]);
        if let Some(cpu) = self.cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        for cgroup in &self.cgroups {
            command.args(["--cgroup", cgroup]);
        }
        if self.hides_auxv {
            command.arg("--hide-auxv");
        }
        command.arg("--").arg(program);
        if self.pages == Pages::Small {
            command.env("MIMALLOC_ALLOW_THP", "0");
        }
        command
    }
}

/// Takes the place and becomes the program; returns only with an error.
pub(super) fn run(args: &[String]) -> Outcome {
    let mut args = args.iter();
    loop {
        let word = args.next().ok_or("no program")?;
        let mut value = || args.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--cpu" => pin(value()?.parse()?)?,
            "--cgroup" => {
                let procs = Path::new(value()?).join("cgroup.procs");
                fs::write(&procs, "0").map_err(|e| format!("{}: {e}", procs.display()))?;
            }
            "--hide-auxv" => hide_auxv()?,
            "--" => break,
            _ => return Err(format!("unknown option {word}").into()),
        }
    }
    raise_open_files()?;
    let program = args.next().ok_or("no program")?;
    let error = Command::new(program).args(args).exec();
    Err(format!("{program}: {error}").into())
}

/// Lets `prctl(PR_GET_AUXV)` fail in this process and in the programs that it becomes.
fn hide_auxv() -> Outcome {
    /// Number of the option (Linux 6.4).
    const PR_GET_AUXV: u64 = 0x4155_5856;
    #[cfg(target_arch = "x86_64")]
    const SYS_PRCTL: i64 = 157;
    #[cfg(not(target_arch = "x86_64"))]
    const SYS_PRCTL: i64 = 167;
    let option = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, PR_GET_AUXV)?;
    let rules = [(SYS_PRCTL, vec![SeccompRule::new(vec![option])?])].into();
    let action = SeccompAction::Errno(Errno::INVAL.raw_os_error().cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

/// Raises the limit of open files of this process as far as its user may, and as far as any measurement needs it.
pub(super) fn raise_open_files() -> Outcome<u64> {
    /// A proxy with 10,000 tunnels has two for each.
    const WANTED: u64 = 65_536;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let more = Rlimit { current: Some(WANTED), maximum: Some(WANTED) };
    // Only with CAP_SYS_RESOURCE.
    if maximum.is_some_and(|maximum| maximum < WANTED) && setrlimit(Resource::Nofile, more).is_ok() {
        return Ok(WANTED);
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX))
}

/// Runs `work` on a thread of its own, on this core.
pub(super) fn on_core<T: Send>(cpu: usize, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    let joined = std::thread::scope(|scope| {
        let worker = scope.spawn(|| pin(cpu).and_then(|()| work()).map_err(|error| error.to_string()));
        worker.join().unwrap_or_else(|_| Err("the load panicked".to_owned()))
    });
    Ok(joined?)
}

/// Lets the calling thread run on one core only.
pub(super) fn pin(cpu: usize) -> Outcome {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("no such core: {cpu}").into());
    }
    set.set(cpu);
    Ok(sched_setaffinity(None, &set).map_err(|e| format!("core {cpu}: {e}"))?)
}
