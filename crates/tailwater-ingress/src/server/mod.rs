//! The Tailwater beside the controller: its process, its configuration files, its control API and its runtime API.

pub mod applier;
pub mod process;
