//! The loop guard: a seccomp filter on a loop's thread that lets through only system calls that cannot wait for a
//! file system, for time, or for another process. The kernel itself proves that the disk never stops the loop.
//!
//! Allowed are: sockets, epoll, the loop's own wake-up, memory without a file behind it, locks, clocks, and
//! of files only what answers from memory or not at all: `openat2` (with `RESOLVE_CACHED`, which the filter cannot
//! see, as that flag lies behind a pointer), `preadv2` with `RWF_NOWAIT`, `fstat` and `close`. Bytes go to sockets
//! by `sendto` and `sendmsg` only, because those fail on files; `read` and `write` pass with the 8 bytes of an
//! eventfd, and `write` to standard error for the last words of a panic. `sendfile` passes only where the loop is told
//! to send files that are locked in memory ([`SendFile`]).
//!
//! Not seen by the filter are: a socket that was left blocking, a Unix socket path on a slow disk, a page fault on
//! mapped or swapped memory. The stall watch sees those.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use tw_sys::nr;

/// `loop_guard`: what happens when a loop makes a system call that may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopGuard {
    /// No filter.
    #[default]
    Off,
    /// The call is made, and the kernel's audit log names it.
    Log,
    /// The process names the call on standard error and aborts. For tests: there, a wait is a bug.
    Enforce,
}

/// Use of `sendfile` by a loop. `sendfile` waits for a page that is not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendFile {
    /// Never used.
    #[default]
    Never,
    /// Used for files that are locked in memory.
    Locked,
}

/// System calls that pass whatever their arguments are.
const ALLOWED: &[i64] = &[
    // Events and the wake-up of the loop.
    nr::SYS_epoll_create1,
    nr::SYS_epoll_ctl,
    nr::SYS_epoll_pwait,
    nr::SYS_epoll_pwait2,
    nr::SYS_eventfd2,
    // Sockets; all of them are non-blocking.
    nr::SYS_accept4,
    nr::SYS_bind,
    nr::SYS_connect,
    nr::SYS_getpeername,
    nr::SYS_getsockname,
    nr::SYS_getsockopt,
    nr::SYS_listen,
    nr::SYS_recvfrom,
    nr::SYS_recvmmsg,
    nr::SYS_recvmsg,
    nr::SYS_sendmmsg,
    nr::SYS_sendmsg,
    nr::SYS_sendto,
    nr::SYS_setsockopt,
    nr::SYS_shutdown,
    nr::SYS_socket,
    // Descriptors.
    nr::SYS_close,
    nr::SYS_dup,
    nr::SYS_fstat,
    nr::SYS_openat2,
    // Memory.
    nr::SYS_brk,
    nr::SYS_madvise,
    nr::SYS_mprotect,
    nr::SYS_mremap,
    nr::SYS_munmap,
    // Locks and the end of threads and processes.
    nr::SYS_exit,
    nr::SYS_exit_group,
    nr::SYS_futex,
    nr::SYS_getcpu,
    nr::SYS_getpid,
    nr::SYS_gettid,
    nr::SYS_membarrier,
    nr::SYS_restart_syscall,
    nr::SYS_rseq,
    nr::SYS_rt_sigaction,
    nr::SYS_rt_sigprocmask,
    nr::SYS_rt_sigreturn,
    nr::SYS_sched_yield,
    nr::SYS_sigaltstack,
    nr::SYS_tgkill,
    // musl's `abort` ends the process by this call.
    #[cfg(target_env = "musl")]
    nr::SYS_tkill,
    // Clocks, where they are no plain memory reads, and randomness.
    nr::SYS_clock_gettime,
    nr::SYS_getrandom,
    nr::SYS_gettimeofday,
    // The alarm of the loop's timers.
    nr::SYS_timerfd_settime,
    // Resource usage of this thread.
    nr::SYS_getrusage,
    #[cfg(target_arch = "x86_64")]
    nr::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    nr::SYS_time,
];

/// A system call that passes when the argument at `index` is one of `values`, looking only at the bits in `mask`.
struct Conditional {
    call: i64,
    index: u8,
    mask: u64,
    values: &'static [u64],
}

const WHOLE: u64 = u32::MAX as u64;

const CONDITIONAL: &[Conditional] = &[
    // An eventfd carries 8 bytes.
    Conditional { call: nr::SYS_read, index: 2, mask: u64::MAX, values: &[8] },
    Conditional { call: nr::SYS_write, index: 2, mask: u64::MAX, values: &[8] },
    Conditional { call: nr::SYS_write, index: 0, mask: WHOLE, values: &[nr::STDERR_FILENO as u64] },
    // Reads from the page cache only.
    Conditional {
        call: nr::SYS_preadv2,
        index: 5,
        mask: nr::RWF_NOWAIT as u64,
        values: &[nr::RWF_NOWAIT as u64],
    },
    // Reads from a file system in memory are marked by this flag, because tmpfs and procfs refuse `RWF_NOWAIT`.
    Conditional { call: nr::SYS_preadv2, index: 5, mask: u64::MAX, values: &[nr::RWF_HIPRI as u64] },
    // Only as a look at names that an open file pins: see `tw_disk::Disk::recheck_now`.
    Conditional {
        call: nr::SYS_statx,
        index: 2,
        mask: nr::AT_STATX_DONT_SYNC as u64,
        values: &[nr::AT_STATX_DONT_SYNC as u64],
    },
    // The allocator names its mappings.
    Conditional { call: nr::SYS_prctl, index: 0, mask: WHOLE, values: &[nr::PR_SET_VMA as u64] },
    // Memory, not files.
    Conditional {
        call: nr::SYS_mmap,
        index: 3,
        mask: nr::MAP_ANONYMOUS as u64,
        values: &[nr::MAP_ANONYMOUS as u64],
    },
    Conditional {
        call: nr::SYS_fcntl,
        index: 1,
        mask: WHOLE,
        values: &[
            nr::F_DUPFD_CLOEXEC as u64,
            nr::F_GETFD as u64,
            nr::F_GETFL as u64,
            nr::F_SETFD as u64,
            nr::F_SETFL as u64,
        ],
    },
    Conditional {
        call: nr::SYS_ioctl,
        index: 1,
        mask: WHOLE,
        values: &[nr::FIONBIO, nr::FIONREAD, nr::TIOCOUTQ],
    },
];

/// A compiled filter, ready to be put on a thread.
#[derive(Debug)]
pub(crate) struct Filter(Option<BpfProgram>);

impl LoopGuard {
    /// Compiles the filter and, for [`Enforce`](Self::Enforce), sets up the handler of the process that reports.
    pub(crate) fn prepare(self, send_file: SendFile) -> io::Result<Filter> {
        let caught = match self {
            LoopGuard::Off => return Ok(Filter(None)),
            LoopGuard::Log => SeccompAction::Log,
            LoopGuard::Enforce => {
                tw_sys::sigsys::abort_with_name()?;
                SeccompAction::Trap
            }
        };
        compile(caught, send_file).map(|program| Filter(Some(program))).map_err(io::Error::other)
    }
}

impl Filter {
    /// Puts the filter on the calling thread, for good.
    pub(crate) fn install(&self) -> io::Result<()> {
        // rustix looks for the kernel's vDSO when a clock is first read, by a call that the filter refuses.
        let _ = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        match &self.0 {
            Some(program) => seccompiler::apply_filter(program).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

fn compile(caught: SeccompAction, send_file: SendFile) -> Result<BpfProgram, seccompiler::BackendError> {
    // A call without rules always matches; one with rules matches when any of them does.
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    if send_file == SendFile::Locked {
        rules.insert(nr::SYS_sendfile, Vec::new());
    }
    for conditional in CONDITIONAL {
        let rules = rules.entry(conditional.call).or_default();
        for &value in conditional.values {
            let condition = SeccompCondition::new(
                conditional.index,
                SeccompCmpArgLen::Qword,
                SeccompCmpOp::MaskedEq(conditional.mask),
                value,
            )?;
            rules.push(SeccompRule::new(vec![condition])?);
        }
    }
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, caught, SeccompAction::Allow, arch)?.try_into()
}
