//! Settings of a fleet and of its engine.

use std::path::PathBuf;
use std::time::Duration;

use crate::nats::Authentication;
use crate::sealed::FleetKeys;
use crate::server_list::ServerList;

/// Settings of one fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSettings {
    /// Name of the fleet; log and store have it in their names.
    pub name: Box<str>,
    /// Name of this node, of its own in the fleet.
    pub node: Box<str>,
    /// Directory of the position and the queue.
    pub state: PathBuf,
    /// Longest wait of a purge for the acknowledgement of the engine.
    pub publish_timeout: Duration,
    /// Keys of values that the engine must not read.
    pub keys: FleetKeys,
    /// Time between two new secrets that all nodes share.
    pub secret_rotation: Duration,
    /// Settings of the engine.
    pub engine: EngineSettings,
}

/// Settings of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    /// Servers, of which one is used.
    pub servers: ServerList,
    /// Proof of who we are.
    pub authentication: Authentication,
    /// True if the connection is encrypted.
    pub tls: bool,
    /// Certificates of the authorities that the server may have one of, in PEM.
    pub trusted: Option<Vec<u8>>,
    /// Copies of the log and the store on servers of the engine, when they are made.
    pub replicas: u8,
    /// Age at which the engine drops records of the log, when that is made.
    pub max_age: Duration,
    /// Number of records that the engine keeps, when the log is made.
    pub max_messages: u64,
}
