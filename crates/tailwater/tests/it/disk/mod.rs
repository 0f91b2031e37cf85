//! Disks that fail, stand still or hang under the whole server.

mod failing_disks;
mod fault_injection;
mod hung_disks;
