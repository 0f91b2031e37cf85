//! Rights that the process gives up before the first script: an attacker who gets out of the engine has its sockets and nothing else.
//!
//! ```text
//! no new privileges ─► limits of memory, files and core dumps ─► landlock ─► seccomp, which lists what is allowed
//! ```
//! Everything that is not listed fails with `EPERM`: files, the network, processes and programs, signals to others, executable memory.

use std::collections::BTreeMap;
use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use tw_sys::nr;

tw_base::limits! {
    /// Limits of the process.
    pub(crate) const LIMITS;

    /// Address space of a script process, whatever the limits of its contexts.
    const MEMORY_MAX: u64 = 4 << 30, bytes, "the script gets an exception, or the script process ends and is replaced";
}

/// Newest version of landlock whose rights are known here; an older kernel enforces those it knows.
const NEWEST: ABI = ABI::V6;
/// `PROT_EXEC`.
const EXECUTABLE: u64 = 4;

/// Gives up all rights, for good.
///
/// # Errors
/// The kernel has no filters of system calls.
pub(crate) fn enter() -> io::Result<()> {
    read_time_zone();
    limit(Resource::As, MEMORY_MAX)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Fsize, 0)?;
    rustix::thread::set_no_new_privs(true)?;
    restrict_files().map_err(io::Error::other)?;
    let filter: BpfProgram = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&filter).map_err(io::Error::other)
}

/// Makes the C library read the time zone, whose file it cannot open afterwards.
fn read_time_zone() {
    let offset = rquickjs::Runtime::new().and_then(|runtime| {
        let context = rquickjs::Context::full(&runtime)?;
        context.with(|ctx| ctx.eval::<i32, _>("new Date().getTimezoneOffset()"))
    });
    // Without a time zone, dates are those of UTC.
    let _ = offset;
}

/// Sets a limit that cannot be raised again, unless it is lower already.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let old = rustix::process::getrlimit(resource);
    let most = old.maximum.map_or(most, |maximum| maximum.min(most));
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    Ok(())
}

/// Refuses all files and ports, and signals to other processes. A kernel without landlock has the filter only.
fn restrict_files() -> Result<(), landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .restrict_self()?;
    Ok(())
}

/// The filter: system calls that serving needs.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = nr::script().map(|call| (call, Vec::new())).collect();
    let not_executable =
        SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(EXECUTABLE), 0)?;
    for call in [nr::SYS_mmap, nr::SYS_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![not_executable.clone()])?]);
    }
    let arch = std::env::consts::ARCH.try_into()?;
    let refused = SeccompAction::Errno(nr::EPERM.unsigned_abs());
    SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()
}
