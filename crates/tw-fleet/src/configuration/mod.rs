//! Configurations of a fleet: signed versions and orders in a store, and the directory of a node that takes them over.
//!
//! ```text
//! tailwater fleet push ─► version.N ─┐                       ┌─► DIRECTORY/vN, tested, DIRECTORY/current → vN, reload
//! tailwater fleet rollout ─► order.NODE ─► tailwater fleet follow on the node ─► report.NODE ─► the next wave, or back
//! ```
//! The engine is not believed: versions and orders are signed by a key that no server and no engine has, and a node takes no order that is
//! older than the last one. Reports are hints for the one who rolls out; they are not signed.

mod client;
mod directory;
mod document;
mod signature;

pub use client::ConfigurationClient;
pub use directory::{ConfigurationDirectory, FollowState, ServedVersion};
pub use document::{
    ConfigurationError, ConfigurationOrder, ConfigurationReport, ConfigurationVersion, FilesOfVersion,
    ReportState,
};
pub use signature::{PublicKey, SigningKey};

pub(crate) use document::LIMITS;
