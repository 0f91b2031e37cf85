//! Numbers and names of system calls, and of the arguments the loop guard looks at, so that nobody else needs `libc`.
//!
//! The list holds what a loop may call and what it is likely to be caught calling; nothing depends on its being whole.

pub use libc::{
    AT_STATX_DONT_SYNC, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, FIONBIO, FIONREAD,
    MAP_ANONYMOUS, PR_SET_VMA, RWF_HIPRI, RWF_NOWAIT, STDERR_FILENO, TIOCOUTQ,
};

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
    SYS_getdents64, SYS_getpeername, SYS_getpid, SYS_getrandom, SYS_getsockname, SYS_getsockopt,
    SYS_gettid, SYS_gettimeofday, SYS_io_uring_enter, SYS_ioctl, SYS_linkat, SYS_listen, SYS_lseek, SYS_madvise, SYS_membarrier,
    SYS_mkdirat, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_msync, SYS_munmap, SYS_nanosleep, SYS_newfstatat,
    SYS_getcpu, SYS_openat, SYS_openat2, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_pselect6, SYS_pwrite64,
    SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlinkat, SYS_readv, SYS_recvfrom,
    SYS_recvmmsg, SYS_recvmsg, SYS_renameat, SYS_renameat2, SYS_restart_syscall, SYS_rseq,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sched_yield, SYS_sendfile, SYS_sendmmsg,
    SYS_sendmsg, SYS_sendto, SYS_setsockopt, SYS_shutdown, SYS_sigaltstack, SYS_socket, SYS_splice,
    SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync_file_range, SYS_tgkill, SYS_truncate, SYS_unlinkat,
    SYS_utimensat, SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
}

#[cfg(target_arch = "x86_64")]
numbers! { OLD:
    SYS_access, SYS_creat, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_fork, SYS_getdents, SYS_link,
    SYS_lstat, SYS_mkdir, SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename, SYS_rmdir,
    SYS_select, SYS_stat, SYS_symlink, SYS_time, SYS_unlink, SYS_vfork,
}

/// Newer architectures never had the calls that `openat`, `epoll_pwait` and their like replaced.
#[cfg(not(target_arch = "x86_64"))]
static OLD: &[(i64, &str)] = &[];

/// Name of a system call, if it is on the list. Allocates nothing, so signal handlers may call it.
pub fn name(number: i64) -> Option<&'static str> {
    let known = COMMON.iter().chain(OLD).find(|(known, _)| *known == number);
    known.map(|(_, name)| name.trim_start_matches("SYS_"))
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
}
