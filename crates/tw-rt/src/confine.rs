//! Filter of the process: system calls that no thread of a server ever makes fail with `EPERM` on every thread.
//!
//! The filter lists refused calls, not allowed ones, so that no library that makes an unusual call is surprised; the loop
//! guard of each loop stands beside it and is stricter. Other system calls are not slowed down: the kernel knows those
//! that always pass by a bit. Calls of another architecture end the process.
//!
//! The filter cannot see the memory behind a pointer. So `clone3` does not exist (`ENOSYS`), which makes the C
//! library use `clone`, whose flags can be checked.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use tw_sys::nr;

/// Operations that the confined process still needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfineOptions {
    /// Reading by io_uring.
    pub io_uring: bool,
    /// Opening listening sockets.
    pub listen: bool,
    /// Binding connections to configured local addresses.
    pub bind: bool,
    /// Opening connections.
    pub connect: bool,
}

/// The bits of the kind of a socket, beside which there are flags.
const SOCKET_KIND: u64 = 0xf;

/// Refuses, from now on and on all threads, what no thread of a server calls.
///
/// Errors: the kernel has no filters, or a thread has one that the others have not.
pub fn confine(needs: ConfineOptions) -> io::Result<()> {
    let rules = rules(needs).map_err(io::Error::other)?;
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let refused = SeccompAction::Errno(nr::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    let program = by_number_first(program).ok_or_else(|| io::Error::other("unknown form of a filter"))?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

/// Refused system calls: those without rules always, others if one of their rules matches.
fn rules(needs: ConfineOptions) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = nr::never().map(|call| (call, Vec::new())).collect();
    // Files change their length by descriptors only, which were opened for that.
    rules.insert(nr::SYS_truncate, Vec::new());
    if !needs.io_uring {
        rules.extend([nr::SYS_io_uring_setup, nr::SYS_io_uring_register].map(|call| (call, Vec::new())));
    }
    if !needs.listen {
        rules.insert(nr::SYS_listen, Vec::new());
    }
    if !needs.listen && !needs.bind {
        rules.insert(nr::SYS_bind, Vec::new());
    }
    restrict_processes(&mut rules)?;
    restrict_sockets(&mut rules, needs)?;
    restrict_terminals(&mut rules)?;
    restrict_memory(&mut rules)?;
    Ok(rules)
}

/// Conditions under which a system call is refused, by its number; a call without any is always refused.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Restricts new processes, signals and limits of other processes.
fn restrict_processes(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    // Threads, no processes, and no name spaces.
    let name_spaces = [
        nr::CLONE_NEWCGROUP,
        nr::CLONE_NEWIPC,
        nr::CLONE_NEWNET,
        nr::CLONE_NEWNS,
        nr::CLONE_NEWPID,
        nr::CLONE_NEWUSER,
        nr::CLONE_NEWUTS,
    ];
    let mut clone = vec![rule([has(0, bits(nr::CLONE_THREAD), 0)?])?];
    for name_space in name_spaces.map(bits) {
        clone.push(rule([has(0, name_space, name_space)?])?);
    }
    rules.insert(nr::SYS_clone, clone);

    // Signals and limits are for this process.
    let own = u64::from(std::process::id());
    for call in [nr::SYS_kill, nr::SYS_tgkill, nr::SYS_rt_sigqueueinfo, nr::SYS_rt_tgsigqueueinfo] {
        rules.insert(call, vec![rule([differs(0, own)?])?]);
    }
    // The argument of `tkill` is a thread, not a process. musl's `abort` uses it.
    #[cfg(not(target_env = "musl"))]
    rules.insert(nr::SYS_tkill, Vec::new());
    rules.insert(nr::SYS_prlimit64, vec![rule([differs(0, 0)?, differs(0, own)?])?]);
    Ok(())
}

/// Restricts the families and kinds of sockets, and connections that the sandbox of files and ports does not see.
fn restrict_sockets(rules: &mut Rules, needs: ConfineOptions) -> Result<(), seccompiler::BackendError> {
    // Families with a peer somewhere. The C library would ask the kernel for its interfaces (netlink) before it looks up a name, only to
    // sort the addresses, and does without.
    let [unix, inet, inet6] = [nr::AF_UNIX, nr::AF_INET, nr::AF_INET6].map(bits);
    rules.insert(
        nr::SYS_socket,
        vec![
            rule([differs(0, unix)?, differs(0, inet)?, differs(0, inet6)?])?,
            // Raw sockets are refused, whatever the capabilities.
            rule([has(1, SOCKET_KIND, bits(nr::SOCK_RAW))?])?,
        ],
    );

    // Landlock knows TCP alone, and not that data may open a connection. Where connections are needed, it restricts none.
    if !needs.listen {
        let protocols = [nr::IPPROTO_TCP, nr::IPPROTO_UDP].map(bits);
        let [tcp, udp] = protocols;
        let other = rule([differs(2, 0)?, differs(2, tcp)?, differs(2, udp)?])?;
        rules.entry(nr::SYS_socket).or_default().push(other);
    }
    if !needs.connect {
        let open = bits(nr::MSG_FASTOPEN);
        for (call, flags) in [(nr::SYS_sendto, 3), (nr::SYS_sendmsg, 2), (nr::SYS_sendmmsg, 3)] {
            rules.insert(call, vec![rule([has(flags, open, open)?])?]);
        }
    }
    Ok(())
}

/// Restricts input to terminals.
fn restrict_terminals(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    // Input of a terminal comes from its user only.
    let terminal = [nr::TIOCSTI, nr::TIOCLINUX];
    let terminal = terminal.map(|request| equals(1, request).and_then(|request| rule([request])));
    rules.insert(nr::SYS_ioctl, terminal.into_iter().collect::<Result<_, _>>()?);
    Ok(())
}

/// Restricts executable memory.
fn restrict_memory(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    // All code is mapped already. A file may be one that the process has written, whatever directory it is in, or
    // memory (memfd).
    let exec = bits(nr::PROT_EXEC);
    for call in [nr::SYS_mmap, nr::SYS_mprotect, nr::SYS_pkey_mprotect] {
        rules.insert(call, vec![rule([has(2, exec, exec)?])?]);
    }
    Ok(())
}

type BackendResult<T> = Result<T, seccompiler::BackendError>;

fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> BackendResult<SeccompRule> {
    SeccompRule::new(conditions.into())
}

/// The argument at `index`, in the bits of `mask`, is `value`.
fn has(index: u8, mask: u64, value: u64) -> BackendResult<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
}

/// The argument at `index`, an `int`, is `value`.
fn equals(index: u8, value: u64) -> BackendResult<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// The argument at `index`, an `int`, is not `value`.
fn differs(index: u8, value: u64) -> BackendResult<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

/// An `int` of the C library as an argument.
fn bits(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// Numbers from here on are calls of x32, which on x86_64 are those of the list under other numbers.
const X32: u32 = 0x4000_0000;

/// Calls that every request makes and that nothing is asked of. The loop guard looks at their arguments, so the kernel
/// cannot skip the filters for them, and they should not wait for the end of a long list.
const EVERY_REQUEST: [i64; 4] = [nr::SYS_preadv2, nr::SYS_statx, nr::SYS_read, nr::SYS_write];

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_NOT_LESS: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Puts what depends on the number alone before the list: `clone3` does not exist, and nothing of x32 is allowed.
/// `None` if `program` does not begin as it is known to: with the architecture, and then the number.
fn by_number_first(mut program: BpfProgram) -> Option<BpfProgram> {
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let begins = [step(LOAD, 4, 0, 0), step(LOAD, 0, 0, 0)];
    let at = 4;
    if [program.first(), program.get(at - 1)] != begins.each_ref().map(Some) {
        return None;
    }
    let errno = |errno: i32| nr::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    let when_equal = |call, action| {
        [step(IF_EQUAL, u32::try_from(call).unwrap_or(u32::MAX), 0, 1), step(RETURN, action, 0, 0)]
    };
    let mut first: Vec<_> =
        EVERY_REQUEST.iter().flat_map(|call| when_equal(*call, nr::SECCOMP_RET_ALLOW)).collect();
    first.extend(when_equal(nr::SYS_clone3, errno(nr::ENOSYS)));
    first.extend([step(IF_NOT_LESS, X32, 0, 1), step(RETURN, errno(nr::EPERM), 0, 0)]);
    // Jumps are relative and lead forward, and none crosses this position.
    program.splice(at..at, first);
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_number_is_checked_first() {
        let ret = sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
        assert!(by_number_first(vec![ret; 9]).is_none());
        let needs = ConfineOptions { io_uring: false, listen: false, bind: false, connect: false };
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let refused = SeccompAction::Errno(1);
        let filter = SeccompFilter::new(rules(needs).unwrap(), SeccompAction::Allow, refused, arch).unwrap();
        let program = by_number_first(filter.try_into().unwrap()).unwrap();
        assert_eq!(u32::try_from(nr::SYS_preadv2).unwrap(), program[4].k);
        assert!(program.len() < 4096, "the kernel takes no more");
    }

    #[test]
    fn needed_calls_are_not_refused() {
        let refused = |io_uring, listen| {
            rules(ConfineOptions { io_uring, listen, bind: false, connect: listen }).unwrap()
        };
        let all = refused(true, true);
        for call in
            [nr::SYS_bind, nr::SYS_listen, nr::SYS_io_uring_setup, nr::SYS_io_uring_register, nr::SYS_sendmsg]
        {
            assert!(!all.contains_key(&call), "{:?}", nr::name(call));
            assert!(refused(false, false).contains_key(&call), "{:?}", nr::name(call));
        }
        let binds =
            rules(ConfineOptions { io_uring: false, listen: false, bind: true, connect: true }).unwrap();
        assert!(!binds.contains_key(&nr::SYS_bind) && binds.contains_key(&nr::SYS_listen));
        for call in [nr::SYS_clone, nr::SYS_mmap, nr::SYS_socket, nr::SYS_ioctl, nr::SYS_kill] {
            assert!(!all[&call].is_empty(), "{:?} is refused with some arguments only", nr::name(call));
        }
    }
}
