//! Keys of session tickets, which go to the next process or are shared by the nodes of a fleet.

pub mod fleet_secrets;
pub(crate) mod ticket_keys;
pub(crate) mod ticket_keys_handover;
