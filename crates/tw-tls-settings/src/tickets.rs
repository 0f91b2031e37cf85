//! Keys of session tickets: handed over to the next process, or shared by the nodes of a fleet.

pub mod fleet_secrets;
pub(crate) mod ticket_keys_handover;
