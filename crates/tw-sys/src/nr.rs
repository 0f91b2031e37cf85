//! Numbers and names of system calls, and of arguments for filters, so that no other crate needs `libc`.
//!
//! The first list holds what a loop may call and what it is likely to be caught calling; nothing depends on its being
//! whole. The second one holds what no thread of a server ever calls.

pub use libc::{
    AF_INET, AF_INET6, AF_UNIX, AT_STATX_DONT_SYNC, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS,
    CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, CLONE_THREAD, ENOSYS, EPERM, F_DUPFD_CLOEXEC, F_GETFD,
    F_GETFL, F_SETFD, F_SETFL, IPPROTO_TCP, IPPROTO_UDP, MAP_ANONYMOUS, MSG_FASTOPEN, PR_SET_VMA, PROT_EXEC,
    RWF_HIPRI, RWF_NOWAIT, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SOCK_RAW, STDERR_FILENO,
};

/// Requests of `ioctl`. glibc passes them on as `unsigned long`, musl as `int`; these have no bit above the 16th.
macro_rules! requests {
    ($($request:ident,)*) => {
        $(#[doc = concat!("`", stringify!($request), "`")] pub const $request: u64 = libc::$request as u64;)*
    };
}

requests! { FIONBIO, FIONREAD, TIOCLINUX, TIOCOUTQ, TIOCSTI, }

macro_rules! numbers {
    ($table:ident: $($number:ident,)*) => {
        pub use libc::{$($number),*};
        static $table: &[(i64, &str)] = &[$((libc::$number, stringify!($number))),*];
    };
}

numbers! { COMMON:
    SYS_accept4, SYS_bind, SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_clone, SYS_clone3,
    SYS_close, SYS_connect, SYS_copy_file_range, SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl,
    SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2, SYS_execve, SYS_exit, SYS_exit_group, SYS_fadvise64,
    SYS_fallocate, SYS_fcntl, SYS_fdatasync, SYS_flock, SYS_fstat, SYS_fsync, SYS_ftruncate, SYS_futex,
    SYS_getdents64, SYS_getpeername, SYS_getpid, SYS_getrandom, SYS_getrusage, SYS_getsockname, SYS_getsockopt,
    SYS_gettid, SYS_gettimeofday, SYS_io_uring_enter, SYS_ioctl, SYS_linkat, SYS_listen, SYS_lseek, SYS_madvise, SYS_membarrier,
    SYS_mkdirat, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_msync, SYS_munmap, SYS_nanosleep, SYS_newfstatat,
    SYS_getcpu, SYS_openat, SYS_openat2, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_pselect6, SYS_pwrite64,
    SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlinkat, SYS_readv, SYS_recvfrom,
    SYS_recvmmsg, SYS_recvmsg, SYS_renameat, SYS_renameat2, SYS_restart_syscall, SYS_rseq,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sched_yield, SYS_sendfile, SYS_sendmmsg,
    SYS_sendmsg, SYS_sendto, SYS_setsockopt, SYS_shutdown, SYS_sigaltstack, SYS_socket, SYS_splice,
    SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync_file_range, SYS_tgkill, SYS_timerfd_settime, SYS_truncate,
    SYS_unlinkat, SYS_utimensat, SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
}

#[cfg(target_arch = "x86_64")]
numbers! { OLD:
    SYS_access, SYS_creat, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_fork, SYS_getdents, SYS_link,
    SYS_lstat, SYS_mkdir, SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename, SYS_rmdir,
    SYS_select, SYS_stat, SYS_symlink, SYS_time, SYS_unlink, SYS_vfork,
}

numbers! { NEVER:
    // Calls about other programs, processes, and users.
    SYS_execveat, SYS_kcmp, SYS_pidfd_getfd, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_process_madvise,
    SYS_process_mrelease, SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_capset,
    SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setregid, SYS_setresgid, SYS_setresuid,
    SYS_setreuid, SYS_setuid,
    // File systems, and files past the rights of their paths.
    SYS_chroot, SYS_fanotify_init, SYS_fanotify_mark, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick,
    SYS_mknodat, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_name_to_handle_at, SYS_nfsservctl,
    SYS_open_by_handle_at, SYS_open_tree, SYS_pivot_root, SYS_quotactl, SYS_quotactl_fd, SYS_setns,
    SYS_swapoff, SYS_swapon, SYS_umount2, SYS_unshare,
    // The machine.
    SYS_acct, SYS_adjtimex, SYS_bpf, SYS_clock_adjtime, SYS_clock_settime, SYS_delete_module,
    SYS_finit_module, SYS_init_module, SYS_kexec_load, SYS_migrate_pages, SYS_move_pages,
    SYS_perf_event_open, SYS_personality, SYS_reboot, SYS_setdomainname, SYS_sethostname, SYS_settimeofday,
    SYS_syslog, SYS_userfaultfd, SYS_vhangup,
    // Keys, queues, segments, and ways of I/O that nothing here goes.
    SYS_add_key, SYS_keyctl, SYS_request_key, SYS_io_cancel, SYS_io_destroy, SYS_io_getevents,
    SYS_io_setup, SYS_io_submit, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open,
    SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink, SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd,
    SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget,
    SYS_vmsplice,
}

#[cfg(target_arch = "x86_64")]
numbers! { NEVER_OLD:
    SYS_ioperm, SYS_iopl, SYS_mknod, SYS_modify_ldt, SYS__sysctl, SYS_sysfs, SYS_uselib, SYS_ustat,
}

#[cfg(not(target_arch = "x86_64"))]
static NEVER_OLD: &[(i64, &str)] = &[];

// System calls that are never made with some of their arguments, or only where that is configured.
numbers! { SOMETIMES:
    SYS_io_uring_register, SYS_io_uring_setup, SYS_kill, SYS_pkey_mprotect, SYS_prlimit64, SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo, SYS_tkill,
}

/// System calls that no thread of a server ever makes.
pub fn never() -> impl Iterator<Item = i64> {
    let others: &[i64] = &[
        SYS_execve,
        #[cfg(target_arch = "x86_64")]
        SYS_fork,
        #[cfg(target_arch = "x86_64")]
        SYS_vfork,
        // The one list of the C libraries' that has not got it.
        #[cfg(not(all(target_env = "musl", target_arch = "aarch64")))]
        libc::SYS_kexec_file_load,
    ];
    NEVER.iter().chain(NEVER_OLD).map(|(number, _)| *number).chain(others.iter().copied())
}

// All that a script process needs once it serves, beside memory that is not executable.
const SCRIPT: &[i64] = &[
    SYS_brk,
    SYS_clock_gettime,
    SYS_close,
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_getpid,
    SYS_getrandom,
    SYS_gettid,
    SYS_gettimeofday,
    SYS_madvise,
    SYS_mremap,
    SYS_munmap,
    SYS_ppoll,
    SYS_read,
    SYS_recvfrom,
    SYS_restart_syscall,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sched_yield,
    SYS_sendto,
    SYS_sigaltstack,
    libc::SYS_timer_delete,
    SYS_write,
    SYS_writev,
];

/// System calls of a script process: its sockets, its memory, its clocks and its end.
pub fn script() -> impl Iterator<Item = i64> {
    SCRIPT.iter().copied()
}

/// Newer architectures never had the calls that `openat`, `epoll_pwait` and their like replaced.
#[cfg(not(target_arch = "x86_64"))]
static OLD: &[(i64, &str)] = &[];

/// Name of a system call, if it is on the list. Allocates nothing, so signal handlers may call it.
pub fn name(number: i64) -> Option<&'static str> {
    let lists = [COMMON, OLD, NEVER, NEVER_OLD, SOMETIMES];
    let candidate = lists.iter().flat_map(|list| list.iter()).find(|(candidate, _)| *candidate == number);
    candidate.map(|(_, name)| name.trim_start_matches("SYS_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names() {
        assert_eq!(name(SYS_openat), Some("openat"));
        assert_eq!(name(SYS_clock_nanosleep), Some("clock_nanosleep"));
        assert_eq!(name(-1), None);
    }

    #[test]
    fn refused_calls_are_not_needed_by_loops() {
        let never: Vec<_> = never().collect();
        assert!(never.contains(&SYS_ptrace) && never.contains(&SYS_execve));
        for needed in [SYS_clone, SYS_futex, SYS_openat2, SYS_prctl, SYS_tgkill, SYS_mmap] {
            assert!(!never.contains(&needed), "{:?}", name(needed));
        }
    }
}
