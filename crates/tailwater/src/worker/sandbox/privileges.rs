//! Capabilities: pieces of what root may do.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::Role;

/// No capability.
pub(super) const NONE: CapabilitySet = CapabilitySet::empty();

/// Those about the files of others. A process that still has them, `user root` or one that its starter gave them to, has
/// them on purpose.
const FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// What a process may keep of what it has.
pub(super) fn of(role: Role) -> CapabilitySet {
    match role {
        Role::Worker => FILES,
        Role::Alone => FILES.union(CapabilitySet::NET_BIND_SERVICE),
    }
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
    let kept = capabilities(None)?.permitted & keep;
    Ok(set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: NONE })?)
}
