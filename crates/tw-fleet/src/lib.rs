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
mod announce;
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
mod name;
mod name_conflict;
mod named_fleet;
mod nats;
mod node;
mod own_configuration;
mod peer_health;
mod position;
mod publisher;
mod queue;
mod rate_shares;
mod record;
mod sealed;
mod serve_stores;
mod server_list;
mod settings;
mod shared_rate;
mod shared_secrets;
#[cfg(test)]
mod simulation;
mod status;
mod store;
mod store_client;
mod store_operation;
mod transport;
mod unconfirmed;

pub use agent::Agent;
pub use announcer::SharedParts;
pub use configuration::{
    ConfigurationClient, ConfigurationDirectory, ConfigurationError, ConfigurationOrder, ConfigurationReport,
    ConfigurationVersion, FilesOfVersion, FollowState, PublicKey, ReportState, ServedVersion, SigningKey,
};
pub use engine::{AnnouncementReader, Engine, EngineError, Log, LogReader, LogRecord, LogState, Session};
pub use fleet::{Fleet, PublishOutcome};
pub use lease::{Lease, lease_holder};
pub use name::is_name;
pub use named_fleet::{find_encrypting_fleet, find_fleet};
pub use nats::fuzz as fuzz_nats;
pub use nats::{Authentication, CredentialsError, read_credentials};
pub use node::{LogFn, NodeCaches};
pub use peer_health::{PeerFinding, SharedGroup, SharedPeers};
pub use position::{Continuity, Position, judge};
pub use record::{FleetPurge, FleetPurgeMode, FleetPurgeScope, FleetRecord, RecordError, RecordKind};
pub use sealed::{FleetKeyError, FleetKeys, OpenError, OpenedEntry, SealedStore};
pub use server_list::{EngineKind, ServerList, ServerListError};
pub use settings::{EngineSettings, FleetSettings};
pub use shared_rate::{RATE_NAME_SIZE_MAX, RateKey, RateShare, SharedRate};
pub use status::{FleetStatus, NodeConfiguration, NodeSummary, SharedRateState};
pub use store::{
    CERTIFICATES, CONFIGURATION, Entry, SUMMARIES, Store, StoreChanges, StoreSettings, StoreWatch, is_key,
};
pub use store_client::{StoreClient, StoreClientWatch};

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

    section "fleet";
    use server_list::LIMITS;
    use etcd::LIMITS;
    use nats::CONNECTION_LIMITS;
    use nats::PARSER_LIMITS;
    use queue::LIMITS;
    use fleet::LIMITS;
    use configuration::LIMITS;
    use node::LIMITS;
    use agent::LIMITS;
    use announcement::LIMITS;
    use announce::LIMITS;
    use shared_rate::LIMITS;
    use nats::ANNOUNCEMENT_LIMITS;
    use status::LIMITS;
    use sealed::LIMITS;
    use shared_secrets::LIMITS;
    use unconfirmed::LIMITS;
    use store::LIMITS;
    use store_client::LIMITS;
    use serve_stores::LIMITS;
}
