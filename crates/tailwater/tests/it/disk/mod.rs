//! Disks that fail, stand still or hang under the whole server.

mod failing_disks;
mod hung_disks;
