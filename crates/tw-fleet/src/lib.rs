//! A fleet of nodes that share orders: an engine with a log and stores, and the agent that follows it on a thread that may wait.
//!
//! ```text
//! a purge here ─► Fleet::publish ─► Agent ─► engine: log ─► Agent of every node ─► NodeCaches: applied in order
//!                                     └─ engine gone: queue on disk, published later
//! ```
//! The logic of a node uses its machine by `Host` only, and the engine by `Engine`: `simulation` runs a hundred nodes in one process.
//!
//! Nothing here knows how requests are served, and serving never waits for the engine. The engine is not believed: every node
//! remembers durably how far it has read ([`Position`]), and when the log has a gap, went back or is another one, everything stored
//! becomes stale.
//!
//! A purge is applied here, then published: `Cache::purge` waits for the acknowledgement of the engine, or for the queue on
//! disk. The agent reads the log in order and marks a whole batch before it waits for the disk. The position in the log is saved after the purges.
//!
//! **Announcements** have what nodes share for seconds only, and nothing stores them: twice a second each node announces the demand of busy
//! keys and the state of upstream servers. The thread computes shares of rates, and loops read them as atomics (`SharedRate`); what others have found
//! makes this node look itself (`SharedPeers`, `tw_upstream::hint`). **Configurations of a fleet** are signed values of a store. The commands that
//! write them, and `tailwater fleet follow`, which takes them over, are processes of their own beside the server.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod agent;
mod announcement;
mod announcer;
mod configuration;
mod directory;
mod engine;
mod etcd;
mod fleet;
mod follower;
mod host;
mod lease;
mod name_conflict;
mod named_fleet;
mod nats;
mod own_configuration;
mod peer_health;
mod position;
mod publisher;
mod queue;
mod rate_shares;
mod record;
mod sealed;
mod shared_rate;
mod shared_secrets;
#[cfg(test)]
mod simulation;
mod status;
mod store;
mod store_client;
mod transport;
mod unconfirmed;

pub use agent::{Agent, LogFn, NodeCaches};
pub use announcer::SharedParts;
pub use configuration::{
    ConfigurationClient, ConfigurationDirectory, ConfigurationError, ConfigurationOrder, ConfigurationReport,
    ConfigurationVersion, FilesOfVersion, FollowState, PublicKey, ReportState, ServedVersion, SigningKey,
};
pub use engine::{AnnouncementReader, Engine, EngineError, Log, LogReader, LogRecord, LogState, Session};
pub use fleet::{Fleet, PublishOutcome};
pub use lease::{Lease, lease_holder};
pub use named_fleet::{find_encrypting_fleet, find_fleet};
pub use nats::fuzz as fuzz_nats;
pub use nats::{
    Authentication, CredentialsError, EngineKind, EngineSettings, ServerList, ServerListError, is_name,
    read_credentials,
};
pub use peer_health::{PeerFinding, SharedGroup, SharedPeers};
pub use position::{Continuity, Position, judge};
pub use record::{FleetPurge, FleetPurgeMode, FleetPurgeScope, FleetRecord, RecordError, RecordKind};
pub use sealed::{FleetKeyError, FleetKeys, OpenError, OpenedEntry, SealedStore};
pub use shared_rate::{RATE_NAME_SIZE_MAX, RateKey, RateShare, SharedRate, SharedRateState};
pub use status::{FleetStatus, NodeConfiguration, NodeSummary};
pub use store::{
    CERTIFICATES, CONFIGURATION, Entry, SUMMARIES, Store, StoreChanges, StoreSettings, StoreWatch, is_key,
};
pub use store_client::{StoreClient, StoreClientWatch};

/// Settings of one fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSettings {
    /// Name of the fleet; log and store have it in their names.
    pub name: Box<str>,
    /// Name of this node, of its own in the fleet.
    pub node: Box<str>,
    /// Directory of the position and the queue.
    pub state: std::path::PathBuf,
    /// Longest wait of a purge for the acknowledgement of the engine.
    pub publish_timeout: std::time::Duration,
    /// Keys of values that the engine must not read.
    pub keys: FleetKeys,
    /// Time between two new secrets that all nodes share.
    pub secret_rotation: std::time::Duration,
    /// Settings of the engine.
    pub engine: EngineSettings,
}

/// Files that resolve names of servers, for the sandbox.
pub fn system_files() -> Vec<std::path::PathBuf> {
    tw_dns::SystemFiles::default().paths()
}

/// Checks certificates of authorities that an engine may have one of.
///
/// # Errors
/// Reason why they cannot be used.
pub fn check_trusted(pem: Option<&[u8]>) -> Result<(), String> {
    tw_tls::client_config(pem).map(|_| ())
}

tw_base::limits! {
    /// Limits of everything here that an engine or an operator can fill.
    pub const LIMITS;

    use nats::LIMITS;
    use etcd::LIMITS;
    use nats::CONNECTION_LIMITS;
    use nats::PARSER_LIMITS;
    use queue::LIMITS;
    use fleet::LIMITS;
    use configuration::LIMITS;
    use agent::LIMITS;
    use announcement::LIMITS;
    use announcer::LIMITS;
    use shared_rate::LIMITS;
    use nats::ANNOUNCEMENT_LIMITS;
    use status::LIMITS;
    use sealed::LIMITS;
    use shared_secrets::LIMITS;
    use unconfirmed::LIMITS;
    use store::LIMITS;
    use store_client::LIMITS;
}
