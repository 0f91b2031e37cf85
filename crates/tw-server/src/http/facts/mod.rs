//! What can be asked about a request, without waiting.

pub mod agent;
pub mod client;
pub mod variables;
