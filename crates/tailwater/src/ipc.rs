//! Messages between the master and its worker processes.

pub(crate) mod channel;
pub(crate) mod packet;
