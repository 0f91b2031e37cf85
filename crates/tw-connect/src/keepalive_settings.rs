//! Settings of keep-alive connections to the servers of a group.

use std::time::Duration;

/// `keepalive` of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// Connections that wait on one loop at most; 0 is none.
    pub connections: usize,
    /// `local`: only requests of the same location use them.
    pub is_local: bool,
    /// `keepalive_requests`
    pub requests: u64,
    /// `keepalive_time`: how long a connection is used.
    pub time: Duration,
    /// `keepalive_timeout`: how long it waits.
    pub timeout: Duration,
}

impl KeepaliveSettings {
    /// Settings of a block without `keepalive`, as in nginx.
    pub const USUAL: Self = Self {
        connections: 32,
        is_local: true,
        requests: 1000,
        time: Duration::from_secs(3600),
        timeout: Duration::from_secs(60),
    };
    /// No connection is used again.
    pub const NONE: Self = Self { connections: 0, ..Self::USUAL };
}
