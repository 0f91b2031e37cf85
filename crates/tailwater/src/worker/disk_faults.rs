//! Faults of disks on purpose (`debug_disk_fault`), which are the process's, not a generation's.

use tw_core::process::DiskFault;
use tw_disk::FaultRule;
use tw_log::{ErrorLog, Level};

/// Puts these faults in force, in the place of those before, and writes them into the error log. Returns `true` if they are others.
pub(crate) fn set(faults: &[DiskFault], log: &ErrorLog) -> bool {
    let rules: Vec<FaultRule> = faults.iter().map(|fault| fault.rule.clone()).collect();
    let has_changed = tw_disk::set_fault_rules(&rules);
    for fault in faults {
        log.write(Level::Warn, None, format_args!("fault injection: {fault} (\"debug_disk_fault\")"));
    }
    if has_changed && faults.is_empty() {
        log.write(Level::Warn, None, format_args!("fault injection has ended"));
    }
    has_changed
}
