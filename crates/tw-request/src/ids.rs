//! Indices of servers and plans in a configuration.

pub use tw_core::server_names::ServerId;

/// Index of a plan in its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanId(pub u32);
