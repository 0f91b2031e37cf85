//! Capabilities: parts of the rights of root.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities,
};
use tw_core::reach::BindsTo;

use super::ProcessRole;

/// No capability.
pub(super) const NONE: CapabilitySet = CapabilitySet::empty();

/// Capabilities for files of others. A process that keeps them, by `user root` or by its starter, has them on purpose.
const FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Capabilities that a process may keep.
pub(super) fn of(role: ProcessRole, binds: Option<BindsTo>) -> CapabilitySet {
    let own = match role {
        ProcessRole::Worker => FILES,
        ProcessRole::Alone => FILES.union(CapabilitySet::NET_BIND_SERVICE),
    };
    own.union(over_user(binds))
}

/// Capability that a process keeps when it becomes another user (nginx: the same): binding to addresses of others.
pub(super) fn over_user(binds: Option<BindsTo>) -> CapabilitySet {
    match binds {
        Some(BindsTo::Any) => CapabilitySet::NET_RAW,
        Some(BindsTo::Own) | None => NONE,
    }
}

/// Has `keep` outlast `change`, which becomes another user, and nothing else.
pub(super) fn keep_across<E>(
    keep: CapabilitySet,
    failed: fn(&io::Error) -> E,
    change: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    if keep.is_empty() {
        return change();
    }
    let fail = |errno: Errno| failed(&errno.into());
    set_keep_capabilities(true).map_err(fail)?;
    change()?;
    set_keep_capabilities(false).map_err(fail)?;
    set(keep).map_err(fail)
}

/// Takes all but `keep` from what could ever be had again. Without the privilege to do so nothing happens:
/// `no_new_privs` stands for it.
pub(super) fn bound(keep: CapabilitySet) -> io::Result<()> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !keep.contains(capability) => remove_capability_from_bounding_set(capability)?,
            Ok(_) => {}
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Gives up all but `keep`, on the calling thread and those it will start.
pub(super) fn give_up(keep: CapabilitySet) -> io::Result<()> {
    bound(keep)?;
    match clear_ambient_capability_set() {
        // Kernels before 4.3 have none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(set(keep)?)
}

/// Has `keep`, as far as it may, and nothing else.
fn set(keep: CapabilitySet) -> Result<(), Errno> {
    let kept = capabilities(None)?.permitted & keep;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: NONE })
}
